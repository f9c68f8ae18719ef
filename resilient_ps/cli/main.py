"""`resilient-ps`: all commands, and what becomes of errors."""

from __future__ import annotations

import sys

import click
import typer

from resilient_ps import __version__
from resilient_ps.cli.bench.command import bench
from resilient_ps.cli.server import server
from resilient_ps.errors import Bug, FixTheCall, Reopen, ResilientPsError, RetryLater

EXIT_CODES: tuple[tuple[type[ResilientPsError], int], ...] = (
    (FixTheCall, 2),
    (RetryLater, 3),
    (Reopen, 4),
    (Bug, 70),
)
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="resilient-ps: the parameter server that survives.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(server)
app.command()(bench)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command; errors become one line on standard error and an exit code."""
    try:
        code = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except ResilientPsError as error:
        print(f"resilient-ps: {error}", file=sys.stderr)
        sys.exit(next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1))
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()

"""The commands of `resilient-ps`, by name: each is loaded only by a process that is asked for it.

Loading all of them takes twice the processor time of loading one, and machines start many servers
and workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from resilient_ps import __version__
from resilient_ps.cli.options import HELP


def application_of(names: Iterable[str]) -> typer.Typer:
    """An application that knows these commands."""
    app = typer.Typer(no_args_is_help=True, **HELP)
    app.callback()(_all)  # else a single command would be the application itself
    for name in names:
        COMMANDS[name](app)
    return app


def _all() -> None:
    """resilient-ps: the parameter server that survives.

    \b
    Try it on this machine:     resilient-ps demo
    A cluster to play with:     resilient-ps local
    A cluster to work with:     resilient-ps server   (on each machine, beside etcd)
    What a cluster is doing:    resilient-ps status
    What it can go back to:     resilient-ps checkpoint ls

    Results go to standard output, logs and progress to standard error. Exit codes: 0 done, 1 a
    verdict was negative, 2 the call was wrong, 3 something could not be reached in time, 4 this
    process was superseded, 70 a bug, 130 interrupted.
    """


def _demo(app: typer.Typer) -> None:
    from resilient_ps.cli.demo import demo

    app.command(short_help="Train on real data with several processes.")(demo)


def _local(app: typer.Typer) -> None:
    from resilient_ps.cli.local import local

    app.command(short_help="Run a cluster on this machine until Ctrl-C.")(local)


def _server(app: typer.Typer) -> None:
    from resilient_ps.cli.servers import servers

    app.add_typer(servers, name="server")


def _train(app: typer.Typer) -> None:
    from resilient_ps.cli.train import train

    app.command(short_help="Run workers of a training job.")(train)


def _run(app: typer.Typer) -> None:
    from resilient_ps.cli.run import run

    app.command(
        short_help="Run a program of yours in several processes.",
        context_settings={"allow_interspersed_args": False},
    )(run)


def _status(app: typer.Typer) -> None:
    from resilient_ps.cli.status import status

    app.command(short_help="Show what a cluster is doing.")(status)


def _table(app: typer.Typer) -> None:
    from resilient_ps.cli.table import table

    app.add_typer(table, name="table")


def _job(app: typer.Typer) -> None:
    from resilient_ps.cli.job import job

    app.add_typer(job, name="job")


def _ns(app: typer.Typer) -> None:
    from resilient_ps.cli.ns.command import ns

    app.add_typer(ns, name="ns")


def _checkpoint(app: typer.Typer) -> None:
    from resilient_ps.cli.checkpoint.command import checkpoint

    app.add_typer(checkpoint, name="checkpoint")


def _doctor(app: typer.Typer) -> None:
    from resilient_ps.cli.doctor import doctor

    app.command(short_help="Examine the store for checkpoints.")(doctor)


def _bench(app: typer.Typer) -> None:
    from resilient_ps.cli.bench.checkpoint import checkpoint
    from resilient_ps.cli.bench.command import bench
    from resilient_ps.cli.bench.consistency import consistency
    from resilient_ps.cli.bench.platforms.command import platforms
    from resilient_ps.cli.drain import unless_subcommand

    benches = typer.Typer(invoke_without_command=True, **HELP)
    benches.callback(short_help="Measure this machine.")(unless_subcommand(bench))
    benches.command(short_help="Measure checkpoints.")(checkpoint)
    benches.command(short_help="Compare BSP, SSP and ASP with slow workers.")(consistency)
    benches.command(short_help="Compare with PyTorch, Spark and scikit-learn.")(platforms)
    app.add_typer(benches, name="bench")


def _simulate(app: typer.Typer) -> None:
    from resilient_ps.cli.simulate import simulate

    app.command(short_help="Test all promises under faults, in virtual time.")(simulate)


def _chaos(app: typer.Typer) -> None:
    from resilient_ps.cli.chaos import chaos

    help_line = "Hurt real processes, and measure what becomes of it."
    app.add_typer(chaos, name="chaos", short_help=help_line)


def _version(app: typer.Typer) -> None:
    app.command()(version)


def version() -> None:
    """Print the version.

    \b
    Example:
        resilient-ps version
    """
    print(__version__)


COMMANDS: dict[str, Callable[[typer.Typer], None]] = {  # in the order of `--help`
    "demo": _demo,
    "local": _local,
    "server": _server,
    "train": _train,
    "run": _run,
    "status": _status,
    "table": _table,
    "job": _job,
    "ns": _ns,
    "checkpoint": _checkpoint,
    "doctor": _doctor,
    "bench": _bench,
    "simulate": _simulate,
    "chaos": _chaos,
    "version": _version,
}

"""`resilient-ps`: where it begins and ends.

Loading the commands takes long enough to be interrupted; so this comes after the handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any, NoReturn

from resilient_ps.cli.exits import run
from resilient_ps.cli.interrupts import INTERRUPTS


def application(arguments: list[str] | None = None, **options: Any) -> Any:
    """All commands, or the one that is named, if it is one of which there are many processes."""
    from resilient_ps.cli.alone import alone

    words = sys.argv[1:] if arguments is None else arguments
    app = alone(words[0]) if words else None
    if app is None:
        from resilient_ps.cli.application import app as everything

        app = everything
    return app(arguments, **options)


def main() -> None:
    """Run a command; errors become one line on standard error and an exit code."""
    INTERRUPTS.install()
    code = run(application)
    INTERRUPTS.ignore()
    _leave_at_once(code)


def _leave_at_once(code: int) -> NoReturn:
    """Without taking the interpreter apart, which lasts half a second with compiled kernels in it.

    The exit code is ours, too: after an interrupt within `exec`, Python would kill itself instead.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

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
    """The command that is named; all commands, where none is."""
    from resilient_ps.cli.commands import COMMANDS, application_of

    words = sys.argv[1:] if arguments is None else arguments
    app = application_of(words[:1] if words and words[0] in COMMANDS else COMMANDS)
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

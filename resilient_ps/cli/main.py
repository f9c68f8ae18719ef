"""`resilient-ps`: where it begins and ends.

Loading the commands takes long enough to be interrupted; so this comes after the handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import Any, NoReturn

from resilient_ps.cli.exits import run
from resilient_ps.cli.interrupts import INTERRUPTS


def application(arguments: list[str] | None = None, **options: Any) -> Any:
    """The command that is named; all commands, where none is."""
    words = sys.argv[1:] if arguments is None else arguments
    command = _loaded(words)
    if arguments is None:  # the process is there for this command alone
        gc.freeze()
    return command(arguments, **options)


def _loaded(words: list[str]) -> Any:
    """What is loaded stays: looking for garbage in it meanwhile takes a seventh of the start."""
    was_looking = gc.isenabled()
    gc.disable()
    try:
        from resilient_ps.cli.commands import COMMANDS, application_of

        return application_of(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    finally:
        if was_looking:
            gc.enable()


def main() -> None:
    """Run a command; errors become one line on standard error and an exit code."""
    INTERRUPTS.install()
    if sys.argv[1:2] == ["server"]:
        _do_without_linear_algebra()
    code = run(application)
    INTERRUPTS.ignore()
    _leave_at_once(code)


def _do_without_linear_algebra() -> None:
    """numpy starts threads for it, which spin a tenth of a second before they sleep."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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

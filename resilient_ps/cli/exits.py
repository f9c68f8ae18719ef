"""How a command ends: its exit code, and one line on standard error where something is wrong."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from resilient_ps.errors import Bug, FixTheCall, Reopen, ResilientPsError, RetryLater

EXIT_NEGATIVE = 1
EXIT_WRONG_CALL = 2
EXIT_UNREACHABLE = 3
EXIT_SUPERSEDED = 4
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

_CODES: tuple[tuple[type[ResilientPsError], int], ...] = (
    (FixTheCall, EXIT_WRONG_CALL),
    (RetryLater, EXIT_UNREACHABLE),
    (Reopen, EXIT_SUPERSEDED),
    (Bug, EXIT_BUG),
)
# What the option parser raises has no public name, and another home in every version of typer
_USAGE_ERROR: type[Any] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def run(app: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Run a command; the exit code. Nothing leaves it but what asks for the end of the process."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="resilient-ps")
        sys.stdout.flush()
    except BaseException as error:
        return _end(error)
    if code == EXIT_INTERRUPTED:
        _say("interrupted")
    return code if isinstance(code, int) else 0


def _end(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        return _reader_gone()
    match error:
        case SystemExit() if isinstance(error.__context__, BrokenPipeError):  # rich and typer do so
            return _reader_gone()
        case SystemExit():
            return error.code if isinstance(error.code, int) else EXIT_NEGATIVE
        case KeyboardInterrupt() | typer.Abort():
            _say("interrupted")
            return EXIT_INTERRUPTED
        case Bug():
            return _report_bug(error)
        case ResilientPsError():
            _say(str(error))
            return next((code for kind, code in _CODES if isinstance(error, kind)), EXIT_NEGATIVE)
        case _USAGE_ERROR():
            return _on_usage_error(error)
        case OSError() if error.filename is not None:
            _say(f"{error.filename}: {error.strerror}")
            return EXIT_WRONG_CALL
    return _report_bug(error)


def _on_usage_error(error: Any) -> int:
    message = error.format_message()
    if message.startswith("Usage:"):  # no arguments at all: the message is the whole help
        print(message, file=sys.stderr)
        return EXIT_WRONG_CALL
    context = getattr(error, "ctx", None)
    where = f" (see: {context.command_path} --help)" if context is not None else ""
    _say(f"{message.rstrip('.')}{where}")
    return EXIT_WRONG_CALL


def _report_bug(error: BaseException) -> int:
    _say("bug: please report this, with what follows and the command that you ran")
    traceback.print_exception(error, file=sys.stderr)
    return EXIT_BUG


def _reader_gone() -> int:
    """Whoever read our output has seen enough, as `| head` has: that is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter complains at its end
    return 0


def _say(text: str) -> None:
    print(f"resilient-ps: {text}", file=sys.stderr)

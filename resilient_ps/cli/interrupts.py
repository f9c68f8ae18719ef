"""Ctrl-C and SIGTERM: the first ends the command in order, and nothing interrupts the cleaning up.

The first signal raises `KeyboardInterrupt`, but never between starting a process and remembering
it: such code runs within `held()`, and the signal takes effect at its end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """The process's handlers of both signals. Only the main thread may use it."""

    def __init__(self) -> None:
        self._holds = 0
        self._waiting = False
        self._raised = False

    def install(self) -> None:
        """Take both signals over; also where the shell that started us had them ignored."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def ignore(self) -> None:
        """The command is over: nothing may change its exit code any more."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._raised:
            return  # we are ending already; everything on that way has its deadline
        if self._holds and not self._waiting:
            self._waiting = True
            return
        self._raise()

    def _raise(self) -> None:
        self._waiting, self._raised = False, True
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put the first signal off to the end of the block; a second one is heeded at once."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if self._waiting and not self._holds:
                self._raise()


INTERRUPTS = Interrupts()

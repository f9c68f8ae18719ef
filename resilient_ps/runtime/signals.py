"""SIGTERM and SIGINT: the first asks for an orderly end, the same one again ends at once.

One of each is common and means no hurry: Ctrl-C goes to all processes of a terminal, and whoever
started this one then ends it with SIGTERM.

The handlers run as callbacks of the loop, not in the signal's own context, so they may do what
any other code may do.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context within which the two signals call `ask` (once) and `at_once` (with the signal)."""

    def __init__(self, ask: Callable[[], None], at_once: Callable[[signal.Signals], None]) -> None:
        self._ask = ask
        self._at_once = at_once
        self._seen: set[signal.Signals] = set()

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if number in self._seen:
            self._at_once(number)
        elif not self._seen:
            self._ask()
        self._seen.add(number)

"""SIGTERM and SIGINT: the first asks for an orderly end, a second SIGINT ends at once.

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
    """A context within which the two signals call `ask` (once) and `at_once`."""

    def __init__(self, ask: Callable[[], None], at_once: Callable[[], None]) -> None:
        self._ask = ask
        self._at_once = at_once
        self._asked = False

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
        if not self._asked:
            self._asked = True
            self._ask()
        elif number is signal.SIGINT:
            self._at_once()

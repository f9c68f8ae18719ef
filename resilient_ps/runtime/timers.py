"""A machine's named timers on the loop.

Setting a timer again replaces it. A machine that moves the same deadline on and on would make the
loop replace its own timer each time, so a later time only takes note: when the old one is due, it
is set anew for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from resilient_ps.machine import TimerFired
from resilient_ps.runtime.clock import NS_PER_S, Clock

RESOLUTION_S = 0.001
"""The loop's timers count in milliseconds; waiting for less would spin."""
LONGEST_WAIT_S = 3600.0
"""A timer that is due later looks once an hour: the loop's own counters have an end."""


@dataclass(slots=True)
class _Timer:
    at_ns: int
    due_ns: int  # when the loop will look: at `at_ns`, or earlier
    handle: asyncio.TimerHandle


class Timers:
    """`fire` is called in the loop's thread with `TimerFired`, never before the time."""

    def __init__(self, clock: Clock, fire: Callable[[TimerFired], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._timers: dict[str, _Timer] = {}

    def set(self, name: str, at_ns: int) -> None:
        """Fire at `at_ns` of the clock; a time in the past means soon."""
        timer = self._timers.get(name)
        if timer is None:
            self._timers[name] = _Timer(at_ns, at_ns, self._arm(name, at_ns))
        elif at_ns >= timer.due_ns:
            timer.at_ns = at_ns
        else:
            timer.handle.cancel()
            self._timers[name] = _Timer(at_ns, at_ns, self._arm(name, at_ns))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def _arm(self, name: str, at_ns: int) -> asyncio.TimerHandle:
        wait_s = (at_ns - self._clock.now_ns()) / NS_PER_S
        wait_s = min(max(wait_s, RESOLUTION_S), LONGEST_WAIT_S)
        return asyncio.get_running_loop().call_later(wait_s, self._due, name)

    def _due(self, name: str) -> None:
        timer = self._timers[name]
        if self._clock.now_ns() < timer.at_ns:
            timer.due_ns = timer.at_ns
            timer.handle = self._arm(name, timer.at_ns)
            return
        del self._timers[name]
        self._fire(TimerFired(name))

"""Named timers: never before their time, and setting one again replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from resilient_ps.machine import TimerFired
from resilient_ps.runtime.clock import MonotonicClock
from resilient_ps.runtime.timers import Timers

MS = 1_000_000


def fired(set_all: Callable[[Timers, int], None], *, until: str) -> list[tuple[str, int]]:
    """The names that fired, and at what time after the start, until `until` did."""
    clock, log = MonotonicClock(), list[tuple[str, int]]()

    async def run() -> None:
        done, start_ns = asyncio.Event(), clock.now_ns()

        def fire(event: TimerFired) -> None:
            log.append((event.name, clock.now_ns() - start_ns))
            if event.name == until:
                done.set()

        timers = Timers(clock, fire)
        set_all(timers, start_ns)
        await done.wait()
        timers.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return log


def test_timers_fire_in_order_and_never_early() -> None:
    def set_all(timers: Timers, now_ns: int) -> None:
        for wait_ms in (7, 1, 3, 5):
            timers.set(f"{wait_ms}", now_ns + wait_ms * MS)

    log = fired(set_all, until="7")
    assert [name for name, _ in log] == ["1", "3", "5", "7"]
    assert all(at_ns >= int(name) * MS for name, at_ns in log)


def test_a_timer_set_again_fires_once_at_the_new_time() -> None:
    def set_all(timers: Timers, now_ns: int) -> None:
        timers.set("later", now_ns + 2 * MS)
        timers.set("later", now_ns + 10 * MS)
        timers.set("sooner", now_ns + 60_000 * MS)
        timers.set("sooner", now_ns + 5 * MS)
        timers.set("end", now_ns + 20 * MS)

    log = fired(set_all, until="end")
    assert [name for name, _ in log] == ["sooner", "later", "end"]
    assert log[1][1] >= 10 * MS


def test_times_in_the_past_and_far_away_are_fine() -> None:
    def set_all(timers: Timers, now_ns: int) -> None:
        timers.set("never", 2**80)
        timers.set("past", now_ns - 1)
        timers.set("end", now_ns + 5 * MS)

    assert [name for name, _ in fired(set_all, until="end")] == ["past", "end"]

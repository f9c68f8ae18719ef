"""A server that replicates looks for the next message before it sleeps; others sleep at once."""

from __future__ import annotations

import asyncio

import uvloop

from resilient_ps.runtime.awake import TOGETHER_NS, Awake

LINGER_NS = 1_000
TURNS = 100  # of the loop: many more than it lingers


class Steps:
    """A clock that goes on each time that somebody looks at it."""

    def __init__(self) -> None:
        self.at_ns = TOGETHER_NS  # a real one has run for long
        self.looks = 0

    def now_ns(self) -> int:
        self.looks += 1
        self.at_ns += LINGER_NS // 10
        return self.at_ns


def looks(*heard: bool, pause_ns: int = 0, linger_ns: int = LINGER_NS) -> list[int]:
    """After each message (is it of replicas?), how often the clock was asked in the turns of the
    loop that followed it. The clock goes on by `pause_ns` before the next one."""
    clock = Steps()

    async def run() -> list[int]:
        awake, counts = Awake(clock, linger_ns), list[int]()
        for of_replicas in heard:
            awake.heard(of_replicas=of_replicas)
            before = clock.looks
            for _ in range(TURNS):
                await asyncio.sleep(0)
            counts.append(clock.looks - before)
            clock.at_ns += pause_ns
        return counts

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_after_a_message_of_replicas_it_looks_until_the_time_is_over() -> None:
    assert looks(True, True) == [9, 9]


def test_a_server_that_hears_of_clients_only_sleeps_at_once() -> None:
    assert looks(False, False) == [0, 0]


def test_it_does_not_look_where_it_has_no_time_for_it() -> None:
    assert looks(True, linger_ns=0) == [0]


def test_clients_are_looked_for_while_replicas_work_together_and_not_after() -> None:
    assert looks(True, False, pause_ns=0) == [9, 9]
    assert looks(True, False, pause_ns=TOGETHER_NS) == [9, 0]


def test_more_messages_make_it_look_for_longer_and_not_more_often() -> None:
    clock = Steps()

    async def run() -> int:
        awake = Awake(clock, LINGER_NS)
        for _ in range(5):
            awake.heard(of_replicas=True)
        before = clock.looks
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return clock.looks - before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) <= 2, "once in each turn of the loop"

"""Clocks, pauses and kills of simulated processes."""

from __future__ import annotations

from typing import Any

import pytest
from sim_toys import MILLISECOND_NS, SECOND_NS, Pair

from resilient_ps.chaos.sim.process import LocalClock
from resilient_ps.machine import Event, MessageArrived, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import Answer, Ask, PartAnswer, Status


@pytest.mark.parametrize("rate_ppm", [-20_000, -1, 0, 1, 20_000])
def test_a_clock_reaches_a_local_time_exactly_when_it_says(rate_ppm: int) -> None:
    clock = LocalClock(12_345, rate_ppm)
    for local_ns in range(10**10, 10**10 + 50):
        world_ns = clock.world(local_ns)
        assert clock.local(world_ns) >= local_ns > clock.local(world_ns - 1)


def test_timers_fire_at_the_local_time_of_a_clock_that_is_fast() -> None:
    pair = Pair(clock=LocalClock(5 * SECOND_NS, 20_000))
    begin_ns, local_ns = pair.world.now_ns, pair.a.now_ns
    pair.a.perform([SetTimer("t", local_ns + SECOND_NS)])
    pair.run_for(2 * SECOND_NS)
    (fired_ns,) = [at for at, event in pair.client.events if isinstance(event, TimerFired)]
    assert fired_ns == local_ns + SECOND_NS
    assert pair.a.clock.world(fired_ns) - begin_ns < SECOND_NS


def test_what_reaches_a_paused_process_is_handled_in_order_when_it_goes_on() -> None:
    pair = Pair()
    pair.b.pause(3 * SECOND_NS)
    pair.b.perform([SetTimer("t", pair.b.now_ns + SECOND_NS)])
    pair.ask(2)
    pair.run_for(3 * SECOND_NS - 1)
    before = len(pair.server.events)
    pair.run_for(1)
    late = pair.server.events[before:]
    assert before == 1  # only `Started`
    assert [type(event) for _, event in late] == [MessageArrived] * 3 + [TimerFired]
    assert pair.b.paused_ns_total == 3 * SECOND_NS


def test_a_timer_that_was_set_anew_before_it_could_fire_does_not_fire_for_the_old_setting() -> None:
    pair = Pair()

    def put_off(event: Event, now_ns: int) -> list[Any]:
        is_ask = isinstance(event, MessageArrived) and isinstance(event.message, Ask)
        return [SetTimer("t", now_ns + SECOND_NS)] if is_ask else []

    pair.server.react = put_off
    pair.b.perform([SetTimer("t", pair.b.now_ns + 500 * MILLISECOND_NS)])
    pair.b.pause(SECOND_NS)
    pair.ask()
    pair.run_for(SECOND_NS + SECOND_NS // 2)
    assert pair.server.of(TimerFired) == []
    pair.run_for(SECOND_NS)
    assert len(pair.server.of(TimerFired)) == 1


def answer(until_ns: int) -> Send:
    return Send("client:1", Answer(1, (PartAnswer(0, Status.OK),)), until_ns)


def test_a_late_answer_is_thrown_away_and_the_connection_with_it() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.b.process_id = 7
    pair.b.perform([answer(pair.b.now_ns), answer(0), answer(pair.b.now_ns - 1), answer(0)])
    pair.run_for(SECOND_NS)
    assert len(pair.client.of(MessageArrived)) == 2
    assert pair.world.audit.expired == 1
    assert [record.process_id for record in pair.world.audit.answers] == [7, 7, 7]
    assert pair.client.of(PeerLost) == [PeerLost("server:b")]
    assert pair.server.of(PeerLost) == [PeerLost("client:1")]


def test_a_pause_between_a_step_and_its_effects_makes_answers_late() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.server.react = lambda event, now_ns: [answer(now_ns + SECOND_NS)]
    pair.b.pause(2 * SECOND_NS, mid_step=True)
    pair.ask(2)
    pair.run_for(3 * SECOND_NS)
    assert pair.world.audit.expired == 1
    assert pair.client.of(MessageArrived) == []
    assert len(pair.client.of(PeerLost)) == 1


def test_a_process_that_is_killed_while_it_pauses_does_nothing_more() -> None:
    pair = Pair()
    pair.b.pause(SECOND_NS)
    pair.ask(3)
    pair.run_for(SECOND_NS // 2)
    pair.world.kill(pair.b)
    pair.run_for(5 * SECOND_NS)
    assert pair.server.asks() == []


def test_a_pause_can_be_ended_early() -> None:
    pair = Pair()
    pair.b.pause(100 * SECOND_NS)
    pair.ask(2)
    pair.run_for(SECOND_NS)
    pair.b.wake()
    assert pair.server.asks() == [1, 2]

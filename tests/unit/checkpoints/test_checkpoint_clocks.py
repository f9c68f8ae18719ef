"""Clocks that primaries tell, and what is made of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.checkpoints.clocks import ANSWER_NS, KEPT, Clocks, Span, clocks_told, spans_told
from resilient_ps.consistency import SSP, JobSpec
from resilient_ps.ids import PushId, WorkerId
from resilient_ps.job import Job
from resilient_ps.ledger import JobLedger
from resilient_ps.machine import Send
from resilient_ps.messages import Ask
from resilient_ps.shard import Shard

SECOND_NS = 10**9


def reading(clocks: Clocks, held: int, now_ns: int) -> None:
    """One server answers at once."""
    for effect in clocks.ask(["s1"], now_ns):
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Ask)
        clocks.hear(effect.message.request, json.dumps({"clocks": {"1": [0, held]}}), now_ns)


def shard_with(*ticked: int, pushed: int = -1) -> Shard:
    shard = Shard(0, 1)
    ledger = JobLedger(JobSpec(1, "j", len(ticked), SSP()))
    for rank, clock in enumerate(ticked):
        for each in range(1, clock + 1):
            ledger.record_tick(rank, each, b"")
    if pushed >= 0:
        ledger.record_fence(WorkerId(1, pushed, 1))
        ledger.record_push(pushed, PushId(ticked[pushed] + 1, 1, 0), 0)
    shard.jobs[1] = Job("", ledger)
    return shard


def test_a_clock_that_anything_was_pushed_for_is_held() -> None:
    assert clocks_told([shard_with(3, 5)]) == {"clocks": {"1": [3, 5]}}
    assert clocks_told([shard_with(3, 5, pushed=0)]) == {"clocks": {"1": [3, 5]}}
    assert clocks_told([shard_with(3, 5, pushed=1)]) == {"clocks": {"1": [3, 6]}}


def test_over_the_shards_the_slowest_and_the_fastest_count() -> None:
    told = clocks_told([shard_with(3, 5), shard_with(4, 4), shard_with(2, 6)])
    assert spans_told(told) == {1: Span(2, 6)}


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"clocks": 3}', '{"clocks": {"x": [1, 2]}}', '{"clocks": {"1": [1]}}']
)
def test_an_answer_that_is_none_tells_nothing(body: str) -> None:
    clocks = Clocks()
    (asked,) = clocks.ask(["s1"], 0)
    assert isinstance(asked, Send)
    assert isinstance(asked.message, Ask)
    assert clocks.hear(asked.message.request, body, 1)
    assert clocks.last is not None
    assert clocks.last.spans == {}


def test_a_server_that_is_silent_is_waited_for_and_then_left_out() -> None:
    clocks = Clocks()
    first, _ = clocks.ask(["s1", "s2"], 0)
    assert isinstance(first, Send)
    assert isinstance(first.message, Ask)
    assert not clocks.hear(first.message.request, '{"clocks": {"1": [2, 3]}}', 1)
    assert clocks.asking
    clocks.look(ANSWER_NS)
    assert not clocks.asking
    assert clocks.last is not None
    assert clocks.last.spans == {1: Span(2, 3)}


def test_a_reading_that_nobody_answered_is_none() -> None:
    clocks = Clocks()
    clocks.ask(["s1"], 0)
    clocks.look(ANSWER_NS)
    assert clocks.last is None


def test_an_answer_that_comes_too_late_is_of_no_interest() -> None:
    clocks = Clocks()
    (asked,) = clocks.ask(["s1"], 0)
    assert isinstance(asked, Send)
    assert isinstance(asked.message, Ask)
    clocks.look(ANSWER_NS)
    assert not clocks.hear(asked.message.request, '{"clocks": {"1": [2, 3]}}', 1)
    assert clocks.last is None


def test_one_tick_in_a_short_time_does_not_make_a_fast_job() -> None:
    clocks = Clocks()
    reading(clocks, 7, 0)
    reading(clocks, 8, 60_000_000)
    assert clocks.rate(1) == 0
    reading(clocks, 107, SECOND_NS)
    assert clocks.rate(1) == pytest.approx(99)
    assert clocks.rate(2) == 0


def test_a_job_that_is_new_is_measured_from_when_it_was_seen() -> None:
    clocks = Clocks()
    for now_ns, told in [(0, {}), (SECOND_NS, {"5": [0, 10]}), (2 * SECOND_NS, {"5": [0, 61]})]:
        (asked,) = clocks.ask(["s1"], now_ns)
        assert isinstance(asked, Send)
        assert isinstance(asked.message, Ask)
        clocks.hear(asked.message.request, json.dumps({"clocks": told}), now_ns)
    assert clocks.rate(5) == pytest.approx(50)


@given(st.lists(st.integers(1, 2 * SECOND_NS), max_size=100))
def test_old_readings_are_forgotten(pauses: list[int]) -> None:
    clocks, now_ns = Clocks(), 0
    for pause_ns in pauses:
        now_ns += pause_ns
        reading(clocks, 1, now_ns)
        assert clocks.span_ns <= 3 * SECOND_NS
        assert len(clocks._kept) <= KEPT

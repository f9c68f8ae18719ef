"""When a shard was away, read off the notes of its probe."""

from __future__ import annotations

from resilient_ps.chaos.faults.silences import Notes, Span, longest_silence, outages_of
from resilient_ps.chaos.result import Outage


def _every(step_s: float, from_s: float, to_s: float) -> list[float]:
    count = round((to_s - from_s) / step_s)
    return [round(from_s + place * step_s, 6) for place in range(count + 1)]


def test_a_gap_between_answers_is_an_outage_of_that_shard() -> None:
    notes = {
        0: Notes([*_every(0.05, 0, 3), *_every(0.05, 4.5, 10)]),
        1: Notes(_every(0.05, 0, 10)),
    }
    assert outages_of(notes, 0.0, 10.0) == (Outage(0, 3.0, 4.5),)


def test_a_hiccup_is_none() -> None:
    assert outages_of({0: Notes([1.0, 1.2, 1.4])}, 1.0, 1.5) == ()


def test_a_shard_that_never_answers_is_away_all_the_time() -> None:
    assert outages_of({0: Notes([])}, 0.0, 7.0) == (Outage(0, 0.0, 7.0),)


def test_what_was_before_and_behind_does_not_count() -> None:
    notes = {0: Notes([-5.0, 1.0, 1.1, 9.0])}
    assert outages_of(notes, 1.0, 1.2) == ()


def test_waiting_for_a_tick_is_put_down_to_the_shard_that_was_away() -> None:
    away = Notes([*_every(0.05, 0, 3), *_every(0.05, 5, 10)])
    ticking = Notes([*_every(0.05, 0, 3.1), *_every(0.05, 5.1, 10)], [Span(3.1, 5.05)])
    assert outages_of({0: away, 1: ticking}, 0.0, 10.0) == (Outage(0, 3.0, 5.0),)


def test_waiting_for_a_tick_counts_where_no_other_shard_was_away() -> None:
    ticking = Notes([*_every(0.05, 0, 3), *_every(0.05, 5, 10)], [Span(3.0, 4.98)])
    steady = Notes(_every(0.05, 0, 10))
    assert outages_of({0: ticking, 1: steady}, 0.0, 10.0) == (Outage(0, 3.0, 5.0),)


def test_the_longest_silence_may_be_at_an_end() -> None:
    assert longest_silence([2.0, 3.0], 0.0, 4.0) == 2.0
    assert longest_silence([2.0, 3.0], 1.5, 7.0) == 4.0

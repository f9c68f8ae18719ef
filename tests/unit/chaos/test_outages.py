"""Outages: what is read off the notes of a prober, and which bars are reached."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from resilient_ps.chaos.faults.figures import percentile
from resilient_ps.chaos.live.outages import Bar, Row, rows_for
from resilient_ps.chaos.live.prober import Note, Prober, key_of
from resilient_ps.chaos.live.straight import stale
from resilient_ps.hashing import shard_of
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import PartAnswer, Status

NOBODY: Any = None  # a prober that is not run needs no worker


def prober(*notes: tuple[float, float]) -> Prober:
    return Prober(0, 1, NOBODY, NOBODY, deque(Note(*note) for note in notes))


def test_what_was_under_way_at_the_fault_does_not_count_as_its_end() -> None:
    seen = prober((1.0, 1.1), (1.9, 2.05), (2.1, 4.5), (4.6, 4.7))
    assert seen.first_behind(2.0) == pytest.approx(2.5)
    assert seen.first_behind(5.0) is None


def test_a_stall_counts_as_far_as_it_lies_in_the_interval() -> None:
    seen = prober((0.0, 1.0), (1.0, 4.0), (4.0, 4.5))
    assert seen.longest_stall(0.5, 5.0) == pytest.approx(3.0)
    assert seen.longest_stall(2.0, 5.0) == pytest.approx(2.0)
    assert seen.longest_stall(4.6, 5.6) == pytest.approx(1.0)  # nothing at all in between


def test_the_key_of_a_shard_belongs_to_it() -> None:
    assert [shard_of(key_of(shard, 7), 7) for shard in range(7)] == list(range(7))


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([3.0], 1) == 3.0


@pytest.mark.parametrize(
    ("outages_s", "wrongs", "holds"),
    [
        ((), 0, None),
        ((0.1, 0.7, 3.4), 0, True),
        ((0.1, 0.9, 3.4), 0, False),  # the median
        ((0.1, 0.7, 3.6), 0, False),  # the longest
        ((0.1, 0.7, 3.4), 1, False),
    ],
)
def test_a_bar_is_reached_when_all_of_it_is(
    outages_s: tuple[float, ...], wrongs: int, holds: bool | None
) -> None:
    row = Row("fault", Bar(median_s=0.8, longest_s=3.5, wrongs="failovers"))
    for seconds in outages_s:
        row.add(seconds)
    row.wrongs = wrongs
    assert row.holds is holds
    assert row.as_json()["holds"] is holds


def test_the_longest_that_a_kill_may_take_depends_on_the_lease() -> None:
    assert rows_for(2)["kill"].bar.longest_s == 3.5
    assert rows_for(5)["kill"].bar.longest_s == 6.5


def test_only_what_was_accepted_in_an_ended_epoch_is_stale() -> None:
    led = {0: Epoch(1, 4), 1: Epoch(1, 2)}

    def answer(shard: int, counter: int, status: Status = Status.OK) -> PartAnswer:
        return PartAnswer(shard, status, Position(Epoch(1, counter), 9))

    refused = [answer(0, 4, Status.NOT_OWNER), answer(1, 2, Status.FENCED)]
    assert stale([*refused, answer(0, 5), answer(1, 3)], led) == 0
    assert stale([*refused, answer(0, 4), answer(1, 1)], led) == 2

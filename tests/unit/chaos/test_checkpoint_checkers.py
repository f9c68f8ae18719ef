"""Checkers of checkpoints and rollbacks, on contents and histories written by hand."""

from __future__ import annotations

import pytest
from histories import note, why

from resilient_ps.chaos.checkers.cuts import RankStand, check_content, check_ranks, check_slots
from resilient_ps.chaos.checkers.incarnations import (
    Configured,
    Rollback,
    check_all_told,
    check_incarnations,
    check_told,
    rollbacks_of,
)
from resilient_ps.chaos.checkers.published import (
    Publication,
    Sweep,
    check_published,
    check_swept,
)
from resilient_ps.chaos.history import History
from resilient_ps.ids import Epoch, Position

SETTLE_NS = 10


# -- what a checkpoint holds


def test_a_content_that_is_exactly_due_holds() -> None:
    held = {1: {4: -7, 9: 7}, 2: {0: 1}}
    assert check_content({"c": (held, held)}, balanced=1).outcome == "true"


def test_a_missing_a_foreign_and_a_doubled_row_are_named() -> None:
    due = {1: {4: 1, 5: 1}}
    assert "key 5 holds 0, not 1" in why(check_content({"c": ({1: {4: 1}}, due)}))
    assert "key 6 holds 1, not 0" in why(check_content({"c": ({1: {4: 1, 5: 1, 6: 1}}, due)}))
    assert "key 4 holds 2, not 1" in why(check_content({"c": ({1: {4: 2, 5: 1}}, due)}))
    assert "key 5 holds 0, not 1" in why(check_content({"c": ({}, due)}))


def test_half_a_transfer_changes_the_total() -> None:
    half = {1: {4: -7}}
    assert "the total of table 1 is -7" in why(check_content({"c": (half, half)}, balanced=1))


def two_clocks(process: str = "0.1") -> History:
    """Slot 1 in clock 1 and slot 2 in clock 2, both ended."""
    history = History()
    for clock in (1, 2):
        note(history, process, "push", clock, 10 * clock, 10 * clock + 1, keys=(clock,))
        note(history, process, "tick", clock, 10 * clock + 2, 10 * clock + 3)
    return history


@pytest.mark.parametrize(
    ("cut", "held", "verdict"),
    [
        (0, {}, "true"),
        (1, {1: 1}, "true"),
        (2, {1: 1, 2: 1}, "true"),
        (1, {}, "false"),  # too little
        (1, {1: 1, 2: 1}, "false"),  # too much
        (1, {1: 2}, "false"),  # twice
        (2, {1: 1, 2: 1, 3: 1}, "false"),  # of nobody
    ],
)
def test_slots_of_clocks_up_to_the_cut_are_in_a_checkpoint_and_no_others(
    cut: int, held: dict[int, int], verdict: str
) -> None:
    assert check_slots(two_clocks(), {"c": (cut, held)}).outcome == verdict


@pytest.mark.parametrize("held", [{1: 1}, {1: 1, 2: 1}])
def test_a_clock_that_a_rank_left_behind_may_be_in_it_or_not(held: dict[int, int]) -> None:
    history = History()
    note(history, "0.1", "push", 1, 1, 2, keys=(1,))
    note(history, "0.1", "tick", 1, 3, 4)
    note(history, "0.1", "push", 2, 5, 6, keys=(2,))
    assert check_slots(history, {"c": (2, held)}).outcome == "true"


def test_ranks_stand_at_the_cut_on_all_shards_alike() -> None:
    at_three, left = RankStand(3, True, b"30"), RankStand(1, False, b"10")
    good = {0: {0: at_three, 1: left}, 1: {0: at_three, 1: left}}
    assert check_ranks({"c": (3, good)}).outcome == "true"
    assert "rank 0 stands at 3" in why(check_ranks({"c": (2, good)}))
    other = {0: {0: at_three}, 1: {0: RankStand(3, True, b"20")}}
    assert "shard 1 says" in why(check_ranks({"c": (3, other)}))


# -- what is published, and what is deleted


def test_a_checkpoint_must_be_whole_when_it_is_published_and_stay_so() -> None:
    whole = Publication(1, "1-2-aa")
    assert check_published([whole], {"1-2-aa": ""}).outcome == "true"
    assert "x is missing" in why(check_published([Publication(1, "1-2-aa", "x is missing")]))
    assert "y is missing" in why(check_published([whole], {"1-2-aa": "y is missing"}))
    assert "twice" in why(check_published([whole, whole]))
    assert check_published([whole, whole._replace(etcd=1)]).outcome == "true"
    assert check_published([]).outcome == "unknown"


def test_what_a_fault_has_damaged_is_excused() -> None:
    damaged = Publication(1, "1-2-aa", "x is not what was written", excused=True)
    assert check_published([damaged]).outcome == "true"


def test_what_is_needed_must_not_be_deleted() -> None:
    assert check_swept([Sweep(1, "s1", 3)]).outcome == "true"
    assert check_swept([]).outcome == "true"
    sweep = Sweep(1, "s1", 3, (("a/b", "checkpoint 1-2-aa"),))
    assert "s1 deleted a/b" in why(check_swept([sweep]))


# -- incarnations


def test_incarnations_grow_also_when_etcd_is_lost() -> None:
    first, second = Configured(1, 1, 0, True), Configured(2, 2, 0, True)
    assert check_incarnations([first, first, second]).outcome == "true"
    assert check_incarnations([first, Configured(2, 2, 1, True)]).outcome == "true"
    assert "it was 2 before" in why(check_incarnations([second, Configured(3, 1, 1, True)]))
    reused = why(check_incarnations([second, Configured(3, 2, 1, True)]))
    assert "used before etcd was lost" in reused
    assert "no marker" in why(check_incarnations([Configured(1, 1, 0, False)]))


def test_a_rollback_begins_when_the_incarnation_changes() -> None:
    seen = [Configured(1, 1, 0, True), Configured(5, 1, 0, True), Configured(9, 2, 0, True)]
    assert rollbacks_of(seen) == [Rollback(9, 2)]


LIVES = {"0.1": 1, "0.2@2": 2}


def told(history: History) -> str:
    verdict = check_told(history, [Rollback(100, 2)], LIVES, settle_ns=SETTLE_NS)
    return "" if verdict.outcome == "true" else why(verdict)


def test_no_call_of_an_incarnation_that_has_ended_succeeds() -> None:
    history = History()
    note(history, "0.1", "push", 3, 105, 108)  # a server that has not heard of it yet
    assert told(history) == ""
    note(history, "0.2@2", "push", 1, 150, 151)
    assert told(history) == ""
    note(history, "0.1", "push", 3, 120, 121, outcome="unknown")
    assert told(history) == ""
    note(history, "0.1", "push", 3, 120, 121)
    assert "a push of 0.1 succeeded" in told(history)


def test_nobody_takes_answers_of_an_incarnation_that_they_were_not_told_of() -> None:
    history = History()
    old, new = Position(Epoch(1, 4), 9), Position(Epoch(2, 1), 3)
    history.saw("0.1", 50, (old, old), 1)
    history.saw("0.2@2", 120, (new, old), 2)  # of the other shard nothing was seen since
    assert told(history) == ""
    history.saw("0.1", 110, (old, new), 1)
    assert "shard 1 in incarnation 2 while it was in 1" in told(history)


def test_everybody_is_in_the_clusters_incarnation_in_the_end() -> None:
    assert check_all_told({"0.2@2": 2}, 2).outcome == "true"
    assert "has ended in incarnation 1" in why(check_all_told({"0.1": 1}, 2))

"""Exactly once, on histories written by hand: what a slot may hold in the end."""

from __future__ import annotations

import pytest
from histories import note, why

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.history import History, Outcome
from resilient_ps.consistency import ASP, BSP, SSP


def slot_history(*outcomes: Outcome | None) -> History:
    """Pushes to slots 0, 1, ... of clock 1, which is not ended; None: never completed."""
    history = History()
    for slot, outcome in enumerate(outcomes):
        ended_ns = None if outcome is None else 1
        note(history, "0.1", "push", 1, 0, ended_ns, keys=(slot,), outcome=outcome or "ok")
    return history


@pytest.mark.parametrize(
    ("outcome", "held", "verdict"),
    [
        ("ok", 1, "true"),
        ("ok", 0, "false"),
        ("ok", 2, "false"),
        ("unknown", 0, "true"),
        ("unknown", 1, "true"),
        ("unknown", 2, "false"),
        (None, 0, "true"),
        (None, 1, "true"),
        (None, 2, "false"),
        ("fail", 0, "true"),
        ("fail", 1, "false"),
    ],
)
def test_what_a_slot_may_hold(outcome: Outcome | None, held: int, verdict: str) -> None:
    history = slot_history("ok", outcome)
    assert check_one_hot(history, {0: 1, 1: held}).outcome == verdict
    assert check_one_hot(history, {0: 1, 1: held}, SSP(1)).outcome == verdict


def test_a_repeat_that_was_acknowledged_makes_a_slot_due() -> None:
    history = slot_history(None)
    note(history, "0.2", "push", 1, 5, 6, keys=(0,))
    assert check_one_hot(history, {0: 0}).outcome == "false"
    assert check_one_hot(history, {0: 1}).outcome == "true"


def test_a_slot_that_nobody_pushed_to_holds_nothing() -> None:
    assert check_one_hot(slot_history("ok"), {0: 1, 9: 1}).outcome == "false"


def test_a_slot_that_was_not_read_counts_as_empty() -> None:
    assert check_one_hot(slot_history("ok"), {}).outcome == "false"


def test_without_pushes_nothing_is_told() -> None:
    assert check_one_hot(History(), {}).outcome == "unknown"


def test_a_push_of_unknown_outcome_is_due_when_its_clock_was_closed() -> None:
    history = slot_history("unknown")
    note(history, "0.1", "tick", 1, 5, 6)
    verdict = check_one_hot(history, {0: 0}, ASP())
    assert "slot 0 of rank 0, clock 1 holds 0, allowed is 1" in why(verdict)
    assert check_one_hot(history, {0: 1}, ASP()).outcome == "true"


def test_a_push_is_due_when_a_takeover_finds_its_clock_closed() -> None:
    history = slot_history(None)
    note(history, "0.1", "tick", 1, 5)
    note(history, "0.2", "open", 0, 8, 9, values=(1,))
    assert check_one_hot(history, {0: 0}, ASP()).outcome == "false"
    assert check_one_hot(history, {0: 1}, ASP()).outcome == "true"


# -- BSP: a push lasts with its clock's tick


@pytest.mark.parametrize(("held", "verdict"), [(0, "true"), (1, "false"), (2, "false")])
def test_bsp_an_acknowledged_push_of_a_clock_that_nobody_ended_is_not_there(
    held: int, verdict: str
) -> None:
    assert check_one_hot(slot_history("ok"), {0: held}, BSP()).outcome == verdict


@pytest.mark.parametrize(("held", "verdict"), [(0, "false"), (1, "true"), (2, "false")])
def test_bsp_a_push_of_a_closed_clock_is_there(held: int, verdict: str) -> None:
    history = slot_history("ok")
    note(history, "0.1", "tick", 1, 5, 6)
    assert check_one_hot(history, {0: held}, BSP()).outcome == verdict


def test_bsp_a_clock_whose_tick_is_undecided_is_there_as_a_whole_or_not_at_all() -> None:
    history = slot_history("ok", "ok")
    note(history, "0.1", "tick", 1, 5)
    assert check_one_hot(history, {0: 0, 1: 0}, BSP()).outcome == "true"
    assert check_one_hot(history, {0: 1, 1: 1}, BSP()).outcome == "true"
    verdict = check_one_hot(history, {0: 1, 1: 0}, BSP())
    assert "of rank 0, clock 1 only a part was applied" in why(verdict)


def test_bsp_a_clock_that_a_takeover_found_open_is_the_successors() -> None:
    history = slot_history("ok")
    note(history, "0.1", "tick", 1, 5)
    note(history, "0.2", "open", 0, 8, 9, values=(0,))
    assert check_one_hot(history, {0: 1}, BSP()).outcome == "false"
    note(history, "0.2", "push", 1, 10, 11, keys=(0,))
    note(history, "0.2", "tick", 1, 12, 13)
    assert check_one_hot(history, {0: 1}, BSP()).outcome == "true"


def test_bsp_before_the_others_have_ended_their_clocks_a_closed_one_may_be_held_back() -> None:
    history = slot_history("ok")
    note(history, "0.1", "tick", 1, 5, 6)
    outcomes = [
        check_one_hot(history, {0: held}, BSP(), at_rest=False).outcome for held in range(3)
    ]
    assert outcomes == ["true", "true", "false"]
    assert check_one_hot(history, {0: 0}, SSP(1), at_rest=False).outcome == "false"

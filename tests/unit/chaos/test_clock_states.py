"""Ticks whose answers were lost: what the next takeover says about them."""

from __future__ import annotations

import pytest
from histories import note, why

from resilient_ps.chaos.checkers.clocks import clocks_of
from resilient_ps.chaos.checkers.sessions import check_clocks
from resilient_ps.chaos.checkers.totals import check_totals
from resilient_ps.chaos.history import History, Outcome
from resilient_ps.consistency import ASP, BSP, Consistency


def test_a_clock_that_nobody_ended_is_void() -> None:
    assert clocks_of(History()).state(0, 1) == "void"


def test_an_acknowledged_tick_closes_its_clock_and_the_process_s_earlier_ones() -> None:
    history = History()
    note(history, "0.1", "tick", 1, 1, 2, outcome="unknown")
    note(history, "0.1", "tick", 2, 3, 4)
    assert clocks_of(history).of(0, "closed") == [1, 2]
    assert clocks_of(history).of(1, "closed") == []


@pytest.mark.parametrize(("ticked", "state"), [(0, "void"), (1, "closed"), (2, "closed")])
def test_the_next_takeover_decides(ticked: int, state: str) -> None:
    history = History()
    note(history, "0.1", "tick", 1, 5)
    assert clocks_of(history).state(0, 1) == "undecided"
    note(history, "1.1", "open", 0, 6, 7, values=(9,))
    note(history, "0.2", "open", 0, 6)
    assert clocks_of(history).state(0, 1) == "undecided"
    note(history, "0.3", "open", 0, 8, 9, values=(ticked,))
    note(history, "0.4", "open", 0, 10, 11, values=(5,))
    assert clocks_of(history).state(0, 1) == state


def test_a_takeover_that_was_over_before_the_tick_began_decides_nothing() -> None:
    history = History()
    note(history, "0.1", "open", 0, 1, 2, values=(0,))
    note(history, "0.1", "tick", 1, 5)
    assert clocks_of(history).state(0, 1) == "undecided"


def test_a_rank_that_is_made_to_leave_is_decided_too() -> None:
    history = History()
    note(history, "0.1", "tick", 4, 5)
    note(history, "0.leave", "leave", 0, 8, 9, values=(3,))
    assert clocks_of(history).state(0, 4) == "void"


def test_a_refused_tick_closes_nothing() -> None:
    history = History()
    note(history, "0.1", "tick", 1, 5, 6, outcome="fail")
    assert clocks_of(history).state(0, 1) == "void"


def test_no_process_begins_behind_the_last_complete_clock() -> None:
    history = History()
    note(history, "0.1", "open", 0, 0, 1, values=(0,))
    note(history, "0.1", "tick", 1, 2, 3)
    note(history, "0.2", "open", 0, 4, 5, values=(1,))
    assert check_clocks(history).outcome == "true"
    note(history, "0.3", "open", 0, 6, 7, values=(0,))
    text = "0.3 began behind clock 0 of rank 0, of which clock 1 was complete"
    assert text in why(check_clocks(history))


def test_a_tick_that_ends_while_a_takeover_is_under_way_may_be_missed() -> None:
    history = History()
    note(history, "0.1", "tick", 1, 2, 6)
    note(history, "0.2", "open", 0, 4, 7, values=(0,))
    assert check_clocks(history).outcome == "true"


# -- totals


def counted(mode: Consistency, held: int, outcome: Outcome = "unknown") -> str:
    """Clock 1 is closed, clock 2's tick undecided, of clock 3 something was pushed."""
    history = History()
    for clock in (1, 2, 3):
        note(history, "0.1", "push", clock, 10 * clock, 10 * clock + 1, keys=(0,), outcome=outcome)
    note(history, "0.1", "tick", 1, 15, 16)
    note(history, "0.1", "tick", 2, 25)
    return check_totals(history, [(0, held)], mode).outcome


def test_every_complete_clock_is_counted_once_and_open_ones_may_be() -> None:
    assert [counted(ASP(), held) for held in range(5)] == ["false", *["true"] * 3, "false"]


def test_clocks_whose_push_was_acknowledged_are_counted_but_not_under_bsp() -> None:
    assert [counted(ASP(), held, "ok") for held in (2, 3, 4)] == ["false", "true", "false"]
    assert counted(BSP(), 1, "ok") == "true"


def test_of_an_open_clock_that_was_pushed_in_part_rows_may_differ() -> None:
    history = History()
    for at, clock in ((10, 1), (12, 1), (20, 2)):
        note(history, "0.1", "push", clock, at, at + 1, keys=(0,))
    note(history, "0.1", "push", 2, 22, keys=(0,), outcome="unknown")
    note(history, "0.1", "tick", 1, 15, 16)
    verdicts = [check_totals(history, [(0, held)], ASP()).outcome for held in range(4)]
    assert verdicts == ["false", "true", "true", "false"]


def test_bsp_counts_no_clock_that_nobody_ended() -> None:
    assert [counted(BSP(), held) for held in range(4)] == ["false", "true", "true", "false"]


def test_without_rows_nothing_is_told() -> None:
    assert check_totals(History(), [], ASP()).outcome == "unknown"

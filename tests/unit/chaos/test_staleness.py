"""The bounds of BSP, SSP and ASP, on histories written by hand."""

from __future__ import annotations

import pytest
from histories import note, pull, pushes, why

from resilient_ps.chaos.checkers.staleness import check_staleness, lives_of
from resilient_ps.chaos.checkers.verdict import HOLDS
from resilient_ps.chaos.history import History
from resilient_ps.consistency import ASP, BSP, SSP, Consistency


def test_a_history_without_pulls_tells_nothing() -> None:
    history = History()
    pushes(history, 0, 3)
    assert check_staleness(history, SSP(1)).outcome == "unknown"


@pytest.mark.parametrize(
    ("mode", "seen", "missing"),
    [
        (BSP(), (3, 3), None),
        (BSP(), (3, 2), "saw 2 clocks of rank 1, must contain 3"),
        (BSP(), (3, 4), "saw 4 clocks of rank 1, must contain no more than 3"),
        (SSP(1), (3, 2), None),
        (SSP(1), (3, 5), None),
        (SSP(1), (3, 1), "saw 1 clocks of rank 1, must contain 2"),
        (SSP(0), (3, 2), "saw 2 clocks of rank 1, must contain 3"),
        (ASP(), (3, 0), None),
    ],
)
def test_what_a_pull_at_clock_4_must_contain(
    mode: Consistency, seen: tuple[int, int], missing: str | None
) -> None:
    history = History()
    pull(history, 4, seen, at_ns=100)
    if missing is None:
        assert check_staleness(history, mode) == HOLDS
    else:
        assert missing in why(check_staleness(history, mode))


def test_each_of_several_rows_of_a_rank_is_judged() -> None:
    history = History()
    pull(history, 4, (3, 3, 2), at_ns=100, ranks=(0, 1, 1))
    assert "saw 2 clocks of rank 1" in why(check_staleness(history, BSP()))


def test_ranks_that_joined_or_left_are_due_for_their_clocks_only() -> None:
    history = History()
    pull(history, 6, (5, 2), at_ns=100)
    assert check_staleness(history, BSP(), {1: range(4, 20)}) == HOLDS
    assert check_staleness(history, BSP(), {1: range(1, 3)}) == HOLDS
    assert check_staleness(history, BSP(), {1: [2, 5]}) == HOLDS
    assert check_staleness(history, BSP(), {1: range(3, 20)}).outcome == "false"
    assert check_staleness(history, BSP(), {1: [2, 6]}).outcome == "false"


def test_lives_are_the_clocks_that_a_rank_completed() -> None:
    history = History()
    for clock in (3, 4):
        note(history, "1.1", "tick", clock, clock, clock + 1)
    note(history, "1.1", "tick", 5, 8)
    note(history, "1.leave", "leave", 0, 9, 10, values=(4,))
    note(history, "1.2", "tick", 8, 11, 12)
    note(history, "1.2", "tick", 9, 13)
    pushes(history, 0, 2)
    assert lives_of(history) == {0: [], 1: [3, 4, 8]}
    assert lives_of(history, "undecided") == {0: [], 1: [9]}


def test_bsp_a_clock_whose_tick_is_undecided_may_be_seen() -> None:
    history = History()
    pull(history, 4, (3, 3), at_ns=100)
    lives = {0: [1, 2, 3], 1: [1, 2]}
    assert check_staleness(history, BSP(), lives, {1: [3, 4]}) == HOLDS
    assert check_staleness(history, BSP(), lives, {1: [4]}).outcome == "false"

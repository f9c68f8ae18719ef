"""The checkers themselves, on histories written by hand: each violation is found and named."""

from __future__ import annotations

import pytest

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.staleness import check_staleness
from resilient_ps.chaos.checkers.verdict import HOLDS, REASONS_MAX, judge
from resilient_ps.chaos.checkers.whole_clock import check_whole_clocks
from resilient_ps.chaos.history import History, Outcome
from resilient_ps.consistency import ASP, BSP, SSP, Consistency


def pushes(history: History, rank: int, clocks: int, *, start_ns: int = 0) -> None:
    """Rank's pushes of its clocks, one nanosecond each, acknowledged."""
    for clock in range(1, clocks + 1):
        at_ns = start_ns + 2 * clock
        number = history.invoke(f"{rank}.1", "push", rank, clock, at_ns, (rank,))
        history.complete(number, at_ns + 1)


def pull(
    history: History, clock: int, seen: tuple[int, ...], *, at_ns: int, process: str = "0.1"
) -> None:
    rank = int(process.split(".")[0])
    number = history.invoke(process, "pull", rank, clock, at_ns, tuple(range(len(seen))))
    history.complete(number, at_ns + 1, "ok", seen)


def reasons(history: History, mode: Consistency) -> str:
    verdict = check_staleness(history, mode)
    assert verdict.outcome == "false"
    return "; ".join(verdict.reasons)


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
        (ASP(), (2, 0), "saw 2 of its own 3 acknowledged pushes"),
        (SSP(5), (3, 6), "saw 6 clocks of rank 1, which had begun 5"),
    ],
)
def test_what_a_pull_at_clock_4_must_contain(
    mode: Consistency, seen: tuple[int, int], missing: str | None
) -> None:
    history = History()
    pushes(history, 0, 3)
    pushes(history, 1, 5)
    pull(history, 4, seen, at_ns=100)
    if missing is None:
        assert check_staleness(history, mode) == HOLDS
    else:
        assert missing in reasons(history, mode)


def test_a_process_sees_no_less_than_before_and_another_one_may() -> None:
    history = History()
    pushes(history, 1, 5)
    pull(history, 1, (0, 5), at_ns=100)
    pull(history, 1, (0, 4), at_ns=200, process="0.2")
    assert check_staleness(history, ASP()) == HOLDS
    pull(history, 1, (0, 4), at_ns=300)
    assert "saw 4 clocks of rank 1 after it had seen 5" in reasons(history, ASP())


def test_pulls_that_were_under_way_at_once_are_not_compared() -> None:
    history = History()
    pushes(history, 1, 5)
    first = history.invoke("0.1", "pull", 0, 1, 100, (0, 1))
    second = history.invoke("0.1", "pull", 0, 1, 101, (0, 1))
    history.complete(second, 150, "ok", (0, 4))
    history.complete(first, 160, "ok", (0, 5))
    assert check_staleness(history, ASP()) == HOLDS


def test_ranks_that_joined_or_left_are_due_for_their_clocks_only() -> None:
    history = History()
    pushes(history, 0, 5)
    pushes(history, 1, 4)
    pull(history, 6, (5, 2), at_ns=100)
    lives = {1: range(4, 20)}
    assert check_staleness(history, BSP(), lives) == HOLDS
    assert check_staleness(history, BSP(), {1: range(1, 3)}) == HOLDS
    assert check_staleness(history, BSP(), {1: range(3, 20)}).outcome == "false"


def slot_history(*outcomes: Outcome | None) -> History:
    """Pushes to slots 0, 1, ...; None: never completed."""
    history = History()
    for slot, outcome in enumerate(outcomes):
        number = history.invoke("0.1", "push", 0, 1, 0, (slot,))
        if outcome is not None:
            history.complete(number, 1, outcome)
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
        (None, 1, "true"),
        (None, 2, "false"),
        ("fail", 1, "false"),
    ],
)
def test_what_a_slot_may_hold(outcome: Outcome | None, held: int, verdict: str) -> None:
    history = slot_history("ok", outcome)
    assert check_one_hot(history, {0: 1, 1: held}).outcome == verdict


def test_a_repeat_that_was_acknowledged_makes_a_slot_due() -> None:
    history = slot_history(None)
    history.complete(history.invoke("0.2", "push", 0, 1, 5, (0,)), 6)
    assert check_one_hot(history, {0: 0}).outcome == "false"
    assert check_one_hot(history, {0: 1}).outcome == "true"


def test_a_slot_that_nobody_pushed_to_holds_nothing() -> None:
    assert check_one_hot(slot_history("ok"), {0: 1, 9: 1}).outcome == "false"


def test_a_slot_that_was_not_read_counts_as_empty() -> None:
    assert check_one_hot(slot_history("ok"), {}).outcome == "false"


def test_without_pushes_nothing_is_told() -> None:
    assert check_one_hot(History(), {}).outcome == "unknown"


def test_a_clock_is_the_work_of_one_process() -> None:
    limits = {"a": 2, "b": 2}
    assert check_whole_clocks({"a": [1, 1], "b": [2, 2]}, limits).outcome == "true"
    mixed = check_whole_clocks({"a": [1, 2], "b": [2, 2]}, limits)
    assert mixed.reasons == ("a is a mixture: [1, 2]",)
    assert check_whole_clocks({"a": [0, 0]}, limits).outcome == "false"
    assert check_whole_clocks({"a": [3, 3]}, limits).outcome == "false"
    assert check_whole_clocks({}, {}).outcome == "unknown"


def test_a_verdict_names_the_first_violations_and_counts_the_others() -> None:
    verdict = judge((f"violation {i}" for i in range(50)), checked=50, what="things")
    assert len(verdict.reasons) == REASONS_MAX + 1
    assert verdict.reasons[-1] == "and 30 more"

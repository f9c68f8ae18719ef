"""What one worker sees in the course of time, on histories written by hand."""

from __future__ import annotations

from histories import note, pull, pushes, why

from resilient_ps.chaos.checkers.sessions import check_sessions, check_views
from resilient_ps.chaos.checkers.verdict import HOLDS
from resilient_ps.chaos.history import History
from resilient_ps.consistency import ASP, BSP, SSP
from resilient_ps.ids import Epoch, Position


def test_a_pull_sees_its_own_rank_s_acknowledged_pushes() -> None:
    history = History()
    pushes(history, 0, 3)
    pushes(history, 1, 5)
    pull(history, 4, (3, 0), at_ns=100)
    assert check_sessions(history, ASP()) == HOLDS
    pull(history, 4, (2, 0), at_ns=100, process="0.2")
    assert "0.2 at clock 4 saw 2 of its own 3" in why(check_sessions(history, ASP()))
    assert check_sessions(history, BSP()) == HOLDS


def test_every_row_of_the_own_rank_counts() -> None:
    history = History()
    pushes(history, 0, 3)
    pull(history, 4, (3, 2), at_ns=100, ranks=(0, 0))
    assert "saw 2 of its own 3" in why(check_sessions(history, ASP()))


def test_a_push_that_is_acknowledged_later_or_never_is_not_due() -> None:
    history = History()
    note(history, "0.1", "push", 1, 1, 200, keys=(0,))
    note(history, "0.1", "push", 2, 2, keys=(0,))
    pull(history, 1, (0,), at_ns=100)
    assert check_sessions(history, ASP()) == HOLDS


def test_nobody_sees_more_than_a_rank_has_begun_to_push() -> None:
    history = History()
    pushes(history, 1, 5)
    pull(history, 4, (0, 5), at_ns=100)
    assert check_sessions(history, SSP(5)) == HOLDS
    pull(history, 4, (0, 6), at_ns=102)
    text = "saw 6 clocks of rank 1, which had begun 5"
    assert text in why(check_sessions(history, SSP(5)))


def test_a_process_sees_no_less_than_before_and_another_one_may() -> None:
    history = History()
    pushes(history, 1, 5)
    pull(history, 1, (0, 5), at_ns=100)
    pull(history, 1, (0, 4), at_ns=200, process="0.2")
    assert check_sessions(history, ASP()) == HOLDS
    pull(history, 1, (0, 4), at_ns=300)
    assert "saw 4 clocks of rank 1 after it had seen 5" in why(check_sessions(history, ASP()))


def test_pulls_that_were_under_way_at_once_are_not_compared() -> None:
    history = History()
    pushes(history, 1, 5)
    note(history, "0.1", "pull", 1, 100, 160, keys=(0, 1), values=(0, 5))
    note(history, "0.1", "pull", 1, 101, 150, keys=(0, 1), values=(0, 4))
    assert check_sessions(history, ASP()) == HOLDS


def test_pulls_of_other_rows_are_not_compared() -> None:
    history = History()
    pushes(history, 1, 5)
    pull(history, 1, (0, 5), at_ns=100)
    pull(history, 1, (4,), at_ns=200, ranks=(1,))
    assert check_sessions(history, ASP()) == HOLDS


def test_a_history_without_pulls_tells_nothing() -> None:
    assert check_sessions(History(), ASP()).outcome == "unknown"


# -- positions


def view(*positions: tuple[int, int]) -> tuple[Position, ...]:
    """Of shards 0, 1, ...: (epoch's counter, lsn)."""
    return tuple(Position(Epoch(1, counter), lsn) for counter, lsn in positions)


def test_positions_grow_by_epoch_and_lsn() -> None:
    history = History()
    history.saw("0.1", 1, view((1, 5), (1, 7)))
    history.saw("0.1", 2, view((2, 5), (1, 7)))
    history.saw("0.2", 3, view((1, 1), (1, 1)))
    history.saw("0.1", 4, view((2, 6), (3, 8)))
    assert check_views(history) == HOLDS


def test_a_process_that_sees_a_shard_go_back_convicts_it() -> None:
    history = History()
    history.saw("0.1", 1, view((2, 5), (1, 7)))
    history.saw("0.1", 2, view((2, 5), (1, 6)))
    assert "saw shard 1 at epoch 1.1 lsn 6 after epoch 1.1 lsn 7" in why(check_views(history))


def test_a_lower_epoch_is_a_step_back_whatever_its_lsn() -> None:
    history = History()
    history.saw("0.1", 1, view((2, 5)))
    history.saw("0.1", 2, view((1, 9)))
    history.saw("0.1", 3, view((1, 10)))
    assert len(check_views(history).reasons) == 2


def test_without_positions_nothing_is_told() -> None:
    assert check_views(History()).outcome == "unknown"

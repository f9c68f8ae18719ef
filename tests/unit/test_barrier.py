"""What BSP holds back: order, forgetting, and how much of it there may be."""

from __future__ import annotations

import numpy as np

from resilient_ps.barrier import Barrier, Update


def update(n: int, size: int = 1) -> Update:
    return Update(n, 1, np.arange(size, dtype=np.uint64), np.ones(size, np.float64))


def test_a_clock_is_handed_out_in_the_order_of_ranks_and_numbers() -> None:
    barrier = Barrier()
    for rank, n in [(2, 1), (0, 1), (2, 2), (10, 1), (0, 3)]:
        barrier.hold(rank, 1, update(n * 100 + rank))
    assert [held.n for held in barrier.take(1)] == [100, 300, 102, 202, 110]
    assert barrier.applied == 1


def test_a_clock_is_handed_out_once_and_others_stay() -> None:
    barrier = Barrier()
    barrier.hold(0, 1, update(1))
    barrier.hold(0, 2, update(2))
    assert len(barrier.take(1)) == 1
    assert barrier.take(1) == []
    assert len(barrier.take(2)) == 1


def test_forgetting_a_rank_leaves_the_others_and_its_later_clocks() -> None:
    barrier = Barrier()
    barrier.hold(0, 1, update(1))
    barrier.hold(1, 1, update(2))
    barrier.hold(0, 2, update(3))
    barrier.forget(0, 1)
    barrier.forget(5, 1)
    assert [held.n for held in barrier.take(1)] == [2]
    assert [held.n for held in barrier.take(2)] == [3]


def test_what_is_held_is_told_in_the_order_in_which_it_will_be_applied() -> None:
    barrier = Barrier()
    for clock, rank, n in [(3, 0, 1), (2, 5, 1), (2, 1, 1), (2, 5, 2)]:
        barrier.hold(rank, clock, update(n))
    told = [(clock, rank, held.n) for clock, rank, held in barrier.held()]
    assert told == [(2, 1, 1), (2, 5, 1), (2, 5, 2), (3, 0, 1)]


def test_what_is_held_for_a_dropped_table_is_forgotten_with_its_bytes() -> None:
    barrier = Barrier()
    barrier.hold(0, 1, update(1)._replace(table=4))
    barrier.hold(0, 1, update(2))
    barrier.hold(1, 2, update(1)._replace(table=4))
    barrier.forget_table(4)
    assert [held.n for _, _, held in barrier.held()] == [2]
    assert barrier.held_bytes == 16


def test_held_bytes_are_counted_in_and_out() -> None:
    barrier = Barrier()
    barrier.hold(0, 1, update(1, 10))
    barrier.hold(1, 1, update(1, 5))
    barrier.hold(1, 2, update(1, 1))
    assert barrier.held_bytes == 16 * 16
    barrier.forget(0, 1)
    assert barrier.held_bytes == 6 * 16
    barrier.take(1)
    assert barrier.held_bytes == 16
    barrier.take(2)
    assert barrier.held_bytes == 0


def test_ranks_that_run_ahead_leave_room_for_the_clock_that_all_wait_for() -> None:
    barrier = Barrier(bytes_max=16 * 10)
    for n in range(5):
        assert barrier.has_room(update(n), first=False)
        barrier.hold(0, 2, update(n))
    assert not barrier.has_room(update(5), first=False)
    for n in range(5):
        assert barrier.has_room(update(n), first=True)
        barrier.hold(1, 1, update(n))
    assert not barrier.has_room(update(5), first=True)

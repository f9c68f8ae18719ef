"""The tasks of a graph as one shard sees them: held until their own tick, applied as a whole."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from shard_asking import Asking

from resilient_ps.consistency import BSP, Tasks
from resilient_ps.cut import Cut
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Kind, Status
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec


def redo(asking: Asking, rank: int, incarnation: int, clock: int) -> Status:
    return asking.one(Kind.REDO, worker=WorkerId(1, rank, incarnation), clock=clock).status


# -- holding


def test_a_tasks_pushes_are_seen_by_nobody_before_its_own_tick_and_then_by_all() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    asking.push(0, 1, 2, 1, [7, 8])
    assert asking.values([7, 8]) == [0, 0]
    asking.tick(0, 1, prev=2)
    assert asking.values([7, 8]) == [2, 1]


def test_a_task_ends_whatever_other_lanes_do() -> None:
    asking = Asking(Tasks(), ranks=3)
    asking.push(1, 1, 1, 0, [7])
    for clock in (1, 2, 3):
        asking.push(0, clock, 1, 0, [8])
        asking.tick(0, clock, prev=1)
    assert asking.values([7, 8]) == [0, 3]
    assert asking.shard.jobs[1].barrier.held_bytes == 16


def test_a_pull_waits_for_nobody() -> None:
    asking = Asking(Tasks())
    for clock in (1, 2, 3):
        asking.tick(0, clock)
    (reply,) = asking.pull(0, 4, [7], wait_s=10)
    assert reply.answer.status is Status.OK


def test_what_is_held_goes_on_the_tick_also_where_the_barrier_is_empty() -> None:
    asking = Asking(Tasks())
    asking.tick(0, 1)
    assert asking.values([7]) == [0]


def test_without_holding_a_part_of_a_task_is_seen() -> None:
    """A negative control."""
    asking = Asking(Tasks(), guards=dataclasses.replace(ALL_GUARDS, barrier=False))
    asking.push(0, 1, 1, 0, [7])
    assert asking.values([7]) == [1]


SPECS: tuple[TableSpec, ...] = tuple(
    make(optimiser)
    for optimiser in (SGD(0.1), Momentum(0.1), Adagrad(0.1), Adam(0.1), FTRL(0.1), Sum())
    for make in (
        lambda o: SparseSpec("s", 3, "float32", o),
        lambda o: DenseSpec("d", (70_000,), "float32", o),
    )
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.optimiser}")
def test_a_task_is_the_clock_of_a_bsp_job_with_one_rank_bit_by_bit(spec: TableSpec) -> None:
    one, other = Asking(Tasks(), ranks=1), Asking(BSP(), ranks=1)
    rng = np.random.default_rng(3)
    for asking in (one, other):
        asking.open_table(3, spec)
    dim = spec.dim if isinstance(spec, SparseSpec) else 0
    for clock in range(1, 6):
        for n in range(1, 4):
            keys = rng.integers(0, 9, 20) if dim else np.array([n % 2])
            size = len(keys) * dim if dim else (65_536, 70_000 - 65_536)[n % 2]
            values = rng.normal(size=size).astype(spec.dtype)
            for asking in (one, other):
                answer = asking.one(
                    Kind.PUSH, worker=WorkerId(1, 0, 1), clock=clock, n=n, prev=n - 1, table=3,
                    keys=keys, values=values,
                )  # fmt: skip
                assert answer.status is Status.OK, answer
        for asking in (one, other):
            asking.tick(0, clock, prev=3)
    assert one.shard.tables[3].digest() == other.shard.tables[3].digest()
    assert one.shard.tables[3].rows > 0


def test_a_change_of_the_rate_holds_from_the_next_task_on() -> None:
    asking = Asking(Tasks(), ranks=1)
    me = WorkerId(1, 0, 1)
    asking.one(Kind.TUNE, worker=me, clock=1, n=1, prev=0, table=2, rate=0.5)
    asking.push(0, 1, 2, 1, [7], [1.0], table=2)
    asking.tick(0, 1, prev=2)
    assert asking.values([7], table=2) == [-1.0]
    asking.push(0, 2, 1, 0, [7], [1.0], table=2)
    asking.tick(0, 2, prev=1)
    assert asking.values([7], table=2) == [-1.5]


def test_a_table_that_is_dropped_takes_what_is_held_with_it() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    asking.push(0, 1, 2, 1, [7], [1.0], table=2)
    asking.push(1, 1, 1, 0, [8])
    asking.one(Kind.DROP_TABLE, table=1)
    assert asking.shard.jobs[1].barrier.first_rank() == 0
    assert asking.tick(0, 1, prev=2).status is Status.OK
    assert asking.tick(1, 1, prev=1).status is Status.OK
    assert asking.values([7], table=2) == [-1.0]
    assert asking.shard.jobs[1].barrier.held_bytes == 0


# -- room


def test_where_room_is_short_the_lowest_lane_can_still_go_on() -> None:
    asking = Asking(Tasks(), ranks=3, barrier_bytes_max=16 * 10)
    assert asking.push(1, 1, 1, 0, range(5)).status is Status.OK
    full = asking.push(2, 1, 1, 0, [7])
    assert full.status is Status.BUSY
    assert b"80 bytes" in full.text
    assert b"lanes 1 of graph 'job1'" in full.text
    assert asking.push(1, 1, 2, 1, range(3)).status is Status.OK
    assert asking.push(0, 1, 1, 0, [7]).status is Status.OK
    assert asking.push(1, 1, 3, 2, [7]).status is Status.BUSY  # now it is not the lowest any more
    asking.tick(0, 1, prev=1)
    asking.tick(1, 1, prev=2)
    assert asking.push(2, 1, 1, 0, [7]).status is Status.OK


# -- takeover


def test_a_fence_tells_whether_there_is_something_to_forget_and_forgets_nothing() -> None:
    asking = Asking(Tasks())
    assert asking.fence(0, 2).count == 0
    asking.push(0, 1, 1, 0, [7], incarnation=2)
    assert asking.fence(0, 3).count == 1
    assert asking.one(Kind.TICK, worker=WorkerId(1, 0, 3), clock=1, settled=True).value == 1
    assert asking.values([7]) == [1]


def test_a_task_that_begins_again_forgets_what_the_holder_before_had_pushed() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    asking.push(0, 1, 2, 1, [8])
    asking.push(1, 1, 1, 0, [9])
    asking.fence(0, 2)
    assert redo(asking, 0, 2, 1) is Status.OK
    asking.push(0, 1, 1, 0, [10], incarnation=2)  # other keys than the first time
    assert redo(asking, 0, 2, 1) is Status.OK  # a late repeat
    asking.tick(0, 1, prev=1, incarnation=2)
    asking.tick(1, 1, prev=1)
    assert asking.values([7, 8, 9, 10]) == [0, 0, 1, 1]


def test_whoever_holds_an_older_token_is_refused_in_everything() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    asking.fence(0, 3)
    me = WorkerId(1, 0, 1)
    before = asking.shard.digest()
    answers = [
        asking.push(0, 1, 2, 1, [7]),
        asking.tick(0, 1, prev=1),
        asking.pull(0, 1, [7])[0].answer,
        asking.one(Kind.REDO, worker=me, clock=1),
        asking.one(Kind.TUNE, worker=me, clock=1, n=2, prev=1, table=2, rate=0.5),
        asking.fence(0, 1),
    ]
    assert [(a.status, a.value) for a in answers] == [(Status.FENCED, 3)] * len(answers)
    assert asking.shard.digest() == before
    assert asking.push(1, 1, 1, 0, [7]).status is Status.OK  # other lanes do not notice


def test_without_fencing_a_late_write_is_taken() -> None:
    """A negative control."""
    asking = Asking(Tasks(), guards=dataclasses.replace(ALL_GUARDS, fencing=False))
    asking.fence(0, 3)
    assert asking.push(0, 1, 1, 0, [7]).status is Status.OK


def test_a_token_that_has_not_fenced_is_refused() -> None:
    asking = Asking(Tasks())
    for answer in (asking.push(0, 1, 1, 0, [7], incarnation=2), asking.tick(0, 1, incarnation=2)):
        assert answer.status is Status.REFUSED
        assert b"has not fenced" in answer.text


def test_a_token_that_fences_again_is_answered_and_changes_nothing() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    before = asking.shard.digest()
    assert (asking.fence(0, 1).status, asking.fence(0, 1).count) == (Status.OK, 1)
    assert asking.shard.digest() == before


def test_two_processes_with_one_token_push_nothing_twice() -> None:
    """The coordinator grants no token twice; if somebody copied one, repeats are repeats."""
    asking = Asking(Tasks())
    for _ in range(2):
        assert asking.push(0, 1, 1, 0, [7]).status is Status.OK
        assert asking.push(0, 1, 2, 1, [7]).status is Status.OK
    for _ in range(2):
        assert asking.tick(0, 1, prev=2).status is Status.OK
    assert asking.values([7]) == [2]
    late = asking.push(0, 1, 3, 2, [7])
    assert late.status is Status.REFUSED
    assert b"a push of clock 1 while clock 2 is open" in late.text


def test_a_double_with_one_token_that_has_not_seen_all_pushes_cannot_tick() -> None:
    asking = Asking(Tasks())
    asking.push(0, 1, 1, 0, [7])
    asking.push(0, 1, 2, 1, [8])
    assert asking.tick(0, 1, prev=1).status is Status.NOT_REPEATABLE
    assert asking.push(0, 1, 4, 3, [9]).status is Status.GAP


def test_lanes_neither_join_nor_leave() -> None:
    asking = Asking(Tasks())
    answers = [
        asking.one(Kind.JOIN, worker=WorkerId(1, 9, 0), n=1),
        asking.one(Kind.LEAVE, worker=WorkerId(1, 0, 1), n=1),
    ]
    assert [answer.status for answer in answers] == [Status.REFUSED] * 2
    assert all(b"graph" in answer.text for answer in answers)


# -- cuts


def test_an_image_has_tasks_up_to_the_cut_though_other_lanes_ran_ahead() -> None:
    asking = Asking(Tasks())
    shard = asking.shard
    shard.server = "s1"
    asking.push(0, 1, 1, 0, [7])
    cut = Cut(1, ((1, 1),), "s1")
    assert asking.one(Kind.CUT, n=1, text=cut.to_json().encode()).status is Status.OK
    asking.tick(0, 1, prev=1)
    asking.push(0, 2, 1, 0, [7, 8])
    asking.tick(0, 2, prev=1)
    image = shard.image
    assert image is not None
    assert not image.reached
    assert "clock 1 of rank 1" in image.waits_for()
    asking.push(1, 1, 1, 0, [7, 9])
    asking.tick(1, 1, prev=1)
    assert image.reached
    image.start({})
    rows: dict[int, int] = {}
    while (piece := image.next_piece(1_000)) is not None:
        if piece.table == 1:
            rows.update(zip(piece.keys.tolist(), piece.content.tolist(), strict=True))
    assert rows == {7: 2, 9: 1}
    assert asking.values([7, 8, 9]) == [3, 1, 1]
    (_, _, clock, ranks), *_ = image.head()[1]
    assert (clock, [rank[:2] for rank in ranks]) == (1, [[0, 1], [1, 1]])


def test_a_cut_that_holds_others_back_lets_tasks_go_on() -> None:
    """Whoever waited with a later task could not do the earlier ones that the cut waits for."""
    asking = Asking(Tasks())
    text = Cut(1, ((1, 1),), "s1", hold=True).to_json().encode()
    assert asking.one(Kind.CUT, n=1, text=text).status is Status.OK
    asking.tick(0, 1)
    assert asking.push(0, 2, 1, 0, [7]).status is Status.OK


def test_a_cut_below_a_task_that_has_begun_is_refused() -> None:
    asking = Asking(Tasks())
    asking.tick(0, 1)
    asking.push(0, 2, 1, 0, [7])
    answer = asking.one(Kind.CUT, n=1, text=Cut(1, ((1, 1),), "s1").to_json().encode())
    assert (answer.status, answer.value) == (Status.REFUSED, 2)

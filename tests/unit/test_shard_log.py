"""A shard as a function of its log: check and apply, and a digest that tells logs apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from command_stream import Stream
from shard_asking import Asking

from resilient_ps.consistency import BSP, SSP
from resilient_ps.errors import Bug
from resilient_ps.guards import Guards
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.messages import Command, Entry, Kind, PartAnswer, Status
from resilient_ps.shard import Shard, moves_clocks
from resilient_ps.tables.optimisers import Adam
from resilient_ps.tables.spec import DenseSpec

ME = WorkerId(1, 0, 1)
EPOCH = Epoch(1, 1)


def push(n: int, prev: int, key: int = 7, **fields: Any) -> Command:
    keys, values = np.array([key], np.uint64), np.ones(1, np.int64)
    return Command(Kind.PUSH, ME, 1, n, prev, 1, keys=keys, values=values, **fields)


def append(shard: Shard, command: Command) -> PartAnswer:
    return shard.apply(Entry(Position(EPOCH, shard.lsn + 1), command))


# -- check and apply


def test_what_was_admissible_may_not_be_any_more_when_it_is_applied() -> None:
    """The primary appends without asking while something is under way; the apply decides."""
    asking = Asking(SSP(1))
    shard, first = asking.shard, push(1, 0)
    commands = [first, first, push(5, 4), push(2, 1), dataclasses.replace(first, n=3, prev=9)]
    before = shard.lsn
    answers = [append(shard, command) for command in commands]
    statuses = [answer.status for answer in answers]
    assert statuses == [Status.OK, Status.OK, Status.GAP, Status.OK, Status.REFUSED]
    assert asking.values([7]) == [2]
    assert [answer.at for answer in answers] == [
        Position(EPOCH, before + i) for i in range(1, len(commands) + 1)
    ]


def test_an_entry_that_is_refused_changes_nothing_but_the_lsn() -> None:
    shard = Asking(SSP(1)).shard
    fresh = Asking(SSP(1)).shard
    for command in (push(5, 4), Command(Kind.TICK, ME, 9), Command(Kind.PULL, ME)):
        assert append(shard, command).status is not Status.OK
        append(fresh, Command(Kind.EPOCH))
    assert shard.digest() == fresh.digest()


def test_a_new_primarys_entry_changes_nothing_but_the_lsn() -> None:
    asking = Asking(SSP(1))
    command = Command(Kind.EPOCH)
    assert asking.shard.check(command) is None
    before = asking.shard.lsn
    assert append(asking.shard, command) == PartAnswer(0, Status.OK, Position(EPOCH, before + 1))


@pytest.mark.parametrize("seed", range(5))
def test_check_says_beforehand_what_apply_would_and_apply_then_changes_nothing(seed: int) -> None:
    shard = Shard(0, 1)
    shard.serve_in(EPOCH)
    stream, answered = Stream(seed, shard), 0
    for _ in range(300):
        command = stream.next()
        answer = shard.check(command)
        if answer is None:
            append(shard, command)
            continue
        answered += 1
        lsn, before = shard.lsn, shard.digest()
        assert append(shard, command)._replace(at=answer.at) == answer
        shard.lsn = lsn
        assert shard.digest() == before
    assert answered > 20


@pytest.mark.parametrize("seed", range(5))
def test_to_prepare_and_commit_is_to_apply(seed: int) -> None:
    one, two = Shard(0, 1), Shard(0, 1)
    stream = Stream(seed, one)
    for _ in range(300):
        command = stream.next()
        prepared, at = one.prepare(command), Position(EPOCH, one.lsn + 1)
        if not isinstance(prepared, PartAnswer):
            assert one.commit(prepared, at) == two.apply(Entry(at, command))
    assert one.digest() == two.digest()


def test_entries_are_applied_in_their_order_without_gaps() -> None:
    shard = Shard(0, 1)
    append(shard, Command(Kind.EPOCH))
    for lsn in (0, 1, 3):
        with pytest.raises(Bug, match=f"entry {lsn} after 1"):
            shard.apply(Entry(Position(EPOCH, lsn), Command(Kind.EPOCH)))
    unchecked = Shard(0, 1, Guards(log_matching=False))
    unchecked.apply(Entry(Position(EPOCH, 7), Command(Kind.EPOCH)))
    assert unchecked.lsn == 7


def test_answers_carry_the_epoch_that_the_replica_serves_in_not_that_of_the_entry() -> None:
    shard = Shard(0, 1)
    assert append(shard, Command(Kind.EPOCH)).at == Position(NO_EPOCH, 1)
    shard.serve_in(Epoch(2, 9))
    assert shard.position == Position(Epoch(2, 9), 1)
    assert append(shard, Command(Kind.EPOCH)).at == Position(Epoch(2, 9), 2)


def test_what_lets_pulls_go_on_is_named() -> None:
    kinds = {kind for kind in Kind if moves_clocks(kind)}
    assert kinds == {Kind.TICK, Kind.LEAVE, Kind.FENCE, Kind.CLOSE_JOB, Kind.DROP_TABLE}


def test_a_table_of_a_dropped_ones_number_gets_nothing_that_was_held_for_it() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.one(Kind.DROP_TABLE, table=1)
    asking.open_table(1, DenseSpec("other", (3,), "float32", Adam()))
    assert asking.shard.jobs[1].barrier.held_bytes == 0
    assert asking.tick(0, 1, prev=1).status is Status.OK
    assert asking.values([0]) == [0, 0, 0]


# -- the digest


def asked(mode: BSP | SSP) -> Asking:
    """A shard with something of everything."""
    asking = Asking(mode)
    asking.open_table(3, DenseSpec("dense", (4,), "float32", Adam()))
    asking.tick(0, 1)
    asking.push(0, 2, 1, 0, [7])
    asking.push(0, 2, 2, 1, [8])
    return asking


def later(asking: Asking, rank: int = 0) -> Any:
    return asking.shard.jobs[1].ledger.ranks[rank]


CHANGES: dict[str, Callable[[Asking], object]] = {
    "a row": lambda a: a.shard.tables[1].load(
        1, np.array([50], np.uint64), np.array([1], np.int64)
    ),
    "the state of an element": lambda a: a.shard.tables[3].load(
        4, np.empty(0, np.uint64), np.array([0] * 12 + [1], np.float32)
    ),
    "a learning rate": lambda a: a.shard.tables[2].set_lr(0.3),
    "a writer": lambda a: setattr(a.shard.tables[2], "writer", 1),
    "a table": lambda a: a.shard.tables.pop(3),
    "a table's number": lambda a: a.shard.tables.update({4: a.shard.tables.pop(3)}),
    "a job": lambda a: a.shard.jobs.pop(1),
    "a job's specification": lambda a: setattr(a.shard.jobs[1], "text", "other"),
    "a tick": lambda a: setattr(later(a), "ticked", 2),
    "the last push": lambda a: setattr(later(a), "last", 3),
    "the keys of pushes": lambda a: setattr(later(a), "digest", 3),
    "what was repeated": lambda a: setattr(later(a), "replayed", 1),
    "the keys of what was repeated": lambda a: setattr(later(a), "replay_digest", 1),
    "a cursor": lambda a: setattr(later(a), "cursor", b"at 2"),
    "an incarnation": lambda a: setattr(later(a), "incarnation", 2),
    "a redo": lambda a: setattr(later(a), "redone", 1),
    "who is live": lambda a: setattr(later(a, 1), "live", False),
    "a first clock": lambda a: setattr(later(a, 1), "started", 2),
    "a rank": lambda a: a.shard.jobs[1].ledger.ranks.pop(1),
    "an intent": lambda a: setattr(a.shard.jobs[1].ledger, "intent", 1),
    "forgotten pushes": lambda a: a.shard.jobs[1].ledger.forget_pushes(),
    "the lsn": lambda a: setattr(a.shard, "lsn", a.shard.lsn + 1),
}


@pytest.mark.parametrize("what", list(CHANGES))
@pytest.mark.parametrize("mode", [BSP(), SSP(1)], ids=["bsp", "ssp"])
def test_shards_that_differ_in_anything_have_other_digests(mode: BSP | SSP, what: str) -> None:
    one, other = asked(mode), asked(mode)
    assert one.shard.digest() == other.shard.digest()
    CHANGES[what](other)
    assert one.shard.digest() != other.shard.digest()


def test_held_pushes_and_their_order_are_in_the_digest() -> None:
    def held(*pushes: tuple[int, int, list[int], float]) -> str:
        asking = Asking(BSP())
        barrier = asking.shard.jobs[1].barrier
        for rank, clock, keys, value in pushes:
            asking.push(rank, 1, 1, 0, keys, values=[value] * len(keys), table=2)
            (update,) = barrier._held.pop(1).pop(rank)
            barrier.hold(rank, clock, update)
            record = asking.shard.jobs[1].ledger.ranks[rank]
            record.last = record.digest = record.replayed = record.replay_digest = 0
        return asking.shard.digest()

    same = held((0, 2, [7], 1), (1, 2, [8], 1))
    assert held((1, 2, [8], 1), (0, 2, [7], 1)) == same  # in whatever order ranks came
    others = [
        held((0, 2, [7], 1), (0, 2, [8], 1)),
        held((0, 2, [8], 1), (0, 2, [7], 1)),
        held((0, 2, [7], 1), (1, 3, [8], 1)),
        held((0, 2, [7], 1), (1, 2, [9], 1)),
        held((0, 2, [7], 1), (1, 2, [8], 2)),
        held((0, 2, [7], 1), (1, 2, [8, 8], 1)),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_an_epoch_and_waiting_pulls_are_not_in_the_digest() -> None:
    one, other = asked(BSP()), asked(BSP())
    other.shard.serve_in(Epoch(5, 5))
    assert other.pull(0, 9, [7], wait_s=10) == []
    assert one.shard.digest() == other.shard.digest()


def test_pushes_in_another_order_of_creation_give_the_same_digest() -> None:
    one, other = Asking(SSP(1), ranks=1), Asking(SSP(1), ranks=1)
    one.push(0, 1, 1, 0, [1, 2, 3])
    other.push(0, 1, 1, 0, [3, 1, 2])
    later(other).digest, later(other).replay_digest = later(one).digest, later(one).replay_digest
    assert one.shard.digest() == other.shard.digest()

"""Copies of a shard's state that are made while it goes on: the copy is the shard, to the byte."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from command_stream import Stream
from shard_asking import Asking

from resilient_ps.consistency import BSP, SSP
from resilient_ps.copying import COPY_PIECE_BYTES, CopySource, CopyTarget, Epochs
from resilient_ps.errors import BadInput, Bug
from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.messages import Command, Copied, Copy, Entry, Kind, PartAnswer, Status
from resilient_ps.shard import Shard
from resilient_ps.tables.optimisers import Adam
from resilient_ps.tables.spec import DenseSpec

EPOCH = Epoch(1, 4)
HISTORY = ((1, Epoch(1, 1)), (7, EPOCH))


def history(shard: Shard) -> Epochs:
    """As far as the shard has come."""
    return tuple((lsn, epoch) for lsn, epoch in HISTORY if lsn <= shard.lsn)


class Pair:
    """A shard and its copy, which get the same entries."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.target: CopyTarget | None = None

    def apply(self, command: Command) -> PartAnswer:
        entry = Entry(Position(EPOCH, self.shard.lsn + 1), command)
        answer = self.shard.apply(entry)
        if self.target is not None:
            assert self.target.shard.apply(entry)._replace(at=answer.at) == answer
        return answer

    def copy_from(self, source: CopySource) -> None:
        """Hand over the first pieces."""
        head, *others = source.first_pieces()
        self.target = CopyTarget(head, 1)
        for piece in others:
            assert not self.target.ready
            self.target.take(piece)
        assert self.target.ready

    def same(self) -> bool:
        assert self.target is not None
        return self.target.shard.digest() == self.shard.digest()


def copied(shard: Shard, **options: Any) -> tuple[CopyTarget, list[Copy]]:
    """A whole copy at one lsn, and its pieces."""
    source = CopySource(shard, EPOCH, 1, history(shard), **options)
    pieces = source.first_pieces()
    while (piece := source.next_piece()) is not None:
        pieces.append(piece)
    return rebuilt(pieces), pieces


def rebuilt(pieces: list[Copy]) -> CopyTarget:
    target = CopyTarget(pieces[0], 1)
    for piece in pieces[1:]:
        target.take(piece)
    return target


def full_shard() -> Shard:
    """Two sparse tables, a dense one, and pushes that BSP holds back."""
    asking = Asking(BSP(), ranks=2)
    asking.open_table(3, DenseSpec("dense", (70_000,), "float32", Adam()))
    asking.push(0, 1, 1, 0, [7, 8], table=1)
    asking.push(0, 1, 2, 1, range(100), table=2)
    blocks = {"keys": [0, 1], "values": np.ones(70_000, np.float32)}
    worker = WorkerId(1, 0, 1)
    asking.one(Kind.PUSH, worker=worker, clock=1, n=3, prev=2, table=3, **blocks)
    asking.tick(0, 1, prev=3)
    asking.tick(1, 1)
    asking.push(0, 2, 1, 0, [9], table=1)
    asking.one(Kind.TUNE, worker=worker, clock=2, n=2, prev=1, table=2, rate=0.25)
    return asking.shard


# -- the copy is the shard


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_made_between_any_commands_has_the_digest_of_its_source(seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    shard = Shard(0, 1)
    pair, stream = Pair(shard), Stream(seed, shard)
    for _ in range(int(rng.integers(0, 150))):
        pair.apply(stream.next())
    piece_bytes = int(rng.choice([3_000, 30_000, 300_000]))
    source = CopySource(shard, EPOCH, 1, history(shard), piece_bytes=piece_bytes)
    pair.copy_from(source)
    target = pair.target
    assert target is not None
    commands_per_piece = 40 * piece_bytes / 1_000_000
    while not target.complete:
        for _ in range(int(rng.poisson(commands_per_piece))):
            pair.apply(stream.next())
        piece = source.next_piece()
        assert piece is not None
        target.take(piece)
    assert source.next_piece() is None
    assert pair.same()
    for _ in range(60):
        pair.apply(stream.next())
    assert pair.same()


def test_random_commands_do_everything_that_a_shard_can_do() -> None:
    """So that the test above means something."""
    shard = Shard(0, 1)
    stream = Stream(5, shard)
    seen: Counter[tuple[str, str]] = Counter()
    held = 0
    for _ in range(3_000):
        command = stream.next()
        status = shard.apply(Entry(Position(EPOCH, shard.lsn + 1), command)).status
        seen[command.kind.name, status.name] += 1
        held = max(held, sum(len(list(job.barrier.held())) for job in shard.jobs.values()))
    done = {kind for kind, status in seen if status == "OK"}
    assert done == {kind.name for kind in Kind} - {"PULL", "STAND", "USE"}
    refused = {Status.GAP, Status.FENCED, Status.REFUSED, Status.UNKNOWN, Status.LEFT}
    assert {status for _, status in seen} >= {status.name for status in refused}
    assert seen["PUSH", "OK"] > 600
    assert seen["TICK", "OK"] > 200
    assert held > 10


def test_an_empty_shard_is_copied_too() -> None:
    target, pieces = copied(Shard(0, 1))
    assert [piece.what for piece in pieces] == [Copied.HEAD, Copied.END]
    assert target.complete
    assert target.shard.digest() == Shard(0, 1).digest()


def test_pieces_are_numbered_bounded_and_in_order() -> None:
    shard = full_shard()
    target, pieces = copied(shard, piece_bytes=50_000)
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert {(p.shard, p.epoch, p.attempt, p.lsn) for p in pieces} == {(0, EPOCH, 1, shard.lsn)}
    kinds = [piece.what for piece in pieces]
    assert kinds == sorted(kinds)
    assert Counter(kinds)[Copied.HELD_PUSH] == 2
    assert Counter(kinds)[Copied.BLOCKS] > 10
    assert max(p.keys.nbytes + p.values.nbytes + len(p.text) for p in pieces) <= 50_000 + 100
    assert target.epochs == HISTORY
    assert target.shard.digest() == shard.digest()


def test_held_pushes_are_lent_and_not_copied() -> None:
    shard = full_shard()
    held = [update for _, _, update in shard.jobs[1].barrier.held()]
    pieces = [p for p in copied(shard)[1] if p.what is Copied.HELD_PUSH]
    assert all(p.values is u.values for p, u in zip(pieces, held, strict=True))


def test_a_long_head_travels_in_pieces() -> None:
    asking = Asking(SSP(1), ranks=200)
    for rank in range(200):
        worker = WorkerId(1, rank, 1)
        asking.one(Kind.TICK, worker=worker, clock=1, text=bytes(range(256)) * 16)
    target, pieces = copied(asking.shard, piece_bytes=100_000)
    heads = [piece for piece in pieces if piece.what is Copied.HEAD]
    assert len(heads) > 10
    assert max(len(head.text) for head in heads) <= 100_000
    assert target.shard.digest() == asking.shard.digest()


def test_a_piece_is_a_copy_that_later_pushes_do_not_change() -> None:
    shard = full_shard()
    source = CopySource(shard, EPOCH, 1, history(shard))
    source.first_pieces()
    pieces = [source.next_piece() for _ in range(3)]
    before = [piece.values.copy() for piece in pieces if piece]
    for rank, prev in ((0, 2), (1, 0)):
        tick = Command(Kind.TICK, WorkerId(1, rank, 1), 2, prev=prev)
        assert shard.apply(Entry(Position(EPOCH, shard.lsn + 1), tick)).status is Status.OK
    for piece, values in zip(pieces, before, strict=True):
        assert piece is not None
        np.testing.assert_array_equal(piece.values, values)


def test_a_dropped_table_is_let_go_although_its_copy_is_under_way() -> None:
    shard = full_shard()
    pair, source = Pair(shard), CopySource(shard, EPOCH, 1, history(shard), piece_bytes=500)
    pair.copy_from(source)
    assert pair.target is not None
    for _ in range(3):
        piece = source.next_piece()
        assert piece is not None
        pair.target.take(piece)
    gone = weakref.ref(shard.tables[3])
    pair.apply(Command(Kind.DROP_TABLE, table=3))
    pair.apply(Command(Kind.DROP_TABLE, table=2))
    assert gone() is None
    pieces = list(iter(source.next_piece, None))
    for piece in pieces:
        pair.target.take(piece)
    assert {piece.table for piece in pieces} <= {0, 1}
    assert pair.same()


def test_a_source_is_asked_for_its_first_pieces_once_and_first() -> None:
    source = CopySource(Shard(0, 1), EPOCH, 1, ())
    with pytest.raises(Bug):
        source.next_piece()
    source.first_pieces()
    with pytest.raises(Bug):
        source.first_pieces()


# -- what is no copy


def changed(piece: Copy, **fields: Any) -> Copy:
    return dataclasses.replace(piece, **fields)


def test_pieces_out_of_order_are_refused() -> None:
    _, pieces = copied(full_shard(), piece_bytes=50_000)
    for i in range(1, len(pieces)):
        for wrong in (0, i - 1, i + 1):
            if wrong < len(pieces):
                target = rebuilt(pieces[:i])
                with pytest.raises(BadInput):
                    target.take(pieces[wrong])
    with pytest.raises(BadInput):
        rebuilt(pieces).take(changed(pieces[-1], number=len(pieces)))


def test_pieces_left_out_are_noticed_although_they_are_numbered_anew() -> None:
    _, pieces = copied(full_shard(), piece_bytes=50_000)
    for left_out in range(1, len(pieces) - 1):
        kept = [piece for i, piece in enumerate(pieces) if i != left_out]
        with pytest.raises(BadInput):
            rebuilt([changed(piece, number=i) for i, piece in enumerate(kept)])


@pytest.mark.parametrize(
    "fields", [{"shard": 1}, {"epoch": Epoch(1, 5)}, {"attempt": 2}, {"lsn": 10**6}, {"lsn": 0}]
)
def test_pieces_of_another_copy_or_moment_are_refused(fields: dict[str, Any]) -> None:
    _, pieces = copied(full_shard())
    for i, piece in enumerate(pieces[1:], start=1):
        with pytest.raises(BadInput):
            rebuilt(pieces[:i]).take(changed(piece, **fields))


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"{}", b"[]", b"7", b"[" * 5000, b"[null]", b"[[]]"]
)
def test_garbage_in_place_of_a_text_is_refused(text: bytes) -> None:
    _, pieces = copied(full_shard())
    for i, piece in enumerate(pieces):
        if piece.what is not Copied.END:
            with pytest.raises(BadInput):
                rebuilt([*pieces[:i], changed(piece, text=text)])


def test_no_field_of_a_text_can_be_something_else() -> None:
    """Each is replaced by things of other types and sizes: refused, or taken; never worse."""
    _, pieces = copied(full_shard(), piece_bytes=200_000)
    garbage = [None, True, -1, 2**64, 1e300, float("nan"), "x", [], {}, [[1]], "\ud800"]
    refused = 0
    for i, piece in enumerate(pieces[:-1]):
        for fields in _with_garbage(json.loads(piece.text), garbage):
            text = json.dumps(fields).encode()
            try:
                rebuilt([*pieces[:i], changed(piece, text=text)])
            except BadInput:
                refused += 1
    assert refused > 500


def _with_garbage(value: Any, garbage: list[Any]) -> Iterator[Any]:
    """`value` with each of its leaves replaced by each of these, one at a time."""
    if not isinstance(value, list):
        yield from garbage
        return
    yield from garbage
    for i, part in enumerate(value):
        for other in _with_garbage(part, garbage):
            yield [*value[:i], other, *value[i + 1 :]]


def test_arrays_of_other_sizes_and_dtypes_are_refused() -> None:
    _, pieces = copied(full_shard())
    for i, piece in enumerate(pieces):
        if piece.what not in (Copied.ROWS, Copied.BLOCKS):
            continue
        values, keys = piece.values, piece.keys
        wrong = [
            {"values": values[:-1]},
            {"values": np.append(values, values[:1])},
            {"values": values.astype(np.int32)},
            {"values": values.reshape(1, -1)},
            {"keys": np.append(keys, keys[:1]) if keys.size else np.zeros(1, np.uint64)},
            {"keys": keys.astype(np.int64)},
            {"keys": keys[:0], "text": json.dumps([0, 0, False]).encode()},
            {"table": 9},
            {"table": 2 if piece.table == 1 else 1},
            {"what": Copied.ROWS if piece.what is Copied.BLOCKS else Copied.BLOCKS},
        ]
        if keys.size > 1:
            wrong.append({"keys": np.full(keys.size, keys[0])})
        for fields in wrong:
            with pytest.raises(BadInput):
                rebuilt(pieces[:i]).take(changed(piece, **fields))


def test_a_copy_cannot_bring_more_than_a_shard_may_hold() -> None:
    _, pieces = copied(full_shard())
    head = pieces[0]
    items = json.loads(head.text)
    rank = next(item for item in items if item[0] == "rank")
    table = next(item for item in items if item[0] == "table")
    with pytest.raises(BadInput):  # the same table twice
        CopyTarget(changed(head, text=json.dumps([*items, table]).encode()), 1)
    with pytest.raises(BadInput):  # the same rank twice
        CopyTarget(changed(head, text=json.dumps([*items, rank]).encode()), 1)
    with pytest.raises(BadInput, match="bytes of text"):
        CopyTarget(changed(head, text=head.text + b" " * COPY_PIECE_BYTES), 1)
    with pytest.raises(BadInput, match="shards"):
        CopyTarget(changed(head, shard=1), 1)
    for epochs in ([["epoch", 1, 1, 1]] * 2, [["epoch", 10**6, 1, 1]], [["epoch", 1, 0, 0]]):
        with pytest.raises(BadInput, match="history"):
            CopyTarget(changed(head, text=json.dumps([items[0], *epochs]).encode()), 1)
    far = [[*item[:4], 2**60, *item[5:]] if item[0] == "rank" else item for item in items]
    with pytest.raises(BadInput, match="come to"):  # would be applied clock by clock
        CopyTarget(changed(head, text=json.dumps(far).encode()), 1)
    target = CopyTarget(head, 1, barrier_bytes_max=8)
    with pytest.raises(BadInput, match="has no place"):
        target.take(pieces[1])

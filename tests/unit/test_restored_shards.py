"""Shards that are built of images, also of another number of shards."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from image_oracle import ME, content_of
from shard_asking import tell

from resilient_ps.consistency import BSP, SSP, Consistency, JobSpec, Tasks
from resilient_ps.copying import CopySource, CopyTarget
from resilient_ps.cut import Cut
from resilient_ps.errors import BadInput
from resilient_ps.hashing import shard_of
from resilient_ps.ids import NO_EPOCH, Epoch, WorkerId
from resilient_ps.image import ImagePiece, ShardImage
from resilient_ps.messages import Command, Kind, Status
from resilient_ps.restoring import RestoredShard, owned
from resilient_ps.shard import Shard
from resilient_ps.small_state import Item
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.initialisers import Normal
from resilient_ps.tables.optimisers import Adagrad, Adam, Sum
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import DenseSpec, SparseSpec

SPARSE = SparseSpec("rows", 3, "float32", Adagrad(0.1), Normal(0.5))
COUNTS = SparseSpec("counts", 1, "int64", Sum())
DENSE = DenseSpec("dense", (300_000,), "float32", Adam(0.01), Normal(0.5))
RANKS = 2


def told(shard: Shard, kind: Kind, **fields: Any) -> None:
    answer = tell(shard, Command(kind, **fields))
    assert answer.status is Status.OK, answer


def cluster(shards: int, mode: Consistency) -> list[Shard]:
    """All shards of a cluster, after three clocks, with a cut at the third and pushes behind it."""
    made = [Shard(number, shards) for number in range(shards)]
    for shard in made:
        shard.server = ME
        shard.serve_in(Epoch(1, 1))
        for number, spec in enumerate((SPARSE, COUNTS, DENSE), start=1):
            told(shard, Kind.OPEN_TABLE, table=number, text=spec.to_json().encode())
        text = JobSpec(1, "job", RANKS, mode).to_json().encode()
        told(shard, Kind.OPEN_JOB, worker=WorkerId(1, 0, 0), text=text)
        for rank in range(RANKS):
            told(shard, Kind.FENCE, worker=WorkerId(1, rank, 1))
    rng = np.random.default_rng(5)
    for clock in (1, 2, 3):
        one_clock(made, rng, clock)
    for shard in made:
        text = Cut(4, ((1, 3),), ME).to_json().encode()
        told(shard, Kind.CUT, n=4, text=text)
    one_clock(made, rng, 4)
    return made


def one_clock(made: list[Shard], rng: np.random.Generator, clock: int) -> None:
    shards = len(made)
    layout = DenseLayout(DENSE, shards)
    for rank in range(RANKS):
        worker = WorkerId(1, rank, 1)
        keys = rng.integers(0, 500, 200).astype(np.uint64)
        grads = rng.normal(size=(200, 3)).astype(np.float32)
        whole = rng.normal(size=300_000).astype(np.float32)
        order, counts, grouped = partition(keys, shards)
        ends = np.cumsum(counts)
        for number, shard in enumerate(made):
            part = slice(int(ends[number] - counts[number]), int(ends[number]))
            ours = {"keys": grouped[part], "worker": worker, "clock": clock}
            told(shard, Kind.PUSH, n=1, prev=0, table=1, values=grads[order[part]].ravel(), **ours)
            ones = np.ones(counts[number], np.int64)
            told(shard, Kind.PUSH, n=2, prev=1, table=2, values=ones, **ours)
            last = 2
            blocks = layout.blocks_of(number)
            if blocks.size:
                ours["keys"] = blocks
                values = whole[layout.shard_slice(number)]
                told(shard, Kind.PUSH, n=3, prev=2, table=3, values=values, **ours)
                last = 3
            cursor = b"rank %d at %d" % (rank, clock)
            told(shard, Kind.TICK, worker=worker, clock=clock, prev=last, text=cursor)


def image_of(shard: Shard) -> tuple[tuple[list[Item], list[Item]], list[ImagePiece]]:
    image = shard.image
    assert isinstance(image, ShardImage)
    assert image.reached
    image.start({})
    return image.head(), list(iter(lambda: image.next_piece(50_000), None))


def restored(images: list[Any], shards: int) -> list[Shard]:
    made = []
    for number in range(shards):
        one = RestoredShard(number, shards)
        for head, _ in images:
            one.take_head(*head)
        for _, pieces in images:
            for piece in pieces:
                if piece.kind == "elements":
                    one.take_elements(piece.table, piece.at, piece.end, piece.content)
                else:
                    one.take_rows(piece.table, piece.keys, piece.content)
        made.append(one.finish())
    return made


def all_content(shards: list[Shard]) -> dict[int, dict[int, bytes]]:
    found: dict[int, dict[int, bytes]] = {}
    for shard in shards:
        for number, rows in content_of(shard).items():
            held = found.setdefault(number, {})
            assert held.keys().isdisjoint(rows)
            held |= rows
    return found


@pytest.mark.parametrize("mode", [BSP(), SSP(1), Tasks()])
@pytest.mark.parametrize("olds", [1, 4])
def test_content_is_the_same_on_any_number_of_shards(mode: Consistency, olds: int) -> None:
    images = [image_of(shard) for shard in cluster(olds, mode)]
    contents = [all_content(restored(images, news)) for news in (olds, 1, 2, 3, 7)]
    assert len(contents[0][1]) > 300
    assert all(content == contents[0] for content in contents)


def test_a_restored_shard_stands_at_the_cut_and_goes_on() -> None:
    images = [image_of(shard) for shard in cluster(2, BSP())]
    for shard in restored(images, 3):
        assert (shard.lsn, shard.epoch, shard.position.lsn) == (0, NO_EPOCH, 0)
        job = shard.jobs[1]
        assert job.barrier.applied == 3
        for rank, record in job.ledger.ranks.items():
            assert (record.ticked, record.cursor) == (3, b"rank %d at 3" % rank)
            assert (record.incarnation, record.last, record.live) == (0, 0, True)
        assert {table.writer for table in shard.tables.values()} == {1}
        worker = WorkerId(1, 0, 5)
        answer = tell(shard, Command(Kind.FENCE, worker))
        assert (answer.value, answer.text) == (3, b"rank 0 at 3")
        told(shard, Kind.PUSH, worker=worker, clock=4, n=1, table=2,
             keys=np.array([1], np.uint64), values=np.ones(1, np.int64))  # fmt: skip


def test_a_restored_run_goes_on_as_the_first_one_did() -> None:
    """Clock 4 once more, on another number of shards: the same bytes."""
    first = cluster(4, BSP())
    images = [image_of(shard) for shard in first]
    again = restored(images, 3)
    for shard in again:
        for rank in range(RANKS):
            told(shard, Kind.FENCE, worker=WorkerId(1, rank, 1))
    rng = np.random.default_rng(5)
    for _ in (1, 2, 3):
        draw_a_clock(rng)
    one_clock(again, rng, 4)
    assert all_content(again) == all_content(first)


def draw_a_clock(rng: np.random.Generator) -> None:
    """What `one_clock` draws."""
    for _ in range(RANKS):
        rng.integers(0, 500, 200)
        rng.normal(size=(200, 3))
        rng.normal(size=300_000)


def test_a_restored_shard_can_be_copied() -> None:
    (shard,) = restored([image_of(cluster(1, BSP())[0])], 1)
    source = CopySource(shard, Epoch(2, 1), 1, ())
    head, *pieces = source.first_pieces()
    target = CopyTarget(head, 1)
    for piece in [*pieces, *iter(source.next_piece, None)]:
        target.take(piece)
    assert target.shard.digest() == shard.digest()


def test_deltas_replace_rows_and_add_some() -> None:
    one = RestoredShard(0, 1)
    one.take_head([[2, COUNTS.to_json(), 0.0, 0, 2]], [])
    keys = np.array([5, 6], np.uint64)
    one.take_rows(2, keys, np.array([50, 60]))
    one.take_rows(2, keys + np.uint64(1), np.array([61, 70]))
    table = one.finish().tables[2]
    assert table.pull(np.array([5, 6, 7], np.uint64)).tolist() == [50, 61, 70]


def counts_restored(rows: int, before: Shard | None = None) -> Shard:
    """A shard with a table of counts, restored in the memory of the one before."""
    one = RestoredShard(0, 1)
    one.take_head([[2, COUNTS.to_json(), 0.0, 0, rows]], [])
    one.expect_rows(2, rows, before)
    one.take_rows(2, np.arange(rows, dtype=np.uint64), np.arange(1, rows + 1))
    return one.finish()


def test_of_the_shard_before_no_row_is_left() -> None:
    table = counts_restored(15_000, counts_restored(20_000)).tables[2]
    keys = np.array([0, 14_999, 15_000, 19_999], np.uint64)
    assert table.pull(keys).tolist() == [1, 15_000, 0, 0]


def test_heads_of_several_shards_are_one() -> None:
    one = RestoredShard(0, 1)
    text = JobSpec(1, "job", 2, SSP(1)).to_json()
    cursor = base64.b64encode(b"here").decode()
    one.take_head(
        [[1, SPARSE.to_json(), 0.5, 0, 2]],
        [[1, text, 3, [[0, 3, True, 1, ""], [1, 2, False, 1, ""]]]],
    )
    one.take_head(
        [[1, SPARSE.to_json(), 0.5, 1, 2], [2, COUNTS.to_json(), 0.0, 0, 0]],
        [[1, text, 3, [[0, 3, True, 1, cursor], [7, 3, True, 4, ""]]]],
    )
    shard = one.finish()
    assert (shard.tables[1].lr, shard.tables[1].writer, set(shard.tables)) == (0.5, 1, {1, 2})
    ranks = shard.jobs[1].ledger.ranks
    assert {rank: (r.ticked, r.live, r.started) for rank, r in ranks.items()} == {
        0: (3, True, 1), 1: (2, False, 1), 7: (3, True, 4),
    }  # fmt: skip
    assert ranks[0].cursor == b"here"


def test_a_job_of_which_nobody_is_left_has_applied_what_was_ticked() -> None:
    one = RestoredShard(0, 1)
    text = JobSpec(1, "job", 1, BSP()).to_json()
    one.take_head([], [[1, text, 9, [[0, 4, False, 1, ""]]]])
    job = one.finish().jobs[1]
    assert job.barrier.applied == job.ledger.slowest() == 4


@pytest.mark.parametrize("shards", [1, 2, 5, 1024])
def test_keys_have_the_owner_that_requests_find(shards: int) -> None:
    keys = np.random.default_rng(1).integers(0, 2**64, 500, np.uint64)
    keys[:3] = [0, 1, 2**64 - 1]
    shard = shard_of(int(keys[7]), shards)
    expected = [shard_of(key, shards) == shard for key in keys.tolist()]
    assert owned(keys, shard, shards).tolist() == expected


# -- what is no image


TEXT = JobSpec(1, "job", 1, BSP()).to_json()


@pytest.mark.parametrize(
    ("tables", "jobs"),
    [
        ([[1, SPARSE.to_json(), 0.5, 0]], []),
        ([[1, "{}", 0.5, 0, 0]], []),
        ([[1, "\ud800", 0.5, 0, 0]], []),
        ([[-1, SPARSE.to_json(), 0.5, 0, 0]], []),
        ([[1, SPARSE.to_json(), "0.5", 0, 0]], []),
        ([[1, SPARSE.to_json(), -0.5, 0, 0]], []),
        ([[1, SPARSE.to_json(), 0.5, 0, 0], [1, COUNTS.to_json(), 0.0, 0, 0]], []),
        ([None], []),
        ([], [[1, TEXT, 1]]),
        ([], [[2, TEXT, 1, []]]),
        ([], [[1, TEXT, -1, []]]),
        ([], [[1, TEXT, 1, [[0, 1, True, 1]]]]),
        ([], [[1, TEXT, 1, [[0, 1, 1, 1, ""]]]]),
        ([], [[1, TEXT, 1, [[0, -1, True, 1, ""]]]]),
        ([], [[1, TEXT, 1, [[0, 1, True, 1, "%"]]]]),
        ([], [[1, TEXT, 1, [[0, 1, True, 1, "A" * 100_000]]]]),
        ([], [[1, TEXT, 1, [0]]]),
        ([], [[1, TEXT, 1, []], [1, TEXT.replace("bsp", "asp"), 1, []]]),
    ],
)
def test_heads_that_cannot_be_are_refused(tables: list[Item], jobs: list[Item]) -> None:
    with pytest.raises(BadInput):
        RestoredShard(0, 1).take_head(tables, jobs)


def ready() -> RestoredShard:
    one = RestoredShard(0, 1)
    tables = [(1, SPARSE), (3, DENSE)]
    one.take_head([[number, spec.to_json(), 0.1, 0, 0] for number, spec in tables], [])
    return one


KEYS = np.arange(2, dtype=np.uint64)
ROWS = np.zeros(12, np.float32)
ELEMENTS = np.zeros(31, np.float32)  # 10 values, two slots, one count


@pytest.mark.parametrize(
    "take",
    [
        lambda one: one.take_rows(2, KEYS, ROWS),
        lambda one: one.take_rows(3, KEYS, ROWS),
        lambda one: one.take_rows(1, KEYS, ROWS[:11]),
        lambda one: one.take_rows(1, KEYS, ROWS.astype(np.float64)),
        lambda one: one.take_rows(1, KEYS, ROWS.reshape(2, 6)),
        lambda one: one.take_rows(1, KEYS.astype(np.int64), ROWS),
        lambda one: one.take_rows(1, np.zeros(2, np.uint64), ROWS),
        lambda one: one.take_elements(1, 0, 10, ELEMENTS),
        lambda one: one.take_elements(3, 0, 11, ELEMENTS),
        lambda one: one.take_elements(3, 1, 11, ELEMENTS),
        lambda one: one.take_elements(3, -5, 5, ELEMENTS),
        lambda one: one.take_elements(3, 299_995, 300_005, ELEMENTS),
        lambda one: one.take_elements(3, 10, 0, ELEMENTS),
        lambda one: one.take_elements(3, 0, 10, ELEMENTS.astype(np.float64)),
    ],
)
def test_content_that_cannot_be_is_refused(take: Callable[[RestoredShard], None]) -> None:
    one = ready()
    one.take_rows(1, KEYS, ROWS)
    one.take_elements(3, 0, 10, ELEMENTS)
    with pytest.raises(BadInput):
        take(one)

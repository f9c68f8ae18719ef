"""What becomes of an image: what it waits for, what ends it, what it knows of earlier ones."""

from __future__ import annotations

import numpy as np
import pytest
from image_oracle import EPOCH, ME
from shard_asking import SUMS, Asking

from resilient_ps.consistency import SSP
from resilient_ps.copying import CopySource, CopyTarget
from resilient_ps.cut import Cut
from resilient_ps.errors import Bug
from resilient_ps.ids import Position, WorkerId
from resilient_ps.image import ShardImage
from resilient_ps.messages import Command, Entry, Kind, Status
from resilient_ps.tables import sparse
from resilient_ps.tables.sparse import SparseShard


def cut_at(clock: int, **fields: int) -> tuple[Asking, ShardImage]:
    """Two ranks, of which rank 0 has ticked clock 1, and a cut."""
    asking = Asking(SSP(2))
    asking.shard.server = ME
    asking.shard.overlay_bytes_max = fields.get("overlay_bytes_max", 0)
    asking.push(0, 1, 1, 0, [1, 2, 3])
    asking.push(1, 1, 1, 0, [3, 4])
    asking.tick(0, 1, prev=1)
    give_cut(asking, 5, clock)
    assert asking.shard.image is not None
    return asking, asking.shard.image


def give_cut(asking: Asking, number: int, clock: int, by: str = ME) -> None:
    text = Cut(number, ((1, clock),), by).to_json().encode()
    assert asking.one(Kind.CUT, n=number, text=text).status is Status.OK


def test_nothing_is_kept_while_all_pushes_belong_in_the_image() -> None:
    asking, image = cut_at(1)
    assert asking.push(1, 1, 2, 1, [1, 9]).status is Status.OK
    assert image.overlay_bytes == 0
    assert asking.push(0, 2, 1, 0, [1, 7]).status is Status.OK
    assert image.overlay_bytes > 0


def test_it_says_for_whom_it_waits() -> None:
    asking, image = cut_at(1)
    assert not image.reached
    assert "rank 1 (at clock 1)" in image.waits_for()
    asking.tick(1, 1, prev=1)
    assert image.reached
    assert image.waits_for() == ""


def test_past_its_limit_it_fails_and_lets_go_but_the_shard_goes_on() -> None:
    asking, image = cut_at(1, overlay_bytes_max=20_000)
    keys = np.arange(5000, dtype=np.uint64)
    assert asking.push(1, 1, 2, 1, keys).status is Status.OK
    assert asking.push(0, 2, 1, 0, keys).status is Status.OK
    assert "--overlay-bytes-max" in image.failed
    assert image.overlay_bytes == 0
    assert all(table.overlay is None for table in asking.shard.tables.values())
    assert asking.values([1, 4999]) == [3, 2]
    asking.tick(1, 1, prev=2)
    assert not image.reached
    assert asking.shard.image is image  # so that who waits for it learns why


def test_without_memory_for_it_it_fails_but_the_push_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    asking, image = cut_at(1)
    monkeypatch.setattr(SparseShard, "take", no_memory)
    assert asking.push(0, 2, 1, 0, [1, 2, 77]).status is Status.OK
    assert "no room" in image.failed
    assert asking.values([1, 2, 77]) == [2, 2, 1]


def test_a_newer_cut_or_an_abort_ends_it() -> None:
    asking, image = cut_at(1)
    asking.push(0, 2, 1, 0, [1])
    give_cut(asking, 6, 2)
    assert "cut 6" in image.failed
    assert image.overlay_bytes == 0
    newer = asking.shard.image
    assert newer is not None
    assert newer.cut.number == 6
    asking.one(Kind.ABORT, n=6)
    assert "given up" in newer.failed
    assert asking.shard.image is None


def test_a_table_that_is_dropped_meanwhile_ends_it() -> None:
    asking, image = cut_at(1)
    asking.one(Kind.DROP_TABLE, table=2)
    assert "table 2 was dropped" in image.failed
    assert asking.shard.tables[1].overlay is None


def test_a_table_that_was_captured_may_be_dropped() -> None:
    asking, image = cut_at(1)
    asking.tick(1, 1, prev=1)
    image.start({})
    piece = image.next_piece(1000)
    assert piece is not None
    assert (piece.table, piece.keys.tolist()) == (1, [1, 2, 3, 4])
    assert image.next_piece(1000) is None
    asking.one(Kind.DROP_TABLE, table=1)
    assert image.failed == ""


def test_a_table_that_is_opened_before_the_cut_is_reached_is_in_it() -> None:
    asking, image = cut_at(1)
    asking.open_table(3, SUMS)
    asking.push(1, 1, 2, 1, [5], table=1)
    worker = WorkerId(1, 1, 1)
    push = {"keys": [5], "values": np.ones(1, np.int64)}
    asking.one(Kind.PUSH, worker=worker, clock=1, n=3, prev=2, table=3, **push)
    asking.tick(1, 1, prev=3)
    asking.open_table(4, SUMS)
    image.start({})
    pieces = list(iter(lambda: image.next_piece(1000), None))
    assert [number for number, *_ in image.head()[0]] == [1, 2, 3]
    assert {piece.table for piece in pieces} == {1, 3}


def test_a_job_that_is_removed_before_it_comes_to_the_cut_ends_it() -> None:
    asking, image = cut_at(1)
    asking.one(Kind.CLOSE_JOB, worker=WorkerId(1, 0, 0))
    assert "removed" in image.failed
    asking, image = cut_at(1)
    asking.tick(1, 1, prev=1)
    asking.one(Kind.CLOSE_JOB, worker=WorkerId(1, 0, 0))
    assert not image.failed
    assert image.head()[1][0][3][1][:3] == [1, 1, True]


def test_only_the_server_that_the_cut_names_takes_an_image() -> None:
    asking, _ = cut_at(1)
    give_cut(asking, 6, 1, by="s2")
    assert asking.shard.image is None
    assert asking.shard.cuts.cut is not None


def test_a_rank_is_in_it_as_it_ticked_the_clock_or_left_before() -> None:
    asking, image = cut_at(2)
    asking.tick(0, 2)
    asking.tick(0, 3)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 0, 1), n=1)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=2)
    assert image.reached
    jobs = image.head()[1]
    assert jobs[0][2:] == [2, [[0, 2, True, 1, "YXQgMg=="], [1, 0, False, 1, ""]]]


def test_jobs_that_rest_are_taken_as_they_stand() -> None:
    asking = Asking(SSP(2))
    asking.shard.server = ME
    asking.push(0, 1, 1, 0, [1, 2, 3])
    asking.tick(0, 1, prev=1)
    text = Cut(1, (), ME, resting=(1,)).to_json().encode()
    assert asking.one(Kind.CUT, n=1, text=text).status is Status.OK
    image = asking.shard.image
    assert image is not None
    assert image.reached
    asking.push(1, 1, 1, 0, [1])
    image.start({})
    piece = image.next_piece(1000)
    assert piece is not None
    assert piece.content.tolist() == [1, 1, 1]
    assert image.head()[1][0][2:] == [1, [[0, 1, True, 1, "YXQgMQ=="], [1, 0, True, 1, ""]]]


def test_what_was_touched_is_not_known_after_stamps_began_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking, image = cut_at(1)
    asking.tick(1, 1, prev=1)
    give_cut(asking, 6, 2)
    for rank in (0, 1):
        asking.push(rank, 2, 1, 0, [1])
        asking.tick(rank, 2, prev=1)
    image = asking.shard.image
    assert image is not None
    assert image.delta_rows(1, 5) == 1
    assert image.delta_rows(1, 4) is None
    assert image.delta_rows(2, 5) == 0
    assert image.delta_rows(9, 5) is None
    asking.values([1, 2, 3, 4])  # pulls touch nothing
    give_cut(asking, 7, 2)
    monkeypatch.setattr(sparse, "_MAX_STAMP", 10)
    asking.push(0, 3, 1, 0, range(8))
    image = asking.shard.image
    assert image is not None
    assert image.delta_rows(1, 5) is None
    with pytest.raises(Bug):
        image.next_piece(1000)
    image.start({1: 5})
    assert "not known" in image.failed
    assert image.next_piece(1000) is None


def test_the_last_cuts_only_are_remembered() -> None:
    asking, _ = cut_at(2)
    for number in range(6, 11):
        give_cut(asking, number, 2)
    image = asking.shard.image
    assert image is not None
    for rank, prev in ((0, 0), (1, 1)):
        for clock in range(asking.shard.jobs[1].ledger.ranks[rank].ticked + 1, 3):
            asking.tick(rank, clock, prev=prev)
            prev = 0
    assert image.reached
    assert [image.delta_rows(1, number) is None for number in range(5, 11)] == [True] * 2 + [
        False
    ] * 4


def test_pieces_are_bounded_and_follow_one_another() -> None:
    asking, image = cut_at(1)
    asking.push(1, 1, 2, 1, np.arange(10_000, dtype=np.uint64))
    asking.tick(1, 1, prev=2)
    image.start({})
    at = 0
    while (piece := image.next_piece(5_000)) is not None:
        assert piece.keys.nbytes + piece.content.nbytes <= 5_000
        assert piece.at == at
        at = piece.end
        asking.push(0, 2, at, 0, piece.keys[:3])
    assert at == 10_000
    assert image.overlay_bytes == 0


# -- copies of the state


def test_a_copy_knows_the_cut_but_takes_no_image() -> None:
    asking, _ = cut_at(1)
    source = CopySource(asking.shard, EPOCH, 1, ())
    head, *pieces = source.first_pieces()
    target = CopyTarget(head, 1)
    target.shard.server = ME
    for piece in [*pieces, *iter(source.next_piece, None)]:
        target.take(piece)
    assert target.shard.image is None
    assert target.shard.cuts == asking.shard.cuts
    assert target.shard.digest() == asking.shard.digest()


def test_a_replica_that_takes_in_a_copy_cannot_take_an_image() -> None:
    asking, _ = cut_at(1)
    source = CopySource(asking.shard, EPOCH, 1, ())
    head, *pieces = source.first_pieces()
    target = CopyTarget(head, 1)
    target.shard.server = ME
    for piece in pieces:
        target.take(piece)
    text = Cut(6, ((1, 1),), ME).to_json().encode()
    for shard in (asking.shard, target.shard):
        command = Command(Kind.CUT, n=6, text=text)
        assert shard.apply(Entry(Position(EPOCH, shard.lsn + 1), command)).status is Status.OK
    assert target.shard.image is not None
    assert "copy" in target.shard.image.failed
    assert target.shard.digest()

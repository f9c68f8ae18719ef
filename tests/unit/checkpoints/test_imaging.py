"""The imaging machine: what it writes is the cut, small, bounded and paced; faults end in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from imaging_world import JOB, MS, SECOND, SPARSE, World, apply, digests_of

from resilient_ps.barrier import Update
from resilient_ps.checkpoints import image_writing, imaging
from resilient_ps.checkpoints.progress import asked_cut
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.uploads import ATTEMPTS
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.errors import ResilientPsError
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Command, Kind
from resilient_ps.storage.blobs import BlobRequest, GetBlob, PutBlob, StoreRefused, StoreUnavailable
from resilient_ps.storage.names import index_name
from resilient_ps.storage.shard_index import ShardIndex
from resilient_ps.tables.optimisers import Adagrad, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.tables.survey import Survey

EVERY = np.arange(3000, dtype=np.uint64)
SPARSE_ONLY = (SPARSE,)
SUM = SparseSpec("t/sums", 2, "int64", Sum())
SMALL_DENSE = (SPARSE, DenseSpec("t/dense", (50,), optimiser=Adagrad(lr=0.1)))


def some(seed: int, count: int, of: int = len(EVERY)) -> Any:
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(of, count, replace=False)).astype(np.uint64)


def sum_of(world: World, keys: Any, value: int) -> None:
    """Rank 0 adds the value to these rows of table 1, in a clock of their own; rank 1 ticks."""
    world.clock = [clock + 1 for clock in world.clock]
    shard, clock = world.replicas[0].shard, world.clock[0]
    values = np.full(len(keys) * SUM.dim, value, np.int64)
    first = Command(Kind.PUSH, WorkerId(JOB, 0, 1), clock, 1, 0, 1, keys=keys, values=values)
    apply(shard, first)
    for rank in range(2):
        n = int(rank == 0)
        apply(shard, Command(Kind.TICK, WorkerId(JOB, rank, 1), clock, n, n))


def trained(**fields: Any) -> World:
    world = World(**fields)
    for rank in range(2):
        world.push(rank, EVERY)
    return world


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 16 KiB, so that small tables have many."""
    nbytes = 16 << 10
    for module in (imaging, image_writing):
        monkeypatch.setattr(module, "CHUNK_BYTES", nbytes)
    monkeypatch.setattr(imaging, "OBJECT_BYTES", 4 * nbytes)
    monkeypatch.setattr(imaging, "HELD_BYTES_MAX", 16 * nbytes)
    return nbytes


# -- what is written


@pytest.mark.usefixtures("small_pieces")
def test_what_is_written_is_the_cut_whatever_comes_while_it_is() -> None:
    world = trained()
    id = world.cut(1, ahead=2)
    expected = trained()
    for clock in (1, 2):
        for rank in range(2):
            touched = some(clock, 700, 4000)
            world.push(rank, touched)
            expected.push(rank, touched)
            if clock == 1:
                world.run_for(50 * MS)
                assert set(world.states(1)) == {"waiting"}
    for clock in range(5):
        for rank in range(2):
            world.push(rank, some(10 + clock, 900, 5000))
            world.run_for(10 * MS)
    world.run_until(lambda: set(world.states(1)) == {"done"})
    world.publish(id)
    assert [digests_of(shard) for shard in world.restored(id, 2)] == expected.digests()
    assert len(world.restored(id, 3)) == 3


def test_the_ranks_of_the_cut_are_in_the_index() -> None:
    world = trained()
    world.cut(1, ahead=1)
    for rank in (1, 1, 0):
        world.push(rank, some(1, 10))
    world.run_until(lambda: set(world.states(1)) == {"done"})
    told = world.told(1)["0"]
    index = ShardIndex.from_json(world.store.peek(told["index"]) or b"", "x")
    ranks = index.jobs[0].ranks
    assert [(r.rank, r.ticked, r.cursor) for r in ranks] == [
        (0, 2, b"cursor 2"),
        (1, 2, b"cursor 2"),
    ]
    assert index.cut == 1


@pytest.mark.usefixtures("small_pieces")
def test_the_index_is_put_when_everything_that_it_names_is_there() -> None:
    world = trained()
    id = world.cut(1)
    names = [index_name("c", id, shard, 0xABC) for shard in range(2)]
    seen: set[str] = set()
    while set(world.states(1)) != {"done"}:
        assert world.step()
        for name in names:
            raw = world.store.peek(name)
            if raw is not None and name not in seen:
                seen.add(name)
                for each in ShardIndex.from_json(raw, name).objects:
                    assert len(world.store.peek(each.name) or b"") == each.nbytes
    assert seen == set(names)


def test_a_server_tells_for_whom_it_waits_and_how_far_it_is() -> None:
    world = trained()
    world.cut(7, ahead=1)
    world.push(0, some(1, 5))
    world.run_for(100 * MS)
    assert {each["state"] for each in world.told(7).values()} == {"waiting"}
    assert "1" in world.told(7)["0"]["waits_for"]
    assert world.told(6) == {}
    world.push(1, some(2, 5))
    world.run_until(lambda: set(world.states(7)) == {"done"})
    told = world.told(7)["1"]
    assert told["done_bytes"] == told["total_bytes"] > 0
    assert told["uploaded_bytes"] > told["stored_bytes"] > 0  # the index too


@pytest.mark.usefixtures("small_pieces")
def test_the_same_state_gives_the_same_objects() -> None:
    worlds = [trained(), trained()]
    for world in worlds:
        world.checkpoint(1)
    one, other = [{n: w.store.peek(n) for n in w.store.names()} for w in worlds]
    assert one == other


# -- how much is written


def shares(touched: Any, world: World) -> float:
    """The bytes of a second checkpoint after these rows were touched, as part of the first's."""
    first, _ = world.checkpoint(1)
    for rank in range(2):
        world.push(rank, touched)
    expected = world.digests()
    second, _ = world.checkpoint(2, base=str(first))
    assert [digests_of(shard) for shard in world.restored(second, 2)] == expected
    return world.uploaded_bytes(second) / world.uploaded_bytes(first)


@pytest.mark.parametrize("keys", ["uniform", "zipf", "new"])
def test_after_touching_one_row_in_twenty_little_is_uploaded(keys: str) -> None:
    rows = 40_000
    world = World(tables=SPARSE_ONLY)
    world.push(0, np.arange(rows, dtype=np.uint64))
    world.push(1, np.arange(1, dtype=np.uint64))
    draw = np.random.default_rng(5)
    touched: Any = some(3, rows // 20, rows)
    if keys == "zipf":
        touched = np.unique(draw.zipf(1.3, 60_000) % rows)[: rows // 20]
    if keys == "new":
        touched = np.arange(rows, rows + rows // 20)
    assert len(touched) > rows // 40
    share = shares(touched.astype(np.uint64), world)
    assert share <= 0.075


def test_when_nothing_was_touched_only_indexes_are_uploaded() -> None:
    world = trained()
    first, _ = world.checkpoint(1)
    second, manifest = world.checkpoint(2, base=str(first))
    assert [
        name for name in world.store.names() if f"/{second}/" in name and "chunks" in name
    ] == []
    assert {each.name for each in manifest.objects} == {
        name for name in world.store.names() if name.endswith(".chunks")
    }


@pytest.mark.usefixtures("small_pieces")
def test_dense_chunks_that_did_not_change_are_used_again() -> None:
    world = trained()
    first, _ = world.checkpoint(1)
    dense = 2
    shard = world.replicas[1].shard
    held = shard.tables[dense]
    blocks = held._held.blocks[:1]
    values = np.ones(held.elements(blocks), np.float32)
    held.apply(Update(1, dense, blocks, values))
    second, manifest = world.checkpoint(2, base=str(first))
    new = [
        chunk
        for index in world.indexes(manifest)
        for chunk in index.chunks
        if str(second) in index.objects[chunk.object].name
    ]
    assert {chunk.table for chunk in new} == {dense}
    total = sum(len(index.chunks) for index in world.indexes(manifest))
    assert 0 < len(new) < total / 3


def test_many_deltas_end_in_a_full_image_and_each_can_be_restored() -> None:
    world = trained(tables=SMALL_DENSE)
    base, _ = world.checkpoint(1)
    generations = []
    for number in range(2, 13):
        for rank in range(2):
            world.push(rank, some(number, 40))
        expected = world.digests()
        base, manifest = world.checkpoint(number, base=str(base))
        chunks = [c for index in world.indexes(manifest) for c in index.chunks if c.table == 1]
        generations.append(max(chunk.generation for chunk in chunks))
        assert [digests_of(shard) for shard in world.restored(base, 2)] == expected
    assert generations == [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]


def test_a_table_of_which_more_than_half_was_touched_is_written_in_full() -> None:
    world = trained(tables=SMALL_DENSE)
    first, _ = world.checkpoint(1)
    world.push(0, some(1, 1700))
    world.push(1, some(1, 1))
    _, manifest = world.checkpoint(2, base=str(first))
    assert {c.kind for index in world.indexes(manifest) for c in index.chunks} == {
        "rows",
        "elements",
    }


def test_a_table_that_the_base_does_not_have_is_written_in_full() -> None:
    world = trained(tables=SPARSE_ONLY)
    first, _ = world.checkpoint(1)
    new = DenseSpec("t/new", (20,))
    for replica in world.replicas.values():
        apply(replica.shard, Command(Kind.OPEN_TABLE, table=9, text=new.to_json().encode()))
    world.tables = (SPARSE,)
    _, manifest = world.checkpoint(2, base=str(first))
    kinds = {(c.table, c.kind) for index in world.indexes(manifest) for c in index.chunks}
    assert kinds == {(1, "rows"), (9, "elements")}


@pytest.mark.parametrize("lost", ["manifest", "index", "record"])
def test_without_its_base_a_checkpoint_is_larger_but_whole(lost: str) -> None:
    world = trained()
    first, manifest = world.checkpoint(1)
    if lost == "manifest":
        world.store.damage(f"c/checkpoints/{first}/manifest.json", b"{}")
    elif lost == "index":
        for info in manifest.indexes:
            world.store.damage(info.name, None)
    else:
        del world.etcd[world.keys.checkpoint(1)]
    second, _ = world.checkpoint(2, base=str(first))
    assert world.uploaded_bytes(second) >= sum(each.nbytes for each in manifest.objects)
    assert [digests_of(shard) for shard in world.restored(second, 2)] == world.digests()
    warned = [log for log in world.logs if log.event == "a base checkpoint cannot be read"]
    assert len(warned) == {"manifest": 1, "index": 2, "record": 0}[lost]


def test_a_base_of_an_earlier_incarnation_gives_chunks_but_no_deltas() -> None:
    world = trained(tables=SPARSE_ONLY)
    first, _ = world.checkpoint(1)
    world.incarnation = 2
    for rank in range(2):
        world.push(rank, some(1, 10))
    second, manifest = world.checkpoint(2, base=str(first))
    assert {c.kind for index in world.indexes(manifest) for c in index.chunks} == {"rows"}
    assert [digests_of(shard) for shard in world.restored(second, 2)] == world.digests()


# -- bounds and pace


def test_memory_stays_bounded_however_slow_the_store_is(small_pieces: int) -> None:
    world = trained(fault=lambda request, before: SECOND)
    uploads, most = world.imaging._uploads, 0
    world.cut(1)
    while set(world.states(1)) != {"done"}:
        assert world.step()
        waiting = sum(w.waiting_bytes for w in world.imaging._writings.values())
        most = max(most, uploads.held_bytes + waiting)
    assert most <= imaging.HELD_BYTES_MAX
    assert most > imaging.HELD_BYTES_MAX / 2
    assert sum(each["done_bytes"] for each in world.told(1).values()) > 3 * most
    assert world.most_in_flight <= 4 + world.shards  # objects; before them, what the base has


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_no_more_objects_are_under_way_than_was_said(concurrency: int) -> None:
    settings = CheckpointSettings(upload_concurrency=concurrency)
    world = trained(settings=settings, fault=lambda request, before: SECOND)
    world.checkpoint(1)
    assert 1 <= world.most_in_flight <= concurrency


def test_one_step_captures_one_piece(small_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = trained()
    captured: list[int] = []
    take = image_writing.ImageWriting.capture

    def counted(writing: Any) -> int:
        captured.append(world.now_ns)
        nbytes = take(writing)
        assert nbytes <= small_pieces
        return nbytes

    monkeypatch.setattr(image_writing.ImageWriting, "capture", counted)
    world.checkpoint(1)
    assert len(captured) > 20
    assert min(np.diff(captured)) >= imaging.STEP_NS


def test_what_was_touched_is_found_out_at_once_while_nobody_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Survey.step, "__defaults__", (64,))
    world = trained()
    first, _ = world.checkpoint(1)
    world.push(0, some(1, 10))
    world.push(1, some(2, 10))
    looked: list[tuple[int, int]] = []
    begin = image_writing.ImageWriting.begin

    def noted(writing: Any, base: Any) -> bool:
        looked.append((writing.place.shard, world.now_ns))
        return begin(writing, base)

    monkeypatch.setattr(image_writing.ImageWriting, "begin", noted)
    world.checkpoint(2, base=str(first))
    assert len(looked) > 20
    assert len(set(looked)) == 2


@pytest.mark.usefixtures("small_pieces")
def test_uploads_keep_the_pace_that_was_asked_for() -> None:
    rate = 100_000
    world = trained(settings=CheckpointSettings(upload_bytes_per_s=rate))
    begun_ns = world.now_ns
    id, _ = world.checkpoint(1)
    seconds = (world.now_ns - begun_ns) / SECOND
    assert 0.8 <= world.uploaded_bytes(id) / rate / seconds <= 1.3


def _seconds_for(share: float, *, pushing: bool, hurry: str = "", **fields: Any) -> float:
    """A checkpoint beside pushes to the same few rows, where each object takes a while."""
    settings = CheckpointSettings(upload_share=share, **fields)
    world = trained(settings=settings, fault=lambda request, before: 100 * MS)
    if hurry == "a server stops":
        server = ServerRecord("s2", 2, "h", 1, "", "", 1, 1, "", 1, "h", stopping=True)
        world.put_record(world.keys.server("s2"), server)
    world.cut(1, attempt=int(hurry == "second attempt"))
    if hurry == "much is kept":
        for replica in world.replicas.values():
            replica.shard.image._allowance.bytes_max = 1 << 16
    while set(world.states(1)) != {"done"}:
        if pushing:
            world.push(0, EVERY[:10])
        world.run_for(20 * MS)
        assert world.now_ns < 1000 * SECOND
    return world.now_ns / SECOND


@pytest.mark.usefixtures("small_pieces")
def test_while_pushes_come_in_objects_go_one_by_one_with_rests_between() -> None:
    quick = _seconds_for(1.0, pushing=True)
    assert _seconds_for(0.25, pushing=False) == quick  # nobody is in the way
    alone = _seconds_for(0.99, pushing=True)
    assert quick < alone / 2
    assert alone * 2 < _seconds_for(0.25, pushing=True) < alone * 5


@pytest.mark.usefixtures("small_pieces")
def test_there_are_no_rests_when_the_next_checkpoint_is_near() -> None:
    leisurely = _seconds_for(0.25, pushing=True)
    assert _seconds_for(0.25, pushing=True, every_s=1.0) < leisurely / 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("hurry", ["much is kept", "second attempt", "a server stops"])
def test_a_checkpoint_does_not_fail_for_its_pace(hurry: str) -> None:
    """Where there is a reason to hurry, it is soon done though pushes come in."""
    leisurely = _seconds_for(0.25, pushing=True)
    assert _seconds_for(0.25, pushing=True, hurry=hurry) < leisurely / 2


def test_the_machine_rests_while_no_cut_is_open() -> None:
    world = trained()
    assert world.idle
    world.checkpoint(1)
    world.run_for(SECOND)
    assert world.idle


# -- ends


def failing(error: ResilientPsError, times: int, part: str = ".chunks") -> Any:
    def fault(request: BlobRequest, before: int) -> ResilientPsError | int:
        is_it = isinstance(request, PutBlob) and part in request.name
        return error if is_it and before < times else MS

    return fault


@pytest.mark.parametrize("part", [".chunks", "index.json"])
def test_a_put_that_fails_a_few_times_is_made_again(part: str) -> None:
    world = trained(fault=failing(StoreUnavailable("gone"), ATTEMPTS - 1, part))
    id, _ = world.checkpoint(1)
    assert [digests_of(shard) for shard in world.restored(id, 2)] == world.digests()
    assert world.now_ns > 7 * SECOND  # with pauses


@pytest.mark.parametrize("part", [".chunks", "index.json"])
def test_after_that_the_image_has_failed_and_the_store_is_to_blame(part: str) -> None:
    world = trained(fault=failing(StoreUnavailable("gone for good"), 10**9, part))
    world.cut(1)
    world.run_until(lambda: set(world.states(1)) == {"failed"})
    told = world.told(1)["0"]
    assert told["store"] is True
    assert "gone for good" in told["why"]
    assert part in told["why"]
    puts = [call for call in world.calls if isinstance(call, PutBlob) and part in call.name]
    assert max(sum(p.name == put.name for p in puts) for put in puts) == ATTEMPTS
    assert world.imaging._uploads.held_bytes == 0


def test_what_the_store_refuses_is_not_tried_again() -> None:
    refused = StoreRefused("no space left", why="full")
    world = trained(fault=failing(refused, 10**9))
    world.cut(1)
    world.run_until(lambda: set(world.states(1)) == {"failed"})
    assert len([call for call in world.calls if isinstance(call, PutBlob)]) == 2
    assert "no space left" in world.told(1)["1"]["why"]


def test_an_image_that_fails_by_itself_is_told_and_the_store_is_not_to_blame() -> None:
    world = trained()
    world.cut(1, ahead=1)
    world.run_for(50 * MS)
    world.replicas[1].shard.image.fail("too much was kept aside")
    world.run_for(50 * MS)
    told = world.told(1)
    assert told["0"]["state"] == "waiting"
    assert told["1"]["state"] == "failed"
    assert (told["1"]["why"], told["1"]["store"]) == ("too much was kept aside", False)


@pytest.mark.usefixtures("small_pieces")
def test_an_aborted_cut_is_dropped_with_all_that_it_holds() -> None:
    world = trained(fault=lambda request, before: 2 * SECOND)
    world.cut(1)
    world.run_for(SECOND)
    assert world.in_flight
    for replica in world.replicas.values():
        apply(replica.shard, Command(Kind.ABORT, n=1))
    world.intend(1, 1, state="aborted")
    assert world.told(1) == {}
    calls = len(world.calls)
    world.run_for(60 * SECOND)
    assert world.idle
    assert len(world.calls) == calls
    assert world.imaging._uploads.held_bytes == 0


@pytest.mark.usefixtures("small_pieces")
def test_a_replica_that_is_dropped_takes_its_unfinished_image_along() -> None:
    world = trained()
    world.cut(1)
    world.run_for(40 * MS)
    assert "writing" in world.states(1)
    world.replicas[0].shard = None
    world.run_for(SECOND)
    assert list(world.told(1)) == ["1"]
    assert world.states(1) == ["done"]


@pytest.mark.usefixtures("small_pieces")
def test_a_newer_cut_takes_the_place_of_an_older_one() -> None:
    world = trained(fault=lambda request, before: SECOND)
    world.cut(1)
    world.run_for(SECOND)
    world.intend(1, 1, state="aborted")
    id = world.cut(2)
    world.run_until(lambda: set(world.states(2)) == {"done"})
    assert world.told(1) == {}
    world.publish(id)
    assert [digests_of(shard) for shard in world.restored(id, 2)] == world.digests()


def test_names_are_never_used_again_in_a_process() -> None:
    world = trained()
    base = ""
    for number in (1, 2, 3):
        world.push(0, some(number, 50))
        world.push(1, some(number, 50))
        id, _ = world.checkpoint(number, base)
        base = str(id)
    puts = [c.name for c in world.calls if isinstance(c, PutBlob) and c.name.endswith(".chunks")]
    numbers = [name.rsplit("-", 1)[1] for name in puts]
    assert len(set(numbers)) == len(numbers)


def test_a_wish_or_an_intent_that_makes_no_sense_is_left_to_the_coordinator() -> None:
    world = trained()
    id = world.intend(5, 1)
    key = world.keys.intent(5)
    world.etcd[key] = world.etcd[key].replace(str(id).encode(), b"no-id")
    world.put_record(world.keys.config, world.view.config)
    world.tell_cut(5, 1)
    world.run_for(SECOND)
    assert world.told(5) == {}
    assert not world.calls


def test_the_question_of_a_coordinator_is_recognised() -> None:
    assert asked_cut('{"image": {"cut": 17, "id": "1-17-00000000"}}') == 17
    for other in ("status", '{"image": {"cut": "17"}}', '{"image": 3}', "[" * 9999, "{}", ""):
        assert asked_cut(other) is None


def test_the_base_is_read_once() -> None:
    world = trained(shards=4)
    first, _ = world.checkpoint(1)
    before = len(world.calls)
    world.checkpoint(2, base=str(first))
    gets = [call for call in world.calls[before:] if isinstance(call, GetBlob)]
    assert len(gets) == 1 + 4


def test_bytes_that_are_told_are_those_of_the_pieces() -> None:
    world = trained()
    world.cut(1)
    world.run_until(lambda: set(world.states(1)) == {"done"})
    for shard, told in world.told(1).items():
        index = ShardIndex.from_json(world.store.peek(told["index"]) or b"", "x")
        assert told["done_bytes"] == index.raw_bytes
        assert index.shard == int(shard)


def test_rows_that_become_again_what_an_earlier_delta_holds_are_restored_so() -> None:
    """A delta takes the place of those before it: one that is there already is no substitute."""
    world = World(tables=(SUM,), shards=1)
    sum_of(world, EVERY, 1)
    base, _ = world.checkpoint(1)
    for number, (keys, value) in enumerate([(EVERY[:10], 1), (EVERY[:12], 5), (EVERY[:10], -5)], 2):
        sum_of(world, keys, value)
        base, _ = world.checkpoint(number, base=str(base))
    assert [digests_of(shard) for shard in world.restored(base)] == world.digests()


def test_an_image_that_has_failed_before_anybody_looked_at_it_is_told() -> None:
    world = trained(tables=SPARSE_ONLY)
    world.cut(1)
    image = world.replicas[0].shard.image
    assert image.reached
    image.fail("pushes were faster")
    world.run_until(lambda: world.states(1) == ["failed", "done"])
    assert world.told(1)["0"]["why"] == "pushes were faster"


@pytest.mark.parametrize(("hold", "state"), [(False, "failed"), (True, "done")])
def test_where_every_clock_touches_every_row_attempts_that_hold_may_keep_all_of_them(
    hold: bool, state: str
) -> None:
    """Else there would never be a checkpoint of such a job."""

    def slow(request: BlobRequest, before: int) -> int:
        return 200 * MS if isinstance(request, PutBlob) else MS

    every = np.arange(250_000, dtype=np.uint64)
    world = World(tables=SPARSE_ONLY, shards=1, fault=slow)
    for rank in range(2):
        world.push(rank, every)
    world.cut(1, hold=hold)
    for rank in (0, 1, 0, 1):
        world.push(rank, every)
        world.run_for(20 * MS)
    world.run_until(lambda: world.states(1) == [state])


def test_what_is_long_in_coming_is_looked_for_ever_less_often_and_still_found_soon() -> None:
    world = trained()
    world.cut(1, ahead=1)
    looked = 0
    while world.now_ns < 10 * SECOND:
        assert world.step()
        looked += 1
    assert 10 * SECOND // imaging.WATCH_MOST_NS <= looked < 10 * SECOND // imaging.WATCH_NS // 4
    assert not any(isinstance(call, PutBlob) for call in world.calls)
    came_ns = world.now_ns
    for rank in range(2):
        world.push(rank, EVERY)
    world.run_until(lambda: any(isinstance(call, PutBlob) for call in world.calls))
    assert world.now_ns - came_ns <= 2 * imaging.WATCH_MOST_NS

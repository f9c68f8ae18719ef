"""Reading a checkpoint: the same model on any number of shards; what is damaged is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_images import ID, Model, get, get_all, pieces, store_manifest, store_model, store_shard

from resilient_ps.storage.chunks import Chunk
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import Manifest, ShardIndex
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import manifest_name
from resilient_ps.storage.reading import (
    FETCH_BYTES,
    GAP_BYTES,
    Portion,
    Verified,
    indexes_needed,
    plan_load,
    plan_verify,
    read_index,
    read_manifest,
    rows_expected,
)
from resilient_ps.storage.requests import sha256_of
from resilient_ps.tables.optimisers import SGD, Adagrad, Adam, Optimiser
from resilient_ps.tables.spec import DenseSpec, SparseSpec

OPTIMISERS = [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]
# rows so long that a block of at most 256 KiB has few of them: many blocks, few elements
DENSE_SHAPE = (9, 40_000)


def model_of(
    shards: int, optimiser: Optimiser = OPTIMISERS[1], dense: tuple[int, ...] = (70,)
) -> Model:
    return Model(
        SparseSpec("t/sparse", 4, optimiser=optimiser),
        DenseSpec("t/dense", dense, optimiser=optimiser),
        shards,
    )


def trained(
    shards: int, optimiser: Optimiser = OPTIMISERS[1], dense: tuple[int, ...] = (70,)
) -> Model:
    model = model_of(shards, optimiser, dense)
    for seed in range(3):
        keys = np.random.default_rng(seed).integers(0, 500, 200).astype(np.uint64)
        model.push(seed, np.unique(keys))
    return model


def take(model: Model, portion: Portion) -> None:
    """What a server does with a portion."""
    if portion.kind == "elements":
        model.dense[portion.shard].load_from_whole(portion.at, portion.end, portion.content)
    else:
        rows = portion.content.reshape(len(portion.keys), portion.columns)
        model.sparse[portion.shard].load(portion.keys, rows)


def restore(store: MemoryBlobs, model: Model, wanted: list[int]) -> int:
    """Make these shards of an empty model of what the store has; bytes transferred."""
    found = get(store, read_manifest(manifest_name("c", ID))).decoded
    assert isinstance(found, Manifest)
    needed = indexes_needed(found, model.shards, wanted)
    indexes = [get(store, read_index(found, shard)).decoded for shard in needed]
    plan = plan_load(indexes, model.shards, wanted)
    generations = [fetch.generation for fetch in plan.fetches]
    assert generations == sorted(generations)
    for fetch in plan.fetches:
        for portion in get(store, fetch.request).decoded:
            assert portion.shard in wanted
            take(model, portion)
    return plan.nbytes


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("olds", "news"), [(1, 1), (4, 4), (4, 1), (1, 3), (4, 6), (5, 2), (3, 7)])
def test_a_model_is_the_same_on_any_number_of_shards(
    olds: int, news: int, optimiser: Optimiser
) -> None:
    store, restored = MemoryBlobs(), model_of(news, optimiser, DENSE_SHAPE)
    store_model(store, trained(olds, optimiser, DENSE_SHAPE), rows=33_333)
    restore(store, restored, list(range(news)))
    assert restored.digests() == trained(news, optimiser, DENSE_SHAPE).digests()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
@settings(max_examples=25)
def test_small_chunks_make_no_difference(olds: int, news: int, rows: int) -> None:
    store, restored = MemoryBlobs(), model_of(news)
    store_model(store, trained(olds), rows)
    restore(store, restored, list(range(news)))
    assert restored.digests() == trained(news).digests()


def test_servers_that_load_a_shard_each_make_the_same_model() -> None:
    store, restored = MemoryBlobs(), model_of(6)
    store_model(store, trained(4))
    for shard in range(6):
        restore(store, restored, [shard])
    assert restored.digests() == trained(6).digests()


def test_only_overlapping_parts_are_read() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(8))
    assert indexes_needed(manifest, 8, [3]) == (3,)
    sparse_only = replace(manifest, tables=manifest.tables[:1])
    assert indexes_needed(sparse_only, 4, [1]) == (2, 3)
    assert indexes_needed(sparse_only, 16, [5]) == (2,)
    assert indexes_needed(sparse_only, 5, [1]) == (1, 2, 3)
    whole = restore(store, model_of(8), list(range(8)))
    assert restore(store, model_of(8), [3]) < whole / 4


def test_it_is_known_about_how_many_rows_each_shard_will_have() -> None:
    store = MemoryBlobs()
    for olds, news in ((4, 4), (4, 1), (1, 3), (4, 6)):
        manifest = store_model(store, trained(olds))
        indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(olds)]
        for shard, table in enumerate(trained(news).sparse):
            expected = rows_expected(indexes, news, shard)
            assert list(expected) == [1]
            assert abs(expected[1] - len(table)) <= (0 if olds == news else 40)


def test_shards_are_read_in_turn_so_that_all_can_be_made_at_the_same_time() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(3), rows=5)
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(3)]
    fetches = plan_load(indexes, 3, [0, 1, 2]).fetches
    first = [get(store, fetch.request).decoded[0].shard for fetch in fetches[:6]]
    assert first == [0, 1, 2, 0, 1, 2]


def test_later_generations_take_the_place_of_earlier_rows() -> None:
    store, model = MemoryBlobs(), trained(2)
    full = [list(pieces(model, shard, 10)) for shard in range(2)]
    touched = np.arange(0, 700, 7, dtype=np.uint64)  # some of them new
    model.push(9, touched)
    stored = []
    for shard in range(2):
        table, dense = model.sparse[shard], model.dense[shard]
        where = np.isin(table._row_keys[: len(table)], touched)
        keys, rows = table.capture(0, len(table))
        delta = Chunk(
            1, "delta", 0, int(where.sum()), table.columns, keys[where], rows[where].reshape(-1)
        )
        newest = [chunk for chunk in pieces(model, shard, 10) if chunk.kind == "elements"]
        older = [chunk for chunk in full[shard] if chunk.kind == "rows"]
        assert len(table) > older[-1].end
        assert len(dense) == 0 or newest
        stored.append(store_shard(store, model, shard, {1: [delta], 0: [*older, *newest]}))
    store_manifest(store, model, stored)
    for news in (2, 3):
        restored, expected = model_of(news), trained(news)
        expected.push(9, touched)
        restore(store, restored, list(range(news)))
        assert restored.digests() == expected.digests()


def test_neighbours_in_an_object_are_read_together() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2), rows=5)
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(2)]
    fetches = plan_load(indexes, 2, [0, 1]).fetches
    assert len(fetches) == len(manifest.objects)
    assert sum(fetch.nbytes for fetch in fetches) == sum(each.nbytes for each in manifest.objects)


def test_what_is_not_needed_is_skipped_if_it_is_long() -> None:
    index = _index_of_sizes([FETCH_BYTES // 2, GAP_BYTES + 1, FETCH_BYTES // 2, 100], skip=1)
    fetches = plan_load([index], 1, [0]).fetches
    assert [(fetch.request.first, fetch.nbytes) for fetch in fetches] == [
        (0, FETCH_BYTES // 2),
        (FETCH_BYTES // 2 + GAP_BYTES + 1, FETCH_BYTES // 2 + 100),
    ]


def _index_of_sizes(sizes: list[int], skip: int) -> ShardIndex:
    store = MemoryBlobs()
    model = Model(SparseSpec("s", 1), DenseSpec("d", (1,)), 1)
    manifest = store_model(store, model)
    index = get(store, read_index(manifest, 0)).decoded
    template, places, offset = index.chunks[0], [], 0
    for i, size in enumerate(sizes):
        if i != skip:
            places.append(
                replace(template, table=1, kind="rows", at=i, end=i + 1, offset=offset, nbytes=size)
            )
        offset += size
    return replace(index, chunks=tuple(places))


def test_tables_jobs_and_ranks_are_told() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(3))
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(3)]
    plan = plan_load(indexes, 1, [0])
    assert [(table.number, table.writer, table.lr) for table in plan.tables] == [
        (1, 1, 0.1),
        (2, 0, 0.1),
    ]
    assert plan.jobs == indexes[0].jobs
    furthest = replace(indexes[2].jobs[0].ranks[0], ticked=6)
    indexes[2] = replace(indexes[2], jobs=(replace(indexes[2].jobs[0], ranks=(furthest,)),))
    assert plan_load(indexes, 1, [0]).jobs[0].ranks == (furthest,)


def test_shards_that_disagree_about_a_table_are_refused() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2))
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(2)]
    other = replace(indexes[1].tables[0], spec=SparseSpec("t/sparse", 5).to_json())
    indexes[1] = replace(indexes[1], tables=(other, indexes[1].tables[1]))
    with pytest.raises(Damaged, match="different specifications of table 1"):
        plan_load(indexes, 1, [0])


# -- damage


def test_everything_is_verified() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2))
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(2)]
    checks = [get(store, request).decoded for request in plan_verify(manifest, indexes)]
    assert all(isinstance(check, Verified) for check in checks)
    assert [check.name for check in checks] == [each.name for each in manifest.objects]
    assert sum(check.chunks for check in checks) == sum(len(index.chunks) for index in indexes)


def test_a_flipped_bit_anywhere_is_found_and_its_object_named() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2), rows=60)
    indexes = [get(store, read_index(manifest, shard)).decoded for shard in range(2)]
    for request in plan_verify(manifest, indexes):
        raw = store.peek(request.name)
        assert raw is not None
        for at in range(0, len(raw), max(1, len(raw) // 15)):
            store.damage(request.name, raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
            with pytest.raises(Damaged, match=request.name):
                get(store, request)
            with pytest.raises(Damaged, match=request.name):
                get_all(store, [fetch.request for fetch in plan_load(indexes, 2, [0, 1]).fetches])
        store.damage(request.name, raw)


def test_an_object_that_was_cut_off_is_found() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(1))
    index = get(store, read_index(manifest, 0)).decoded
    name = manifest.objects[-1].name
    store.damage(name, (store.peek(name) or b"")[:-1])
    with pytest.raises(Damaged, match=f"{name}.*not what was written"):
        get_all(store, [fetch.request for fetch in plan_load([index], 1, [0]).fetches])
    with pytest.raises(Damaged, match=f"{name} has .* bytes instead of"):
        get_all(store, plan_verify(manifest, [index]))


def test_an_index_or_manifest_that_was_changed_is_found() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2))
    name = manifest_name("c", ID)
    raw = store.peek(name) or b""
    assert get(store, read_manifest(name, len(raw), sha256_of([raw]))).decoded == manifest
    store.damage(name, raw.replace(b'"created_s": 1790000000', b'"created_s": 1790000001'))
    with pytest.raises(Damaged, match=f"{name} has been changed"):
        get(store, read_manifest(name, len(raw), sha256_of([raw])))
    index_name = manifest.indexes[1].name
    store.damage(index_name, (store.peek(index_name) or b"") + b" ")
    with pytest.raises(Exception, match=index_name):
        get(store, read_index(manifest, 1))


def test_an_index_of_another_shard_or_cut_is_refused() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(2))
    swapped = replace(manifest, indexes=manifest.indexes[::-1])
    with pytest.raises(Damaged, match="is of shard 1 of 2"):
        get(store, read_index(swapped, 0))
    later = replace(manifest, id=ID._replace(number=18))
    with pytest.raises(Damaged, match="at cut 17"):
        get(store, read_index(later, 0))


def test_an_index_whose_objects_the_manifest_does_not_name_is_refused() -> None:
    store = MemoryBlobs()
    manifest = store_model(store, trained(1))
    with pytest.raises(Damaged, match="its manifest has not the same"):
        get(store, read_index(replace(manifest, objects=manifest.objects[1:]), 0))


def test_an_index_with_a_gap_is_refused() -> None:
    store, model = MemoryBlobs(), trained(1)
    parts = list(pieces(model, 0, 50))
    for missing in (0, 2, len([c for c in parts if c.kind == "rows"]) - 1, len(parts) - 1):
        stored = store_shard(store, model, 0, {0: parts[:missing] + parts[missing + 1 :]})
        manifest = store_manifest(store, model, [stored])
        with pytest.raises(Damaged, match="do not make all of it"):
            get(store, read_index(manifest, 0))

"""A checkpoint in the model of a store, made of shards of tables directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from resilient_ps.storage.blobs import BlobGot, BlobPut, GetBlob, PutBlob
from resilient_ps.storage.chunks import Chunk, ObjectBody
from resilient_ps.storage.manifest import (
    ChunkPlace,
    JobEntry,
    JobState,
    Manifest,
    ObjectInfo,
    RankState,
    ShardIndex,
    TableEntry,
    TableState,
)
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, chunks_name, index_name, manifest_name
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.partition import partition
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, SparseSpec

ID = CheckpointId.of(1, 17, 0xABCDEF12)
NO_KEYS = np.empty(0, np.uint64)


def put(store: MemoryBlobs, request: PutBlob) -> BlobPut:
    result = store.apply(request, 0)
    assert isinstance(result, BlobPut)
    return result


def get(store: MemoryBlobs, request: GetBlob) -> BlobGot:
    result = store.apply(request, 0)
    assert isinstance(result, BlobGot)
    return result


def get_all(store: MemoryBlobs, requests: Iterable[GetBlob]) -> None:
    for request in requests:
        get(store, request)


@dataclass
class Model:
    """Tables 1 (sparse) and 2 (dense) on `shards` shards."""

    sparse_spec: SparseSpec
    dense_spec: DenseSpec
    shards: int
    sparse: list[SparseShard] = field(init=False)
    dense: list[DenseShard] = field(init=False)

    def __post_init__(self) -> None:
        layout = DenseLayout(self.dense_spec, self.shards)
        self.sparse = [SparseShard(self.sparse_spec) for _ in range(self.shards)]
        self.dense = [DenseShard(self.dense_spec, layout, i) for i in range(self.shards)]

    def push(self, seed: int, keys: np.ndarray) -> None:
        """The same change of the whole model, whatever the number of shards."""
        draw = np.random.default_rng(seed)
        grads = draw.standard_normal((len(keys), self.sparse_spec.dim)).astype(np.float32)
        order, counts, grouped = partition(keys, self.shards)
        ends = np.cumsum(counts)
        for shard, table in enumerate(self.sparse):
            part = slice(int(ends[shard] - counts[shard]), int(ends[shard]))
            table.push(grouped[part], grads[order[part]])
        whole = draw.standard_normal(self.dense_spec.elements).astype(self.dense_spec.dtype)
        for block_holder in self.dense:
            where = block_holder.layout.shard_slice(block_holder.shard)
            block_holder.push(block_holder.blocks, whole[where])

    def digests(self) -> list[tuple[str, str]]:
        pairs = zip(self.sparse, self.dense, strict=True)
        return [(sparse.digest(), dense.digest()) for sparse, dense in pairs]


def pieces(model: Model, shard: int, rows: int) -> Iterator[Chunk]:
    """The content of a shard, `rows` rows or elements in a chunk."""
    sparse, dense = model.sparse[shard], model.dense[shard]
    for at in range(0, len(sparse), rows):
        end = min(at + rows, len(sparse))
        keys, content = sparse.capture(at, end)
        yield Chunk(1, "rows", at, end, sparse.columns, keys, content.reshape(-1))
    first = dense.layout.shard_slice(shard).start
    for at in range(0, len(dense), rows):
        end = min(at + rows, len(dense))
        content = dense.capture(at, end)
        yield Chunk(2, "elements", first + at, first + end, dense.columns, NO_KEYS, content)


def store_shard(
    store: MemoryBlobs,
    model: Model,
    shard: int,
    generations: Mapping[int, Iterable[Chunk]],
    chunks_per_object: int = 3,
) -> tuple[ObjectInfo, tuple[ObjectInfo, ...]]:
    """Write a shard's chunks and its index."""
    objects: list[ObjectInfo] = []
    places: list[ChunkPlace] = []
    for generation, given in generations.items():
        left = list(given)
        while left:
            batch, left = tuple(left[:chunks_per_object]), left[chunks_per_object:]
            name = chunks_name("c", ID, shard, 1, len(objects) + 1)
            result = put(store, PutBlob(name, ObjectBody(batch, {})))
            for packed in result.info:
                places.append(
                    ChunkPlace(
                        *packed.key,
                        generation,
                        len(objects),
                        packed.offset,
                        packed.nbytes,
                        packed.raw_bytes,
                        packed.xxh128,
                    )
                )
            objects.append(ObjectInfo(name, result.nbytes, result.sha256))
    tables = (
        TableState(1, model.sparse_spec.to_json(), 0.1, 1, len(model.sparse[shard])),
        TableState(2, model.dense_spec.to_json(), 0.1, 0, len(model.dense[shard])),
    )
    job = JobState(1, "{}", 5, (RankState(0, 5, True, 1, b"cursor"),))
    index = ShardIndex(
        shard, model.shards, ID.number, tables, (job,), tuple(objects), tuple(places)
    )
    name = index_name("c", ID, shard, 1)
    result = put(store, PutBlob(name, index.to_json()))
    return ObjectInfo(name, result.nbytes, result.sha256), tuple(objects)


def store_model(store: MemoryBlobs, model: Model, rows: int = 10) -> Manifest:
    """Write all of a model, in full."""
    stored = [
        store_shard(store, model, shard, {0: pieces(model, shard, rows)})
        for shard in range(model.shards)
    ]
    return store_manifest(store, model, stored)


def store_manifest(
    store: MemoryBlobs, model: Model, stored: list[tuple[ObjectInfo, tuple[ObjectInfo, ...]]]
) -> Manifest:
    objects = {each.name: each for _, objects in stored for each in objects}
    manifest = Manifest(
        ID, "c", 1_790_000_000, "test", 1, {"job": 5}, "",
        (
            TableEntry(model.sparse_spec.name, 1, model.sparse_spec.to_json()),
            TableEntry(model.dense_spec.name, 2, model.dense_spec.to_json()),
        ),
        (JobEntry("job", 1, 1, "bsp", "running"),),
        (),
        tuple([index for index, _ in stored]),
        tuple([objects[name] for name in sorted(objects)]),
    )  # fmt: skip
    put(store, PutBlob(manifest_name("c", ID), manifest.to_json()))
    return manifest

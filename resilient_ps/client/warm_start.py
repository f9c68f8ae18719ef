"""Writes tables as a checkpoint that no cut has made: for clusters that begin with them.

It has no jobs, and may have any number of shards. Its rows are cut into chunks and objects like
those of any other checkpoint, and its manifest is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.importing import TableFile, planes_of, rows_of
from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import DELETE_MOST, BlobPut, Blobs, DeleteBlobs, PutBlob
from resilient_ps.storage.chunks import CHUNK_BYTES, Chunk, ObjectBody
from resilient_ps.storage.manifest import Manifest, ObjectInfo, TableEntry, Totals
from resilient_ps.storage.names import CheckpointId, chunks_name, index_name, manifest_name
from resilient_ps.storage.shard_index import ChunkKind, ChunkPlace, ShardIndex, TableState
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import DenseSpec, SparseSpec

HELD_BYTES_MAX = 256 << 20  # rows of all shards that are not written yet
NO_KEYS = np.zeros(0, np.uint64)
_Array = NDArray[Any]


@dataclass(slots=True)
class _Shard:
    """What is written of a shard, and the rows of its present table that are not."""

    number: int
    tables: list[TableState] = field(default_factory=list)
    objects: list[ObjectInfo] = field(default_factory=list)
    places: list[ChunkPlace] = field(default_factory=list)
    keys: list[NDArray[np.uint64]] = field(default_factory=list)  # of the present table
    held: list[tuple[NDArray[np.uint64], _Array]] = field(default_factory=list)
    held_bytes: int = 0
    written: int = 0  # rows of the present table


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose checkpoint it is to be. `process`: a random number that names this process."""

    cluster: str
    id: CheckpointId
    process: int
    created_s: int
    written_by: str


class WarmStart:
    """A checkpoint in the making: `add` every table, then `finish`."""

    def __init__(self, blobs: Blobs, origin: Origin, shards: int) -> None:
        self._blobs = blobs
        self._origin = origin
        self._shards = [_Shard(number) for number in range(shards)]
        self._tables: list[TableEntry] = []
        self._chunk_bytes = max(1, min(CHUNK_BYTES, HELD_BYTES_MAX // shards))

    def add(self, table: TableFile, on_rows: Callable[[int], object] = lambda rows: None) -> None:
        """Write a table's rows. Raises `BadInput` for repeated names and keys."""
        spec, number = table.spec, len(self._tables) + 1
        if spec.name in [entry.name for entry in self._tables]:
            raise BadInput(f"{table.path}: table {spec.name!r} was given twice")
        if isinstance(spec, SparseSpec):
            self._add_sparse(table, spec, number, on_rows)
        else:
            self._add_dense(table, spec, number)
            on_rows(table.rows)
        self._tables.append(TableEntry(spec.name, number, spec.to_json()))

    def finish(self) -> Manifest:
        """Write indexes and manifest. Raises `BlobExists` where there is such a checkpoint."""
        origin, shards = self._origin, self._shards
        indexes = tuple([self._put_index(shard) for shard in shards])
        objects = tuple(sorted([o for s in shards for o in s.objects], key=lambda o: o.name))
        stored = sum([each.nbytes for each in (*objects, *indexes)])
        raw = sum([place.raw_bytes for shard in shards for place in shard.places])
        manifest = Manifest(
            id=origin.id,
            cluster=origin.cluster,
            created_s=origin.created_s,
            written_by=origin.written_by,
            replicas=1,
            clocks={},
            base="",
            tables=tuple(self._tables),
            jobs=(),
            ring=(),
            indexes=indexes,
            objects=objects,
            totals=Totals(raw, stored, stored, 0),
        )
        name = manifest_name(origin.cluster, origin.id)
        self._blobs.do(PutBlob(name, manifest.to_json(), "create"))
        return manifest

    def abandon(self) -> None:
        """Delete what was written, where it is not to be finished."""
        names = [each.name for shard in self._shards for each in shard.objects]
        for first in range(0, len(names), DELETE_MOST):
            self._blobs.do(DeleteBlobs(tuple(names[first : first + DELETE_MOST])))

    # -- sparse tables

    def _add_sparse(
        self, table: TableFile, spec: SparseSpec, number: int, on_rows: Callable[[int], object]
    ) -> None:
        columns = spec.dim + spec.optimiser.state_columns(spec.dim)
        for keys, rows in rows_of(table):
            order, counts, grouped = partition(np.ascontiguousarray(keys), len(self._shards))
            ends = np.cumsum(counts)
            for shard in np.flatnonzero(counts).tolist():
                run = slice(int(ends[shard] - counts[shard]), int(ends[shard]))
                self._hold(self._shards[shard], number, columns, grouped[run], rows[order[run]])
            on_rows(len(keys))
        for each in self._shards:
            self._write_held(each, number, columns)
            self._check_keys(table, each)
            self._close_table(each, table, number, each.written)

    def _hold(
        self, shard: _Shard, number: int, columns: int, keys: NDArray[np.uint64], rows: _Array
    ) -> None:
        shard.held.append((keys, rows))
        shard.keys.append(keys)
        shard.held_bytes += keys.nbytes + rows.nbytes
        if shard.held_bytes >= self._chunk_bytes:
            self._write_held(shard, number, columns)

    def _write_held(self, shard: _Shard, number: int, columns: int) -> None:
        if not shard.held:
            return
        keys = np.concatenate([keys for keys, _ in shard.held])
        rows = np.concatenate([rows for _, rows in shard.held])
        shard.held, shard.held_bytes = [], 0
        most = max(1, CHUNK_BYTES // (8 + rows.itemsize * columns))
        chunks = []
        for first in range(0, len(keys), most):
            some = slice(first, min(first + most, len(keys)))
            at, end = shard.written + some.start, shard.written + some.stop
            content = rows[some].reshape(-1)
            chunks.append(Chunk(number, "rows", at, end, columns, keys[some], content))
        shard.written += len(keys)
        self._put_chunks(shard, chunks)

    def _check_keys(self, table: TableFile, shard: _Shard) -> None:
        keys = np.sort(np.concatenate([NO_KEYS, *shard.keys]))
        twice = keys[1:][keys[1:] == keys[:-1]]
        if len(twice):
            raise BadInput(f"{table.path}: key {twice[0]} is there more than once")

    # -- dense tables

    def _add_dense(self, table: TableFile, spec: DenseSpec, number: int) -> None:
        planes, steps = planes_of(table)
        layout = DenseLayout(spec, len(self._shards))
        for shard in self._shards:
            part = DenseShard(spec, layout, shard.number)
            where = layout.shard_slice(shard.number)
            content = [plane.reshape(-1)[where] for plane in planes]
            if spec.optimiser.counts_steps:
                first_rows = layout.blocks_of(shard.number) * (
                    layout.elements_per_block // layout.row_width
                )
                content.append(steps[first_rows.astype(np.int64)])
            part.load(0, len(part), np.concatenate(content))
            self._put_chunks(shard, list(_dense_chunks(part, number)))
            self._close_table(shard, table, number, len(part))

    # -- objects

    def _put_chunks(self, shard: _Shard, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        origin = self._origin
        name = chunks_name(
            origin.cluster, origin.id, shard.number, origin.process, len(shard.objects) + 1
        )
        put = self._blobs.do(PutBlob(name, ObjectBody(tuple(chunks), {}), "create"))
        assert isinstance(put, BlobPut)
        for packed in put.info:
            kind: ChunkKind = packed.key.kind
            shard.places.append(
                ChunkPlace(
                    table=packed.key.table,
                    kind=kind,
                    at=packed.key.at,
                    end=packed.key.end,
                    generation=0,
                    object=len(shard.objects),
                    offset=packed.offset,
                    nbytes=packed.nbytes,
                    raw_bytes=packed.raw_bytes,
                    xxh128=packed.xxh128,
                )
            )
        shard.objects.append(ObjectInfo(name, put.nbytes, put.sha256))

    def _close_table(self, shard: _Shard, table: TableFile, number: int, rows: int) -> None:
        shard.tables.append(TableState(number, table.spec.to_json(), table.lr, 0, rows))
        shard.keys, shard.written = [], 0

    def _put_index(self, shard: _Shard) -> ObjectInfo:
        origin = self._origin
        index = ShardIndex(
            shard=shard.number,
            shards=len(self._shards),
            cut=origin.id.number,
            tables=tuple(shard.tables),
            jobs=(),
            objects=tuple(shard.objects),
            chunks=tuple(shard.places),
        )
        name = index_name(origin.cluster, origin.id, shard.number, origin.process)
        put = self._blobs.do(PutBlob(name, index.to_json(), "create"))
        assert isinstance(put, BlobPut)
        return ObjectInfo(name, put.nbytes, put.sha256)


def _dense_chunks(part: DenseShard, number: int) -> list[Chunk]:
    most = max(1, CHUNK_BYTES // (part.columns * np.dtype(part.spec.dtype).itemsize))
    chunks = []
    for at in range(0, len(part), most):
        end = min(at + most, len(part))
        content = part.capture(at, end)
        chunks.append(Chunk(number, "elements", at, end, part.columns, NO_KEYS, content))
    return chunks

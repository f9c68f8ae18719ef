"""A checkpoint's tables as files that other programs read: Parquet, safetensors, npz.

One file for each table. Sparse tables: `key` (uint64), `value` and the optimiser's state, slot by
slot, under the names of its formula. Dense ones: `row`, the number along the first axis, in place
of the key. Parquet is written shard by shard, so memory is bounded by the largest part of a table;
the others hold a whole table at a time. What is needed to read a file back stands in its metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.content import (
    STEPS,
    Part,
    StoredTable,
    read_part,
    state_names,
    tables_of,
)
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.shard_index import ShardIndex
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.spec import DenseSpec, SparseSpec

FileFormat: TypeAlias = Literal["parquet", "safetensors", "npz"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 64 << 20
METADATA = "resilient_ps"
METADATA_FORMAT = "resilient-ps table"
METADATA_VERSION = 1
NEEDS = "install it with: pip install 'resilient-ps[export]'"

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written."""

    table: str
    path: Path
    rows: int
    nbytes: int


def export_tables(
    stored: StoredCheckpoints,
    manifest: Manifest,
    folder: Path,
    format: FileFormat,
    *,
    names: Sequence[str] = (),
    with_state: bool = True,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Exported]:
    """Write the tables `names`, or all, of a checkpoint below `folder`.

    `on_rows` is told of every part that was written. A file appears when it is complete. Raises
    `BadInput` where a library is missing, `NotFound` for tables that are not in the checkpoint,
    `Damaged` for what does not verify.
    """
    write = _WRITERS[format]
    indexes = stored.indexes(manifest)
    done = []
    for table in chosen(tables_of(manifest, indexes), names):
        path = folder / file_name(table.spec.name, format)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        parts = _told(_parts(stored, indexes, table, with_state=with_state), on_rows)
        try:
            rows = write(partial, table, parts, _metadata(manifest, table), with_state)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        done.append(Exported(table.spec.name, path, rows, path.stat().st_size))
    return done


def chosen(tables: Sequence[StoredTable], names: Sequence[str]) -> list[StoredTable]:
    """The tables of these names; all if there are none."""
    by_name = {table.spec.name: table for table in tables}
    for name in names:
        if name not in by_name:
            raise NotFound(f"there is no table {name!r} in it; tables: {', '.join(by_name) or '-'}")
    return [table for name, table in by_name.items() if not names or name in names]


def file_name(table: str, format: FileFormat) -> Path:
    """Where a table's file lies below the folder; a name cannot lead out of it."""
    parts = [part.replace(".", "%2E") if not part.strip(".") else part for part in table.split("/")]
    return Path(*parts[:-1]) / f"{parts[-1]}.{format}"


def _parts(
    stored: StoredCheckpoints,
    indexes: Sequence[ShardIndex],
    table: StoredTable,
    *,
    with_state: bool,
) -> Iterator[Part]:
    """What the shards hold, in an order in which dense rows follow each other."""
    order = list(indexes)
    if isinstance(table.spec, DenseSpec):
        layout = DenseLayout(table.spec, len(indexes))
        order = [index for index in order if len(layout.blocks_of(index.shard))]
        order.sort(key=lambda index: layout.shard_slice(index.shard).start)
    for index in order:
        part = read_part(stored.blobs, index, table)
        yield part if with_state else Part(part.at, part.keys, part.values, {}, None)


def _told(parts: Iterator[Part], on_rows: Callable[[int], object]) -> Iterator[Part]:
    for part in parts:
        yield part
        on_rows(len(part))


def _metadata(manifest: Manifest, table: StoredTable) -> str:
    return json.dumps(
        {
            "format": METADATA_FORMAT,
            "version": METADATA_VERSION,
            "spec": json.loads(table.spec.to_json()),
            "lr": table.lr,
            "checkpoint": str(manifest.id),
            "cluster": manifest.cluster,
            "clocks": dict(manifest.clocks),
        }
    )


# -- Parquet


def _write_parquet(
    path: Path,
    table: StoredTable,
    parts: Iterator[Part],
    metadata: str,
    with_state: bool,  # noqa: FBT001
) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadInput(f"Parquet needs pyarrow: {NEEDS}") from error
    rows, columns = 0, _columns(_nothing(table, with_state=with_state))
    fields = [pa.field(name, _arrow(pa, array, table.width).type) for name, array in columns]
    schema = pa.schema(fields, metadata={METADATA: metadata})
    row_bytes = max(1, sum(array.itemsize * max(1, array.shape[-1]) for _, array in columns))
    most = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // row_bytes))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            for first in range(0, len(part), most):
                group = part.cut(first, first + most)
                arrays = [_arrow(pa, array, table.width) for _, array in _columns(group)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                rows += len(group)
    return rows


def _nothing(table: StoredTable, *, with_state: bool) -> Part:
    """A part without rows: what columns there are."""
    optimiser, dtype = table.spec.optimiser, table.spec.dtype
    empty = np.zeros((0, table.width), dtype)
    names = state_names(optimiser) if with_state else ()
    steps = np.zeros(0, dtype) if optimiser.counts_steps and with_state else None
    keys = np.zeros(0, np.uint64) if isinstance(table.spec, SparseSpec) else None
    return Part(0, keys, empty, dict.fromkeys(names, empty), steps)


def _columns(part: Part) -> list[tuple[str, _Array]]:
    first: tuple[str, _Array] = (
        ("key", part.keys) if part.keys is not None else ("row", _rows(part))
    )
    columns = [first, ("value", part.values), *part.state.items()]
    return columns if part.steps is None else [*columns, (STEPS, part.steps)]


def _rows(part: Part) -> NDArray[np.int64]:
    return np.arange(part.at, part.at + len(part), dtype=np.int64)


def _arrow(pa: Any, array: _Array, width: int) -> Any:
    """Single numbers as such, several as lists of a fixed size."""
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return flat if array.ndim == 1 or width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


# -- whole tables


def whole(table: StoredTable, parts: Sequence[Part]) -> dict[str, _Array]:
    """A table as arrays: `keys` if it is sparse, `values`, the state's slots, `steps`."""
    shape = table.spec.shape if isinstance(table.spec, DenseSpec) else (-1, table.width)
    arrays: dict[str, _Array] = {}
    if isinstance(table.spec, SparseSpec):
        arrays["keys"] = np.concatenate([part.keys for part in parts if part.keys is not None])
    arrays["values"] = np.concatenate([part.values for part in parts]).reshape(shape)
    for name in parts[0].state:
        arrays[name] = np.concatenate([part.state[name] for part in parts]).reshape(shape)
    if parts[0].steps is not None:
        arrays[STEPS] = np.concatenate([part.steps for part in parts if part.steps is not None])
    return arrays


def _write_npz(
    path: Path,
    table: StoredTable,
    parts: Iterator[Part],
    metadata: str,
    with_state: bool,  # noqa: FBT001
) -> int:
    arrays = whole(table, [_nothing(table, with_state=with_state), *parts])
    with path.open("wb") as file:
        np.savez(file, **{METADATA: np.array(metadata), **arrays})  # type: ignore[arg-type]
    return _count(arrays)


def _write_safetensors(
    path: Path,
    table: StoredTable,
    parts: Iterator[Part],
    metadata: str,
    with_state: bool,  # noqa: FBT001
) -> int:
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise BadInput(f"safetensors files need the library of that name: {NEEDS}") from error
    arrays = whole(table, [_nothing(table, with_state=with_state), *parts])
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, path, metadata={METADATA: metadata})
    return _count(arrays)


def _count(arrays: dict[str, _Array]) -> int:
    return len(np.atleast_1d(arrays["values"]))


_WRITERS: dict[FileFormat, Callable[[Path, StoredTable, Iterator[Part], str, bool], int]] = {
    "parquet": _write_parquet,
    "npz": _write_npz,
    "safetensors": _write_safetensors,
}

"""Files with tables as a checkpoint: a warm start, for clusters of any number of shards.

Files that `exporting` wrote say themselves what table they hold. Others need a column `key` (or an
array `keys`) and one `value` (`values`), and are told the table's name and optimiser. State that a
file does not have begins as that of a new row; with FTRL, whose weights follow from its state, the
state is chosen so that it gives the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.content import STEPS, state_names
from resilient_ps.client.exporting import METADATA, METADATA_FORMAT, METADATA_VERSION, NEEDS
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.tables.optimisers import FTRL, Optimiser, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec, spec_from_json

BATCH_ROWS = 1 << 16
_Array = NDArray[Any]
_SINGULAR = {"keys": "key", "values": "value"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file does not say of itself: the table's name, and its optimiser."""

    name: str = ""
    optimiser: Optimiser | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A file that is open. `rows`: how many; `batches()`: arrays by column, `key` first."""

    path: Path
    spec: TableSpec
    lr: float
    rows: int
    batches: Callable[[], Iterator[Mapping[str, _Array]]]


def open_table(path: Path, wanted: Wanted) -> TableFile:
    """A file with a table: .parquet, .safetensors or .npz. Raises `BadInput` and `NotFound`."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    opener = _OPENERS.get(path.suffix)
    if opener is None:
        raise BadInput(f"{path}: a table comes as {', '.join(_OPENERS)}")
    return opener(path, wanted)


def rows_of(table: TableFile) -> Iterator[tuple[NDArray[np.uint64], _Array]]:
    """A sparse table's keys, and rows of values and state, batch by batch."""
    assert isinstance(table.spec, SparseSpec)
    spec, optimiser = table.spec, table.spec.optimiser
    for batch in table.batches():
        keys = batch["key"]
        if keys.dtype.kind not in "iu" or (keys.dtype.kind == "i" and (keys < 0).any()):
            raise BadInput(f"{table.path}: keys must be whole numbers from 0, not {keys.dtype}")
        values = _values(table, batch["value"]).reshape(-1, spec.dim)
        state = [
            _values(table, batch[name]).reshape(values.shape) if name in batch else first
            for name, first in zip(
                state_names(optimiser), _first_state(optimiser, values), strict=True
            )
        ]
        columns = [values, *state]
        if optimiser.counts_steps:
            none = np.zeros(len(values), spec.dtype)
            columns.append(_values(table, batch.get(STEPS, none)).reshape(-1, 1))
        yield keys.astype(np.uint64), np.concatenate(columns, axis=1, dtype=spec.dtype)


def planes_of(table: TableFile) -> tuple[_Array, _Array]:
    """A dense table's values and slots, (1 + slots, rows, width); and steps by row (rows,)."""
    spec, optimiser = table.spec, table.spec.optimiser
    batches = list(table.batches())
    rows = max(1, spec.shape[0]) if isinstance(spec, DenseSpec) and spec.shape else 1
    values = _values(table, np.concatenate([each["value"] for each in batches])).reshape(rows, -1)
    planes = [values]
    for name, first in zip(state_names(optimiser), _first_state(optimiser, values), strict=True):
        given = [each[name] for each in batches if name in each]
        planes.append(_values(table, np.concatenate(given)).reshape(rows, -1) if given else first)
    steps = [each[STEPS] for each in batches if STEPS in each]
    counts = np.concatenate(steps) if steps else np.zeros(rows, spec.dtype)
    return np.stack(planes), _values(table, counts)


def _values(table: TableFile, array: _Array) -> _Array:
    dtype = np.dtype(table.spec.dtype)
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise BadInput(f"{table.path}: values of {array.dtype} in a table of {dtype}")
    return array.astype(dtype, copy=False)


def _first_state(optimiser: Optimiser, values: _Array) -> list[_Array]:
    if isinstance(optimiser, FTRL):
        rate = optimiser.beta / optimiser.alpha + optimiser.l2
        z = -values * rate - np.sign(values) * optimiser.l1
        return [z.astype(values.dtype), np.zeros_like(values)]
    return [np.full_like(values, optimiser.initial_state()) for _ in range(optimiser.slots)]


# -- what a file says of itself


def _specified(
    path: Path,
    metadata: str | None,
    wanted: Wanted,
    shape: tuple[int, ...],
    dtype: str,
    dense: bool,  # noqa: FBT001
) -> tuple[TableSpec, float]:
    """`shape`: of the values; (rows, dim) if it is sparse."""
    if metadata is not None:
        told = _parsed(path, metadata)
        spec = spec_from_json(
            json.dumps({**told["spec"], "name": wanted.name or told["spec"]["name"]})
        )
        return spec, float(told["lr"])
    if not wanted.name:
        raise BadInput(
            f"{path} was not exported by resilient-ps: give the table's name, with --table"
        )
    optimiser = wanted.optimiser or Sum()
    spec = (
        DenseSpec(wanted.name, shape, dtype, optimiser)  # type: ignore[arg-type]
        if dense
        else SparseSpec(wanted.name, shape[1] if len(shape) > 1 else 1, dtype, optimiser)  # type: ignore[arg-type]
    )
    return spec, float(optimiser.hyperparameters()[0])


def _parsed(path: Path, metadata: str) -> dict[str, Any]:
    try:
        told = json.loads(metadata)
        version = int(told["version"])
        known = told["format"] == METADATA_FORMAT and isinstance(told["spec"], dict)
        float(told["lr"]), str(told["spec"]["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: what it says of its table cannot be read ({error!r})") from error
    if not known or version > METADATA_VERSION:
        raise BadInput(
            f"{path}: written by a newer version (format {version}, this one reads up to "
            f"{METADATA_VERSION}): upgrade resilient-ps"
        )
    return dict(told)


# -- the formats


def _open_parquet(path: Path, wanted: Wanted) -> TableFile:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadInput(f"{path}: Parquet needs pyarrow: {NEEDS}") from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path}: not a Parquet file ({error})") from error
    schema, rows = file.schema_arrow, file.metadata.num_rows
    dense = "row" in schema.names
    for name in ("row" if dense else "key", "value"):
        if name not in schema.names:
            raise BadInput(f"{path}: no column {name!r}; columns: {', '.join(schema.names)}")
    value = schema.field("value").type
    width = value.list_size if pa.types.is_fixed_size_list(value) else 1
    dtype = str((value.value_type if width > 1 else value).to_pandas_dtype().__name__)
    raw = (schema.metadata or {}).get(METADATA.encode())
    spec, lr = _specified(path, raw.decode() if raw else None, wanted, (rows, width), dtype, dense)

    def batches() -> Iterator[Mapping[str, _Array]]:
        for batch in file.iter_batches(BATCH_ROWS):
            yield {name: _numpy(pa, path, name, batch.column(name)) for name in batch.schema.names}

    return TableFile(path, spec, lr, rows, batches)


def _numpy(pa: Any, path: Path, name: str, column: Any) -> _Array:
    if column.null_count:
        raise BadInput(f"{path}: column {name!r} has empty cells")
    flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    array: _Array = flat.to_numpy(zero_copy_only=False)
    return array


def _open_npz(path: Path, wanted: Wanted) -> TableFile:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(f"{path}: not an .npz of plain arrays ({error})") from error
    metadata = arrays.pop(METADATA, None)
    return _of_arrays(path, wanted, arrays, None if metadata is None else str(metadata))


def _open_safetensors(path: Path, wanted: Wanted) -> TableFile:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise BadInput(f"{path}: needs the library safetensors: {NEEDS}") from error
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = (file.metadata() or {}).get(METADATA)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: not a safetensors file ({error})") from error
    return _of_arrays(path, wanted, arrays, metadata)


def _of_arrays(
    path: Path, wanted: Wanted, arrays: dict[str, _Array], metadata: str | None
) -> TableFile:
    if "values" not in arrays:
        raise BadInput(f"{path}: no array 'values'; arrays: {', '.join(sorted(arrays)) or '-'}")
    values, dense = arrays["values"], "keys" not in arrays
    spec, lr = _specified(path, metadata, wanted, values.shape, values.dtype.name, dense)
    rows = len(np.atleast_1d(values))
    columns = {_SINGULAR.get(name, name): array for name, array in arrays.items()}
    if not dense and any(len(array) != rows for array in columns.values()):
        raise BadInput(f"{path}: its arrays have different lengths")

    def batches() -> Iterator[Mapping[str, _Array]]:
        if dense:
            yield columns
            return
        for first in range(0, rows, BATCH_ROWS):
            yield {name: array[first : first + BATCH_ROWS] for name, array in columns.items()}

    return TableFile(path, spec, lr, rows, batches)


_OPENERS: dict[str, Callable[[Path, Wanted], TableFile]] = {
    ".parquet": _open_parquet,
    ".safetensors": _open_safetensors,
    ".npz": _open_npz,
}

"""A request to a table, split into the shards' pieces.

Sparse: keys are grouped by (server, shard) in one pass, gradients are gathered in that order, and
pulled rows are scattered back from it. Dense: a shard's part of the array is one slice of it, so
nothing is copied. Large requests are split into several of about `CHUNK_BYTES`: the server works on
one while the next is being sent, and no frame is large (`PULL_CHUNK_BYTES` at most).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilient_ps.calls import Piece, Split
from resilient_ps.errors import BadInput
from resilient_ps.messages import Keys, Values
from resilient_ps.routing import Routing
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.partition import group_pull, group_push, ungroup
from resilient_ps.tables.spec import DenseSpec, SparseSpec

CHUNK_BYTES = 4 << 20
PULL_CHUNK_BYTES = 16 << 20
"""Of dense pulls: the server lends what is there, and has no work that could be done meanwhile."""
CUTS_MAX = 256  # dense tables whose way of being cut is remembered

KEY_BYTES = 8
_NOWHERE = memoryview(b"")
_new = tuple.__new__  # several times faster than a named tuple's own constructor


@dataclass(frozen=True, slots=True)
class TableHandle:
    """A table as a client knows it: the number that messages use, and the specification."""

    number: int
    spec: SparseSpec | DenseSpec


@dataclass(slots=True)
class SparsePull:
    """A pull under way: `finish` puts the received rows where they were asked for."""

    split: Split
    _places: NDArray[np.uint32]
    _rows: NDArray[Any]

    def finish(self, out: NDArray[Any], number: int = 0) -> None:
        """`out` (n, dim): row i for the i-th key. Which pull of several it is does not matter."""
        ungroup(self._rows, self._places, out)


def chunk_rows(spec: SparseSpec) -> int:
    """How many rows of a sparse table travel in one request at most."""
    return max(1, CHUNK_BYTES // (KEY_BYTES + spec.dim * np.dtype(spec.dtype).itemsize))


def split_sparse_push(routing: Routing, keys: Keys, grads: Values) -> Split:
    """`keys` (n,) and `grads` (n, dim), both copied into the order of the shards."""
    grouped, rows, counts = group_push(keys, grads, routing.shards, routing.rank_of_shard)
    flat, dim = rows.reshape(-1), grads.shape[1]
    pieces: dict[int, Piece] = {}
    first = 0
    for shard, count in zip(routing.order, counts, strict=True):
        if count:
            values = (flat[first * dim : (first + count) * dim],)
            pieces[shard] = _new(Piece, (first, count, values, count * dim, 0, 0, 0))
            first += count
    return Split(grouped, pieces, grouped.nbytes + flat.nbytes)


def split_sparse_pull(routing: Routing, keys: Keys, spec: SparseSpec) -> SparsePull:
    """`keys` (n,): the rows are received grouped, then scattered by `finish`."""
    grouped, places, counts = group_pull(keys, routing.shards, routing.rank_of_shard)
    rows = np.empty((len(keys), spec.dim), spec.dtype)
    out, row_bytes = rows.data.cast("B") if rows.size else _NOWHERE, spec.dim * rows.itemsize
    pieces: dict[int, Piece] = {}
    first = 0
    for shard, count in zip(routing.order, counts, strict=True):
        if count:
            stop = first + count
            where = first * row_bytes, stop * row_bytes
            pieces[shard] = _new(Piece, (first, count, (), 0, *where, 0))
            first = stop
    return SparsePull(Split(grouped, pieces, grouped.nbytes + rows.nbytes, out), places, rows)


def split_dense(
    routing: Routing, layout: DenseLayout, flat: Values, *, pull: bool
) -> Iterator[Split]:
    """Requests for the whole of a dense table: to receive into `flat`, or to push it."""
    view, itemsize = flat.data.cast("B") if pull else _NOWHERE, flat.itemsize
    for cut in cuts_of(routing.order, layout, pull=pull):
        pieces = pieces_of_cut(cut, flat, pull=pull)
        yield Split(cut.keys, pieces, cut.elements * itemsize, view)


class Cut(NamedTuple):
    """A request for blocks of a dense table. Of each part: its shard, the number of its first key,
    how many keys it has, and which elements of the whole array these stand for."""

    keys: Keys
    elements: int
    parts: tuple[tuple[int, int, int, int, int], ...]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The elements of all parts, in their order; neighbours are one run."""
        runs: list[tuple[int, int]] = []
        for *_, start, stop in self.parts:
            if runs and runs[-1][1] == start:
                start = runs.pop()[0]
            runs.append((start, stop))
        return runs


def pieces_of_cut(cut: Cut, flat: Values, *, pull: bool) -> dict[int, Piece]:
    """What of a request is each shard's: places in `flat` to receive values, or gradients."""
    pieces: dict[int, Piece] = {}
    itemsize = flat.itemsize
    for shard, first, count, start, stop in cut.parts:
        if pull:
            where = start * itemsize, stop * itemsize
            pieces[shard] = _new(Piece, (first, count, (), 0, *where, 0))
        else:
            values = (flat[start:stop],)
            pieces[shard] = _new(Piece, (first, count, values, stop - start, 0, 0, 0))
    return pieces


def cuts_of(order: tuple[int, ...], layout: DenseLayout, *, pull: bool) -> tuple[Cut, ...]:
    """How a dense table is cut into requests: the same each time."""
    return _cuts(order, layout, PULL_CHUNK_BYTES if pull else CHUNK_BYTES)


@lru_cache(maxsize=CUTS_MAX)
def _cuts(order: tuple[int, ...], layout: DenseLayout, chunk_bytes: int) -> tuple[Cut, ...]:
    cuts: list[Cut] = []
    for chunk in _dense_chunks(order, layout, chunk_bytes):
        parts: list[tuple[int, int, int, int, int]] = []
        first = elements = 0
        for shard, blocks in chunk:
            start = layout.element_slice(int(blocks[0])).start
            stop = layout.element_slice(int(blocks[-1])).stop
            parts.append((shard, first, len(blocks), start, stop))
            first += len(blocks)
            elements += stop - start
        cuts.append(Cut(np.concatenate([blocks for _, blocks in chunk]), elements, tuple(parts)))
    return tuple(cuts)


def _dense_chunks(
    order: Sequence[int], layout: DenseLayout, chunk_bytes: int
) -> Iterator[list[tuple[int, Keys]]]:
    """The blocks of about `chunk_bytes` each time, by shard: of as few shards as possible."""
    block_bytes = layout.elements_per_block * np.dtype(layout.spec.dtype).itemsize
    most = room = max(1, chunk_bytes // block_bytes)
    chunk: list[tuple[int, Keys]] = []
    for shard in order:
        blocks = layout.blocks_of(shard)
        while len(blocks):
            chunk.append((shard, blocks[:room]))
            blocks, room = blocks[room:], room - len(chunk[-1][1])
            if not room:
                yield chunk
                chunk, room = [], most
    if chunk:
        yield chunk


def check_keys(spec: SparseSpec, keys: Any) -> Keys:
    """Keys as contiguous uint64 (n,). Raises `BadInput` for anything that is not a whole number."""
    array = _as_array(spec, "keys", keys)
    if array.dtype != np.uint64:
        if array.dtype.kind in "fO" and not isinstance(keys, np.ndarray):
            array = _large_keys(array, keys)  # of integers from 2**63 on numpy makes floats
        whole = array.dtype.kind == "u" or (array.dtype.kind == "i" and not (array < 0).any())
        if array.size and not whole:
            raise BadInput(
                f"table {spec.name!r}: keys must be uint64 (or non-negative integers), "
                f"not {array.dtype} {array.ravel()[:3].tolist()}"
            )
        array = array.astype(np.uint64)
    if array.ndim != 1:
        raise BadInput(f"table {spec.name!r}: keys must have shape (n,), not {array.shape}")
    return np.ascontiguousarray(array)


def _large_keys(array: NDArray[Any], keys: Any) -> NDArray[Any]:
    """The keys as uint64, if all of them are Python integers that fit; else the array."""
    exact = np.array(keys, object)
    if all(isinstance(key, (int, np.integer)) and 0 <= key < 1 << 64 for key in exact.flat):
        return exact.astype(np.uint64)
    return array


def _as_array(spec: SparseSpec | DenseSpec, what: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise BadInput(f"table {spec.name!r}: {what} must be an array: {error}") from error


def check_gradients(spec: SparseSpec, keys: Keys, grads: Any) -> Values:
    """Gradients as a contiguous array (n, dim) of the table's dtype. Raises `BadInput`."""
    array = check_dtype(spec, grads)
    if array.ndim == 1 and spec.dim == 1:
        array = array.reshape(-1, 1)
    if array.shape != (len(keys), spec.dim):
        raise BadInput(
            f"table {spec.name!r}: {len(keys)} keys take gradients of shape "
            f"({len(keys)}, {spec.dim}), not {array.shape}"
        )
    return np.ascontiguousarray(array)


def check_dtype(spec: SparseSpec | DenseSpec, values: Any) -> Values:
    """An array of the table's dtype: nothing is converted silently. Raises `BadInput`."""
    array = _as_array(spec, "values", values)
    if array.dtype != np.dtype(spec.dtype):
        raise BadInput(
            f"table {spec.name!r} holds {spec.dtype}, the array is {array.dtype}: "
            f"convert it with .astype({spec.dtype!r})"
        )
    return array

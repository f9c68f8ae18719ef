"""One shard of a sparse table: rows of values and optimiser state, found by key.

The state is a function of the pushes alone: not of the order in which rows were created, nor of
growth. Rows are `[values | state]`, contiguous in one slab that begins at a cache line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.tables import parameters, passes
from resilient_ps.tables.index import Index
from resilient_ps.tables.memory import CACHE_LINE_BYTES, aligned_zeros, grown
from resilient_ps.tables.partition import gather_rows
from resilient_ps.tables.request import UINT64, check_array, is_plain
from resilient_ps.tables.spec import SparseSpec

MAX_ROWS = parameters.MAX_ROWS
MAX_KEYS_PER_CALL = 1 << 30
_FIRST_ROWS = 64
_FIRST_SCRATCH_KEYS = 1024
_MAX_STAMP = (1 << 32) - 1


class Mark(NamedTuple):
    """A moment in the life of a shard's rows: how often stamps had begun anew, and the next one."""

    forgotten: int
    base: int


class SparseShard:
    """Rows of `spec.dim` values under uint64 keys. For one thread at a time.

    `max_rows` bounds what pushes may create; the push that would exceed it changes nothing.
    """

    def __init__(self, spec: SparseSpec, max_rows: int = MAX_ROWS) -> None:
        if not 1 <= max_rows <= MAX_ROWS:
            raise BadInput(f"table {spec.name}: max_rows must be 1 to {MAX_ROWS}, not {max_rows}")
        self.spec = spec
        self.max_rows = max_rows
        self.quick_rows: int | None = None  # bounds what `push_parts` may create; see quotas
        self._dtype = np.dtype(spec.dtype)
        self._row_shape = (spec.dim,)
        self.columns = spec.dim + spec.optimiser.state_columns(spec.dim)
        self._stride = row_stride(self.columns, self._dtype.itemsize)
        self._index = Index()
        self._slab = aligned_zeros(0, self._dtype)
        self._row_keys: NDArray[np.uint64] = aligned_zeros(0, np.uint64)
        self._scratch = np.empty(2 * _FIRST_SCRATCH_KEYS, np.int32)
        self._parameters = parameters.Parameters.of(spec, spec.dim)
        self._meta = self._parameters.meta
        self._hyper = self._parameters.hyper
        self._meta[parameters.STRIDE] = self._stride
        self._meta[parameters.BASE] = 1
        self._meta[parameters.INDEXABLE] = self._index.indexable
        self._forgotten = 0  # how often stamps began anew
        self._before = 0  # rows of a table of before that the index still has: see `take_over`
        self._make_room(_FIRST_ROWS)

    def __len__(self) -> int:
        """Rows created so far."""
        return int(self._meta[parameters.CREATED])

    @property
    def bytes_held(self) -> int:
        """Bytes of rows, index and scratch, as far as memory was written."""
        rows = len(self) * (self._stride * self._dtype.itemsize + self._row_keys.itemsize)
        return rows + self._index.bytes_held + int(self._scratch.nbytes)

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self._dtype.itemsize

    @property
    def lr(self) -> float:
        """The present learning rate; 0 if the optimiser has none."""
        return float(self._parameters.hyper[0])

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next push on; BadInput if the optimiser has none."""
        changed = dataclasses.replace(self.spec, optimiser=self.spec.optimiser.with_lr(lr))
        self._parameters.set_optimiser(changed)

    def pull(self, keys: NDArray[np.uint64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The values, shape (n, dim), of `keys` (uint64, shape (n,), repeats allowed).

        An unknown key gives its initial value and is not created. `out` is used for the answer if
        given: shape (n, dim), the table's dtype, C order.
        """
        keys = self._checked_keys(keys)
        shape = (keys.size, self.spec.dim)
        if out is None:
            out = np.empty(shape, self._dtype)
        elif check_array(self.spec, "out", out, self._dtype, shape) is not out:
            raise BadInput(f"{self.spec.describe()}: out must be writable and in C order")
        passes.pull_rows(keys, out, self._index.entries, self._slab, self._meta, self._hyper)
        return out

    def push(self, keys: NDArray[np.uint64], grads: NDArray[Any]) -> None:
        """One optimiser step for every distinct key; missing rows are created.

        `keys`: uint64, shape (n,). `grads`: the table's dtype, shape (n, dim), not changed. The
        gradients of a repeated key are added in the order of their positions before the step.
        """
        keys = self._checked_keys(keys)
        grads = check_array(self.spec, "gradients", grads, self._dtype, (keys.size, self.spec.dim))
        flat = grads.reshape(-1)
        self._prepare(keys.size)
        self._finish(
            lambda: passes.push_rows(
                keys,
                flat,
                self._index.entries,
                self._slab,
                self._row_keys,
                self._scratch,
                self._meta,
                self._hyper,
                self._parameters.work,
            )
        )

    @property
    def push_arrays(self) -> tuple[Any, ...]:
        """What the native module's `push_parts` takes of a table."""
        return (
            self._index.entries,
            self._slab,
            self._row_keys,
            self._scratch,
            self._meta,
            self._hyper,
            self._parameters.work,
            self.max_rows if self.quick_rows is None else min(self.quick_rows, self.max_rows),
        )

    @property
    def pull_arrays(self) -> tuple[Any, ...]:
        """What the native module's `pull_parts` takes of a table."""
        return self._index.entries, self._slab, self._meta, self._hyper

    @property
    def kept_in(self) -> tuple[Any, ...]:
        """What the native module's `push_parts` takes of a table in which rows are kept."""
        return self._index.entries, self._slab, self._row_keys, self._scratch, self._meta

    def make_ready(self, count: int) -> bool:
        """Room for as many more rows; False where the slab would have to grow, too."""
        self._prepare(count)
        rows = len(self) + count
        if rows > self._meta[parameters.ROOM]:
            return False
        while self._index.indexable < rows:
            self._index.double()
            self._meta[parameters.INDEXABLE] = self._index.indexable
        return True

    def go_on(self, full: int, keys: NDArray[np.uint64], grads: NDArray[Any]) -> None:
        """Go on with a push that `push_parts` has begun, and that lacks `full`."""
        self._grow(full)
        self._finish(lambda: passes.push_rows(keys, grads, *self.push_arrays[:-1]))

    def load(self, keys: NDArray[np.uint64], rows: NDArray[Any]) -> None:
        """Make the rows of `keys` (uint64, shape (n,), no repeats) what they were somewhere else.

        `rows`: the table's dtype, shape (n, `columns`): values, then state. They need not be
        aligned. Missing rows are created. After BadInput nothing has changed.
        """
        keys = self._checked_keys(keys)
        shape = keys.size, self.columns
        if passes.LOADS_BYTES and is_plain(rows, self._dtype, shape):  # as they are received
            flat: NDArray[Any] = rows.reshape(-1).view(np.uint8)
        else:
            flat = check_array(self.spec, "rows", rows, self._dtype, shape).reshape(-1)
        if self._before and self._load_as_before(keys, flat):
            return
        self._prepare(keys.size)
        self._finish(
            lambda: passes.load_rows(
                keys,
                flat,
                self.columns,
                self._index.entries,
                self._slab,
                self._row_keys,
                self._scratch,
                self._meta,
            )
        )

    def _load_as_before(self, keys: NDArray[np.uint64], flat: NDArray[Any]) -> bool:
        """Are these the rows that stood here before, in their order? Then the index has them."""
        first, last = len(self), len(self) + keys.size
        if not keys.size:
            return True
        if last > self._before or not np.array_equal(keys, self._row_keys[first:last]):
            self.settle()
            return False
        source = flat.reshape(keys.size, -1)
        slab = self._slab[first * self._stride : last * self._stride]
        slab.view(flat.dtype).reshape(keys.size, -1)[:, : source.shape[1]] = source
        self._meta[parameters.ROWS] = self._meta[parameters.CREATED] = last
        return True

    def settle(self) -> None:
        """After the last `load`: what the table of before had, and this one has not, is gone."""
        if len(self) < self._before:
            self._index.forget_rows_from(len(self))
        self._before = 0

    def capture(self, first: int, last: int) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """Copies of the rows `first` to `last - 1` in the order of their creation, for `load`.

        Their keys, and their values and state, shape (n, `columns`).
        """
        rows = self._slab[first * self._stride : last * self._stride].reshape(-1, self._stride)
        return self._row_keys[first:last].copy(), rows[:, : self.columns].copy()

    def row_numbers(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number, in the order of creation, of each key's row; -1 where there is none."""
        keys = self._checked_keys(keys)
        numbers = np.empty(keys.size, np.int32)
        passes.row_numbers(keys, numbers, self._index.entries)
        return numbers

    def claim(
        self, keys: NDArray[np.uint64], states: NDArray[np.uint8], first: int, last: int
    ) -> NDArray[np.uint32]:
        """Those rows of `keys`, from `first` to `last - 1`, whose state is 0: it becomes 1.

        Their numbers, each once. `states` has one for each row up to `last`.
        """
        keys = self._checked_keys(keys)
        numbers = np.empty(keys.size, np.uint32)
        count = passes.claim_rows(keys, numbers, states, first, last, self._index.entries)
        return numbers[:count]

    def take(self, numbers: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """As `capture`, of the rows with these numbers."""
        rows = self._slab[: len(self) * self._stride].reshape(-1, self._stride)
        taken = gather_rows(rows, numbers, np.empty((numbers.size, self._stride), self._dtype))
        return self._row_keys[numbers], taken[:, : self.columns]

    def reserve_slab(self, rows: int) -> None:
        """Address space for so many rows, so that they need not be moved before there are more."""
        if rows > self._meta[parameters.ROOM]:
            self._make_room(rows)

    def reserve(self, rows: int) -> None:
        """`reserve_slab`, and an index for as many keys: before so many rows are loaded."""
        self.reserve_slab(rows)
        times = 0
        while self._index.indexable << times < min(rows, self.max_rows):
            times += 1
        if times:
            self._index.double(times)
        self._meta[parameters.INDEXABLE] = self._index.indexable

    def take_over(self, other: SparseShard, rows: int) -> None:
        """Before `reserve`: the memory of a table that nobody uses any more, where it fits so many.

        What is given back to the system and taken again costs more than all that is loaded into it.
        Its index is of use as long as `load` brings its rows in their order; call `settle` then.
        """
        if len(self) or other._kind != self._kind:
            return
        room = int(other._meta[parameters.ROOM])
        takes_rows = rows <= room <= 2 * rows
        if takes_rows:
            self._slab, self._row_keys = other._slab, other._row_keys
            self._meta[parameters.ROOM] = room
        if rows <= other._index.indexable <= 4 * rows:
            self._index.entries = other._index.entries
            self._meta[parameters.INDEXABLE] = self._index.indexable
            self._meta[parameters.BASE] = other._meta[parameters.BASE]  # above its stamps
            if takes_rows:
                self._before = len(other)
            else:
                self._index.forget_rows_from(0)

    @property
    def _kind(self) -> tuple[int, int, np.dtype[Any]]:
        """What two tables have in common, one of which may use the other's memory."""
        return self.max_rows, self._stride, self._dtype

    def mark(self) -> Mark:
        """A moment: `survey` tells which rows pushes and loads have touched since."""
        return Mark(self._forgotten, int(self._meta[parameters.BASE]))

    def still_known(self, mark: Mark) -> bool:
        """Is what was touched since then still known?"""
        return mark.forgotten == self._forgotten

    @property
    def entries(self) -> object:
        """What `survey` looks at, in slices: if this is another object, begin again."""
        return self._index.entries

    @property
    def entries_count(self) -> int:
        """How many there are; the order of those that are used is that of a hash of their keys."""
        return self._index.entries.size // 2

    def survey(self, mark: Mark, first: int, last: int, touched: NDArray[np.bool_]) -> bool:
        """Flag the rows touched since `mark`, as entries `first` to `last - 1` of the index say.

        `touched` has a flag for each of the first rows. False behind the last entry. Pulls touch
        nothing.
        """
        entries = self._index.entries
        last = min(last, self.entries_count)
        if first < last:
            passes.survey_rows(entries, first, last, mark.base, touched)
        return first < last

    def keys(self) -> NDArray[np.uint64]:
        """All keys, ascending."""
        return np.sort(self._row_keys[: len(self)])

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[Any]:
        """As `pull`."""
        return self.pull(keys)

    def export(self) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[Any]]:
        """Copies of all keys (ascending), their values (n, dim) and state (n, columns)."""
        keys = self._row_keys[: len(self)]
        rows = np.argsort(keys)
        used = self._slab[: len(self) * self._stride].reshape(-1, self._stride)
        dim = self.spec.dim
        return keys[rows], used[rows, :dim], used[rows, dim : self.columns]

    def digest(self) -> str:
        """XXH3-128 of keys, values and state in key order: equal contents, equal digest."""
        hashed = xxhash.xxh3_128()
        for array in self.export():
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def _checked_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        keys = check_array(self.spec, "keys", keys, UINT64, (-1,))
        if keys.size > MAX_KEYS_PER_CALL:
            raise BadInput(
                f"{self.spec.describe()}: {keys.size} keys in one call;"
                f" the maximum is {MAX_KEYS_PER_CALL}: split it"
            )
        return keys

    def _prepare(self, count: int) -> None:
        """Room in the scratch for `count` keys, and as many stamps."""
        if 2 * count > self._scratch.size:
            self._scratch = np.empty(2 * max(count, self._scratch.size), np.int32)
        if self._meta[parameters.BASE] + count > _MAX_STAMP:
            self._forget_stamps()

    def _forget_stamps(self) -> None:
        passes.forget_stamps(self._index.entries)
        self._meta[parameters.BASE] = 1
        self._forgotten += 1

    def _finish(self, run: Callable[[], parameters.Int]) -> None:
        """Call a kernel until it is done; whatever it lacks grows in between."""
        while full := run():
            try:
                self._grow(full)
            except (BadInput, MemoryError, OSError):
                self._undo()
                raise

    def _grow(self, full: parameters.Int) -> None:
        if full == parameters.REPEATED:
            raise BadInput(f"{self.spec.describe()}: a key is to be loaded twice at once")
        rows = int(self._meta[parameters.ROWS])
        if rows > self.max_rows:
            raise BadInput(
                f"{self.spec.describe()}: this push would make more than {self.max_rows} rows in a"
                " shard: use more shards, or hash the keys into a smaller range"
            )
        if full == parameters.INDEX_FULL:
            self._index.double()
            self._meta[parameters.INDEXABLE] = self._index.indexable
        else:
            self._make_room(rows)

    def _make_room(self, rows: int) -> None:
        room = min(max(rows, 2 * int(self._meta[parameters.ROOM])), self.max_rows)
        self._slab = grown(self._slab, room * self._stride)
        self._row_keys = grown(self._row_keys, room)
        self._meta[parameters.ROOM] = room

    def _undo(self) -> None:
        """Forget the rows that an unfinished push has numbered; their memory was not written."""
        created = self._meta[parameters.CREATED]
        self._index.forget_rows_from(int(created))
        self._meta[parameters.ROWS] = created
        self._meta[parameters.LOCATED] = 0
        self._forget_stamps()


def row_stride(columns: int, item_bytes: int) -> int:
    """Elements from one row to the next: whole cache lines where that costs at most an eighth."""
    row_bytes = columns * item_bytes
    whole_lines = -(-row_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    return whole_lines // item_bytes if 8 * whole_lines <= 9 * row_bytes else columns

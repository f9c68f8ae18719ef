"""A table's part on one shard, dense or sparse, behind one face.

Keys are row keys for sparse tables and block numbers for dense ones; values arrive and leave as
one flat array.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from resilient_ps.barrier import Update
from resilient_ps.errors import BadInput
from resilient_ps.messages import NO_KEYS, Keys, Values
from resilient_ps.quotas import Size
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.dense_overlay import DenseOverlay
from resilient_ps.tables.sparse import Mark, SparseShard
from resilient_ps.tables.sparse_overlay import SparseOverlay
from resilient_ps.tables.spec import DenseSpec, TableSpec
from resilient_ps.tables.survey import Survey

Overlay: TypeAlias = SparseOverlay | DenseOverlay
MARKS_MAX = 4
PULL_BYTES_MAX = 64 << 20  # what one shard puts into one answer


class TablePart:
    """The rows or blocks of one table that live on one shard.

    `writer` is the job that pushes to the table (0: none yet); one job writes at a time. `loading`:
    a copy of it is being taken in, and the first `loaded` rows or elements of it have come.
    `overlay`: the view of it for an image, while one is taken here. `identity` is of this table
    alone: whoever keeps that can tell whether a table is still the same one, and keeps no rows.
    """

    __slots__ = ("__weakref__", "_dtype", "_held", "_keys_max", "_marks", "identity", "loaded",
                 "loading", "overlay", "spec", "text", "width", "writer")  # fmt: skip

    def __init__(self, spec: TableSpec, text: str, shard: int, shards: int) -> None:
        self.spec = spec
        self.text = text
        self.identity = object()
        self.writer = 0
        self.loading = False
        self.loaded = 0
        self.overlay: Overlay | None = None
        self._marks: dict[int, Mark] = {}
        self._held: DenseShard | SparseShard
        if isinstance(spec, DenseSpec):
            layout = DenseLayout(spec, shards)
            self._held = DenseShard(spec, layout, shard)
            per_key = layout.elements_per_block
            self.width = 0  # values per key; 0: they differ
        else:
            self._held = SparseShard(spec)
            per_key = self.width = spec.dim
        self._dtype = np.dtype(spec.dtype)
        self._keys_max = max(1, PULL_BYTES_MAX // (per_key * self._dtype.itemsize))

    def pull(self, keys: Keys) -> Values:
        """Values of these rows or blocks, one behind the other, in an array of their own.

        Raises `BadInput` for blocks of elsewhere, and for more than `PULL_BYTES_MAX`.
        """
        if len(keys) > self._keys_max:
            raise BadInput(
                f"table {self.spec.name!r}: {len(keys)} keys in one request, at most "
                f"{self._keys_max} are possible: split it"
            )
        return self._held.pull(keys).reshape(-1)

    def check(self, update: Update) -> None:
        """Raises `BadInput` when `apply` would: asked before an entry is made of the update."""
        spec = self.spec
        if update.rate is not None:
            spec.optimiser.with_lr(update.rate)
            return
        if update.values.dtype != self._dtype and len(update.keys):
            raise BadInput(
                f"table {spec.name!r} holds {spec.dtype}, the push brings {update.values.dtype}"
            )
        held = self._held
        if isinstance(held, SparseShard) and len(held) + len(update.keys) > held.max_rows:
            raise BadInput(f"table {spec.name!r} is full: {held.max_rows} rows on a shard")
        expected = self.elements(update.keys)
        if update.values.size != expected:
            raise BadInput(
                f"table {spec.name!r}: {len(update.keys)} keys take {expected} values, "
                f"not {update.values.size}"
            )

    def apply(self, update: Update, *, late: bool = False) -> None:
        """One step of the optimiser with these gradients, or a change of its learning rate.

        What is `late` does not belong in the image that is being taken.
        """
        if update.rate is not None:
            self._tune(update.rate, late=late)
        elif len(update.keys):
            self._push(update.keys, update.values, late=late)

    def apply_clock(self, updates: list[Update], *, divide_by: int, late: bool = False) -> None:
        """A whole clock at once: one step for the sum of its gradients, added in list order.

        Gradients are divided by `divide_by` before they are added. A change of the learning rate
        holds from the next clock on. `late`: see `apply`.
        """
        pushes = [update for update in updates if update.rate is None and len(update.keys)]
        if pushes:
            factor = self._dtype.type(1 / divide_by)
            scaled = [p.values * factor if divide_by > 1 else p.values for p in pushes]
            if isinstance(self._held, SparseShard):  # sums repeats in the order of positions
                keys, values = np.concatenate([p.keys for p in pushes]), np.concatenate(scaled)
            else:
                keys, values = self._held.add_up([p.keys for p in pushes], scaled)
            self._push(keys, values, late=late)
        for update in updates:
            if update.rate is not None:
                self._tune(update.rate, late=late)

    def note_writer(self, job: int, *, late: bool) -> None:
        """This job has made a push, which may not be applied yet."""
        self.writer = job
        if self.overlay is not None and not late:
            self.overlay.writer = job

    def _push(self, keys: Keys, values: Values, *, late: bool) -> None:
        if isinstance(self._held, SparseShard):
            values = values.reshape(len(keys), self._held.spec.dim)
        if self.overlay is None:
            self._held.push(keys, values)
        else:
            self.overlay.push(keys, values, late=late)

    def _tune(self, lr: float, *, late: bool) -> None:
        if self.overlay is None:
            self._held.set_lr(lr)
        else:
            self.overlay.set_lr(lr, late=late)

    # -- the quick way: see `quick_requests`

    def is_pullable(self, count: int) -> bool:
        """May so many keys be pulled at once?"""
        return count <= self._keys_max

    def is_pushable(self, keys: Keys, values: Values, elements: int) -> bool:
        """Can these keys be pushed with so many of the values? While an image is taken, only if
        `overlay` can keep what it needs of them at once: see `keep`."""
        if values.dtype != self._dtype:
            return False
        if self.overlay is not None and not self.overlay.may_keep(len(keys)):
            return False
        return elements == (len(keys) * self.width or self.elements_or_none(keys))

    def elements_or_none(self, keys: Keys) -> int:
        """As `elements`, but 0 instead of `BadInput`."""
        try:
            return self.elements(keys)
        except BadInput:
            return 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""
        return self._dtype

    @property
    def rows_held(self) -> SparseShard:
        """The rows of a sparse table."""
        assert isinstance(self._held, SparseShard)
        return self._held

    @property
    def held(self) -> DenseShard | SparseShard:
        """Its rows, or blocks."""
        return self._held

    def run_to_push(self, blocks: Keys) -> tuple[Any, ...] | None:
        """See `DenseShard.run_to_push`. None for sparse tables, too, or while an image is taken."""
        held = self._held
        if isinstance(held, SparseShard) or self.overlay is not None:
            return None
        return held.run_to_push(blocks)

    def elements(self, keys: Keys) -> int:
        """How many values these keys stand for. Raises `BadInput` for blocks of elsewhere."""
        if isinstance(self._held, SparseShard):
            return len(keys) * self._held.spec.dim
        return self._held.elements_of(keys)

    # -- images

    def make_overlay(self, allowance: Allowance) -> Overlay:
        """A view of what is held now, which becomes `overlay` to stay so."""
        held = self._held
        made: Overlay
        if isinstance(held, SparseShard):
            made = SparseOverlay(held, allowance)
        else:
            made = DenseOverlay(held, allowance)
        made.writer = self.writer
        return made

    def note_mark(self, cut: int) -> None:
        """Remember the moment at which this cut was begun: see `survey`."""
        if isinstance(self._held, SparseShard):
            self._marks[cut] = self._held.mark()
            for number in sorted(self._marks)[:-MARKS_MAX]:
                del self._marks[number]

    def survey(self, cut: int, rows: int) -> Survey | None:
        """Which of the first `rows` rows were touched since this cut; None if it is not known."""
        mark = self._marks.get(cut)
        if mark is None or not isinstance(self._held, SparseShard):
            return None
        return Survey(self._held, mark, rows)

    @property
    def first_element(self) -> int:
        """Where in the whole flattened array a dense table's part begins; 0 for sparse tables."""
        held = self._held
        if isinstance(held, SparseShard):
            return 0
        return int(held.layout.shard_slice(held.shard).start)

    @property
    def columns(self) -> int:
        """Values and state of a row, or of an element at most."""
        return self._held.columns

    # -- copies of the state

    @property
    def lr(self) -> float:
        """The present learning rate; 0 if the optimiser has none."""
        return self._held.lr

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from now on. Raises `BadInput`."""
        self._held.set_lr(lr)

    def capture(self, at: int, bytes_max: int) -> tuple[int, Keys, Values]:
        """What comes next after row or element `at`: its end, keys (if sparse) and content.

        An array of its own, of at most `bytes_max` bytes with the keys (one row at least).
        """
        held, item_bytes = self._held, self._dtype.itemsize
        row_bytes = held.columns * item_bytes + (8 if isinstance(held, SparseShard) else 0)
        end = min(at + max(1, bytes_max // row_bytes), len(held))
        if isinstance(held, SparseShard):
            keys, rows = held.capture(at, end)
            return end, keys, rows.reshape(-1)
        return end, NO_KEYS, held.capture(at, end)

    def load(self, end: int, keys: Keys, content: Values) -> None:
        """Take in what `capture(loaded, ...)` gave somewhere else. Raises `BadInput`."""
        held, at = self._held, self.loaded
        rows = end - at if isinstance(held, SparseShard) else 0
        if len(keys) != rows or (self.is_sparse and content.size != rows * held.columns):
            raise BadInput(
                f"table {self.spec.name!r}: {len(keys)} keys and {content.size} values are not "
                f"what stands at {at} to {end}"
            )
        if isinstance(held, SparseShard):
            held.load(keys, content.reshape(len(keys), held.columns))
        else:
            held.load(at, end, content)
        self.loaded = end

    def reserve(self, rows: int, before: TablePart | None = None) -> None:
        """Make room for so many rows at once: else it grows with them.

        `before`: a table that nobody uses any more, whose memory may be used; then it is of no use.
        """
        if isinstance(self._held, SparseShard):
            if before is not None and isinstance(before._held, SparseShard):
                self._held.take_over(before._held, rows)
            self._held.reserve(rows)

    def settle(self) -> None:
        """After the last `put_rows`: nothing of a table of before is left."""
        if isinstance(self._held, SparseShard):
            self._held.settle()

    def put_rows(self, keys: Keys, content: Values) -> None:
        """Make the rows of these keys (no repeats) what `content` says of values and state.

        Raises `BadInput`; nothing has changed then.
        """
        assert isinstance(self._held, SparseShard)
        self._held.load(keys, content.reshape(len(keys), self._held.columns))

    def put_elements(self, at: int, end: int, content: Values) -> None:
        """Make what is here of the elements `at` to `end - 1` of the whole array what they were.

        `content`: as `capture` gives it. Raises `BadInput`.
        """
        assert isinstance(self._held, DenseShard)
        self._held.load_from_whole(at, end, content)

    @property
    def rows(self) -> int:
        """Rows (sparse) or values (dense) held."""
        return len(self._held)

    @property
    def row_bytes(self) -> int:
        """Of a row with its key and state, or of an element with its state."""
        key_bytes = 8 if self.is_sparse else 0
        return key_bytes + self._held.columns * self._dtype.itemsize

    def size_with(self, rows: int) -> Size:
        """What counts for the quotas of its namespaces, if it had so many rows."""
        if self.is_sparse:
            return Size(rows, rows * self.row_bytes)
        return Size(0, self.rows * self.row_bytes)

    @property
    def quick_rows(self) -> int | None:
        """Up to how many rows a sparse table may grow without a look at quotas; None: any."""
        return self._held.quick_rows if isinstance(self._held, SparseShard) else None

    @quick_rows.setter
    def quick_rows(self, rows: int | None) -> None:
        if isinstance(self._held, SparseShard):
            self._held.quick_rows = rows

    @property
    def is_sparse(self) -> bool:
        """Has it rows under keys, rather than blocks?"""
        return isinstance(self._held, SparseShard)

    @property
    def bytes_held(self) -> int:
        """Memory of values, state and index."""
        return self._held.bytes_held

    def digest(self) -> str:
        """Equal content, equal text: whatever the order of creation."""
        return self._held.digest()

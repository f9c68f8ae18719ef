"""A table's part on one shard, dense or sparse, behind one face.

Keys are row keys for sparse tables and block numbers for dense ones; values arrive and leave as
one flat array.
"""

from __future__ import annotations

import numpy as np

from resilient_ps.barrier import Update
from resilient_ps.errors import BadInput
from resilient_ps.messages import NO_KEYS, Keys, Values
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, TableSpec

PULL_BYTES_MAX = 64 << 20  # what one shard puts into one answer


class TablePart:
    """The rows or blocks of one table that live on one shard.

    `writer` is the job that pushes to the table (0: none yet); one job writes at a time. `loading`:
    a copy of it is being taken in, and the first `loaded` rows or elements of it have come.
    """

    __slots__ = ("__weakref__", "_dtype", "_held", "_keys_max", "loaded", "loading", "spec", "text",
                 "writer")  # fmt: skip

    def __init__(self, spec: TableSpec, text: str, shard: int, shards: int) -> None:
        self.spec = spec
        self.text = text
        self.writer = 0
        self.loading = False
        self.loaded = 0
        self._held: DenseShard | SparseShard
        if isinstance(spec, DenseSpec):
            layout = DenseLayout(spec, shards)
            self._held = DenseShard(spec, layout, shard)
            per_key = layout.elements_per_block
        else:
            self._held = SparseShard(spec)
            per_key = spec.dim
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

    def apply(self, update: Update) -> None:
        """One step of the optimiser with these gradients, or a change of its learning rate."""
        if update.rate is not None:
            self._held.set_lr(update.rate)
        elif len(update.keys):
            self._push(update.keys, update.values)

    def apply_clock(self, updates: list[Update], *, divide_by: int) -> None:
        """A whole clock at once: one step for the sum of its gradients, added in list order.

        Gradients are divided by `divide_by` before they are added. A change of the learning rate
        holds from the next clock on.
        """
        pushes = [update for update in updates if update.rate is None and len(update.keys)]
        if pushes:
            factor = self._dtype.type(1 / divide_by)
            scaled = [p.values * factor if divide_by > 1 else p.values for p in pushes]
            if isinstance(self._held, SparseShard):  # sums repeats in the order of positions
                self._push(np.concatenate([p.keys for p in pushes]), np.concatenate(scaled))
            else:
                self._push(*self._held.add_up([p.keys for p in pushes], scaled))
        for update in updates:
            if update.rate is not None:
                self._held.set_lr(update.rate)

    def _push(self, keys: Keys, values: Values) -> None:
        if isinstance(self._held, SparseShard):
            values = values.reshape(len(keys), self._held.spec.dim)
        self._held.push(keys, values)

    def elements(self, keys: Keys) -> int:
        """How many values these keys stand for. Raises `BadInput` for blocks of elsewhere."""
        if isinstance(self._held, SparseShard):
            return len(keys) * self._held.spec.dim
        return self._held.elements_of(keys)

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

    @property
    def rows(self) -> int:
        """Rows (sparse) or values (dense) held."""
        return len(self._held)

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

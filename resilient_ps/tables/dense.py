"""Dense tables: how an array is cut into blocks and shards, and one shard's part of it.

The rows (axis 0; a vector's elements are rows of one value) are cut into blocks of whole
consecutive rows, about 256 KiB each, larger where there would be more than 512. Every shard holds a
run of consecutive blocks, equally many up to one, and the first run goes to a shard chosen by the
table's name so that small tables spread. A run instead of every n-th block: a shard's part is one
slice of the array, which travels and is updated as one piece without gathering.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.hashing import MAX_SHARDS, hash_text
from resilient_ps.tables import parameters, passes, runs
from resilient_ps.tables.memory import CACHE_LINE_BYTES, aligned_zeros
from resilient_ps.tables.request import UINT64, check_array
from resilient_ps.tables.spec import DenseSpec

BLOCK_BYTES = 256 * 1024
MAX_BLOCKS = 512


class DenseLayout:
    """Which elements of a table are in which block, and which blocks on which shard (0-based)."""

    def __init__(self, spec: DenseSpec, shards: int) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise BadInput(f"table {spec.name}: shards must be 1 to {MAX_SHARDS}, not {shards}")
        self.spec = spec
        self.shards = shards
        rows = spec.shape[0] if spec.shape else 1
        self.row_width = spec.elements // rows
        row_bytes = self.row_width * np.dtype(spec.dtype).itemsize
        rows_per_block = max(1, BLOCK_BYTES // row_bytes, -(-rows // MAX_BLOCKS))
        self.elements = spec.elements
        self.elements_per_block = min(rows_per_block, rows) * self.row_width
        self.blocks = -(-self.elements // self.elements_per_block)
        self._runs = min(self.blocks, shards)
        self._first_shard = hash_text(spec.name) % shards

    def shard_of_block(self, block: int) -> int:
        """The shard that holds this block."""
        self._check_block(block)
        run = ((block + 1) * self._runs - 1) // self.blocks
        return (self._first_shard + run) % self.shards

    def blocks_of(self, shard: int) -> NDArray[np.uint64]:
        """The blocks of this shard, ascending and consecutive; small tables have shards without."""
        return np.arange(*self._block_range(shard), dtype=np.uint64)

    def block_elements(self, block: int) -> int:
        """How many elements this block has; only the last may have fewer than the others."""
        part = self.element_slice(block)
        return int(part.stop - part.start)

    def element_slice(self, block: int) -> slice:
        """The block's elements in the flattened (C order) array."""
        self._check_block(block)
        start = block * self.elements_per_block
        return slice(start, min(start + self.elements_per_block, self.elements))

    def shard_slice(self, shard: int) -> slice:
        """All elements of a shard in the flattened array: its blocks are consecutive."""
        first, last = self._block_range(shard)
        start = min(first * self.elements_per_block, self.elements)
        return slice(start, min(last * self.elements_per_block, self.elements))

    def _block_range(self, shard: int) -> tuple[int, int]:
        if not 0 <= shard < self.shards:
            raise BadInput(f"table {self.spec.name}: no shard {shard} of {self.shards}")
        run = (shard - self._first_shard) % self.shards
        if run >= self._runs:
            return (0, 0)
        return (run * self.blocks // self._runs, (run + 1) * self.blocks // self._runs)

    def _check_block(self, block: int) -> None:
        if not 0 <= block < self.blocks:
            raise BadInput(f"{self.spec.describe()}: no block {block} of {self.blocks}")


class DenseShard:
    """The blocks of one shard with their optimiser state. For one thread at a time."""

    def __init__(self, spec: DenseSpec, layout: DenseLayout, shard: int) -> None:
        self.spec = spec
        self.layout = layout
        self.shard = shard
        self.blocks = layout.blocks_of(shard)
        self._first_block = int(self.blocks[0]) if self.blocks.size else 0
        self._dtype = np.dtype(spec.dtype)
        self._parameters = parameters.Parameters.of(spec, layout.row_width)
        where = layout.shard_slice(shard)
        self._hold(aligned_zeros(where.stop - where.start, self._dtype))
        self._state = self._new_state()
        first_row = where.start // layout.row_width
        passes.fill_rows(self._values, first_row, self._parameters.meta, self._parameters.hyper)

    def _new_state(self) -> NDArray[Any]:
        optimiser = self.spec.optimiser
        line = CACHE_LINE_BYTES // self._dtype.itemsize
        slot_size = -(-self._values.size // line) * line
        counts = self.blocks.size if optimiser.counts_steps else 0
        self._slot_size = slot_size
        state = aligned_zeros(optimiser.slots * slot_size + counts, self._dtype)
        if optimiser.initial_state() != 0:
            state[:] = optimiser.initial_state()
        return state

    def __len__(self) -> int:
        """Elements of this shard."""
        return int(self._values.size)

    @property
    def bytes_held(self) -> int:
        """Bytes of values and state."""
        return int(self._values.nbytes + self._state.nbytes)

    @property
    def lr(self) -> float:
        """The present learning rate; 0 if the optimiser has none."""
        return float(self._parameters.hyper[0])

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next push on; BadInput if the optimiser has none."""
        changed = dataclasses.replace(self.spec, optimiser=self.spec.optimiser.with_lr(lr))
        self._parameters.set_optimiser(changed)

    def pull(self, blocks: NDArray[np.uint64]) -> NDArray[Any]:
        """The elements of `blocks` (uint64, this shard's), in their order, as they are now.

        Read-only. Blocks that stand one behind the other are not copied: a later push leaves what
        was lent alone, and goes on with a copy if somebody still holds it.
        """
        run = self._run(blocks)
        if run is not None:
            lent = self._values[run]
            lent.flags.writeable = False
            return lent
        local, size = self._locate(blocks)
        out = np.empty(size, self._dtype)
        at = 0
        for block in local.tolist():
            part = self._local_slice(block)
            end = at + part.stop - part.start
            out[at:end] = self._values[part]
            at = end
        return out

    def _run(self, blocks: NDArray[np.uint64]) -> slice | None:
        """Where these blocks are, if they are this shard's and stand one behind the other."""
        run = runs.run_of(blocks)
        if run is None:
            return None
        first, end = run[0] - self._first_block, run[1] - self._first_block
        if first < 0 or end > self.blocks.size:
            return None
        per_block = self.layout.elements_per_block
        return slice(first * per_block, min(end * per_block, self._values.size))

    def _hold(self, values: NDArray[Any]) -> None:
        """Use this memory for the values; nobody else holds it."""
        self._values = values
        self._memory = values.base
        self._holders = sys.getrefcount(self._memory)
        self.pull_arrays = values, self._first_block, self.layout.elements_per_block
        """What the native module's `answer_pull` takes of a table, to lend its blocks."""

    def _take_back(self) -> None:
        """Before values change: leave them to whoever still holds what `pull` has lent."""
        if sys.getrefcount(self._memory) > self._holders:
            fresh = aligned_zeros(self._values.size, self._dtype)
            fresh[:] = self._values
            self._hold(fresh)

    def elements_of(self, blocks: NDArray[np.uint64]) -> int:
        """How many elements these blocks have; BadInput for blocks of other shards, and repeats."""
        run = self._run(blocks)
        if run is not None:
            return int(run.stop - run.start)
        local, size = self._locate(blocks)
        if np.unique(local).size != local.size:
            raise BadInput(f"{self.spec.describe()}: a block is named twice: add them up first")
        return size

    def push(self, blocks: NDArray[np.uint64], values: NDArray[Any]) -> None:
        """One step with the gradients of `blocks` (uint64, no repeats), 1-D and in their order."""
        run, per_block = self._run(blocks), self.layout.elements_per_block
        size = self.elements_of(blocks) if run is None else run.stop - run.start
        grads = check_array(self.spec, "gradients", values, self._dtype, (size,))
        self._take_back()
        values, state, known = self._values, self._state, self._parameters
        numbers = known.meta, known.hyper, known.work
        if run is not None:
            runs.push_run(values, state, grads, run.start // per_block, per_block, *numbers)
        else:
            local = self._locate(blocks)[0]
            passes.push_blocks(values, state, grads, local, per_block, *numbers)

    def run_to_push(self, blocks: NDArray[np.uint64]) -> tuple[Any, ...] | None:
        """What the native module's `push_runs` takes of this table, which then changes.

        None for blocks that do not stand one behind the other.
        """
        run, per_block = self._run(blocks), self.layout.elements_per_block
        if run is None:
            return None
        self._take_back()
        known = self._parameters
        first = run.start // per_block
        return self._values, self._state, first, per_block, known.meta, known.hyper, known.work

    @property
    def columns(self) -> int:
        """Values and state of an element, at most: `capture` gives so many per element."""
        optimiser = self.spec.optimiser
        return 1 + optimiser.slots + int(optimiser.counts_steps)

    def hollow(self) -> DenseShard:
        """The same blocks and optimiser, in memory of their own that holds nothing yet."""
        twin = copy.copy(self)
        twin._parameters = parameters.Parameters.of(self.spec, self.layout.row_width)
        if self.lr:
            twin.set_lr(self.lr)
        twin._hold(aligned_zeros(self._values.size, self._dtype))
        twin._state = aligned_zeros(self._state.size, self._dtype)
        return twin

    def copy_block(self, block: int, twin: DenseShard) -> int:
        """Put a block (its number within the shard) as it is into `twin`; gives its bytes."""
        part = self._local_slice(block)
        nbytes = 0
        for source, target in zip(
            self.parts(part.start, part.stop),
            twin.parts(part.start, part.stop),
            strict=True,
        ):
            target[:] = source
            nbytes += int(source.nbytes)
        return nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._dtype.itemsize

    def block_at(self, element: int) -> int:
        """The number within the shard of the block that this element of the shard is in."""
        return element // self.layout.elements_per_block

    def size_of(self, block: int) -> int:
        """Elements of this block (its number within the shard)."""
        part = self._local_slice(block)
        return int(part.stop - part.start)

    def end_of(self, block: int) -> int:
        """The first element of the shard behind this block (its number within the shard)."""
        return int(self._local_slice(block).stop)

    def local_blocks(self, blocks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The numbers of these blocks within the shard. BadInput for blocks of elsewhere."""
        return self._locate(blocks)[0]

    def capture(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of the elements `start` to `stop - 1` of this shard with their state, for `load`.

        Their values, their state slot by slot, and the step counts of blocks that begin there.
        """
        return np.concatenate(self.parts(start, stop))

    def load(self, start: int, stop: int, content: NDArray[Any]) -> None:
        """Set the elements `start` to `stop - 1` to what `capture` gave somewhere else.

        BadInput for elements of elsewhere, and for content of another dtype or size.
        """
        if not 0 <= start <= stop <= len(self):
            raise BadInput(
                f"{self.spec.describe()}: shard {self.shard} has {len(self)} elements, not those"
                f" from {start} to {stop}"
            )
        self._take_back()
        pieces = self.parts(start, stop)
        size = sum([piece.size for piece in pieces])
        content = check_array(self.spec, "content", content, self._dtype, (size,))
        at = 0
        for piece in pieces:
            piece[:] = content[at : at + piece.size]
            at += piece.size

    def load_from_whole(self, start: int, stop: int, content: NDArray[Any]) -> None:
        """`load`, of what is here of the elements `start` to `stop - 1` of the whole array.

        `content`: as a shard that had all of them would give it; blocks are the same for any number
        of shards. BadInput for elements beyond the array, and for content of another dtype or size.
        """
        if not 0 <= start <= stop <= self.layout.elements:
            raise BadInput(
                f"{self.spec.describe()} has no elements {start} to {stop}, but"
                f" {self.layout.elements}"
            )
        slots, per_block = 1 + self.spec.optimiser.slots, self.layout.elements_per_block
        first, last = -(-start // per_block), -(-stop // per_block)
        counts = (last - first) * self.spec.optimiser.counts_steps
        size = (stop - start) * slots + counts
        content = check_array(self.spec, "content", content, self._dtype, (size,))
        ours = self.layout.shard_slice(self.shard)
        lo, hi = max(start, ours.start), min(stop, ours.stop)
        if lo >= hi:
            return
        rows = content[: size - counts].reshape(slots, stop - start)
        parts = [rows[:, lo - start : hi - start].reshape(-1)]
        if counts:
            begin, end = -(-lo // per_block), -(-hi // per_block)
            parts.append(content[size - counts :][begin - first : end - first])
        self.load(lo - ours.start, hi - ours.start, np.concatenate(parts))

    def parts(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Where values and state of these elements are."""
        pieces = [self._values[start:stop]]
        for slot in range(self.spec.optimiser.slots):
            at = slot * self._slot_size
            pieces.append(self._state[at + start : at + stop])
        if self.spec.optimiser.counts_steps:
            at = self.spec.optimiser.slots * self._slot_size
            first, last = (-(-i // self.layout.elements_per_block) for i in (start, stop))
            pieces.append(self._state[at + first : at + last])
        return pieces

    def add_up(
        self, blocks: list[NDArray[np.uint64]], values: list[NDArray[Any]]
    ) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """Several pushes as one: per element, their gradients are added in list order."""
        if all(np.array_equal(blocks[0], other) for other in blocks[1:]):
            total = values[0].copy()
            for other in values[1:]:
                total += other
            return blocks[0], total
        sums: dict[int, NDArray[Any]] = {}
        for numbers, flat in zip(blocks, values, strict=True):
            at = 0
            for block in numbers.tolist():
                part = flat[at : at + self.layout.block_elements(block)]
                at += part.size
                sums[block] = sums[block] + part if block in sums else part
        ordered = sorted(sums)
        return np.array(ordered, np.uint64), np.concatenate([sums[block] for block in ordered])

    def digest(self) -> str:
        """XXH3-128 of values and state: equal shards have equal digests."""
        hashed = xxhash.xxh3_128(self._values.data)
        hashed.update(self._state.data)
        return hashed.hexdigest()

    def _locate(self, blocks: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
        """The blocks' numbers within this shard, and how many elements they have."""
        blocks = check_array(self.spec, "blocks", blocks, UINT64, (-1,))
        local = blocks.astype(np.int64) - self._first_block
        if local.size == 0:
            return local, 0
        if local.min() < 0 or local.max() >= self.blocks.size:
            raise BadInput(
                f"{self.spec.describe()}: shard {self.shard} of {self.layout.shards} has"
                f" {self._describe_blocks()}, not all of those asked for: use the table's layout"
            )
        size = local.size * self.layout.elements_per_block
        shorter = self.blocks.size * self.layout.elements_per_block - self._values.size
        return local, size - shorter * int(np.count_nonzero(local == self.blocks.size - 1))

    def _describe_blocks(self) -> str:
        if not self.blocks.size:
            return "no blocks"
        return f"blocks {self.blocks[0]} to {self.blocks[-1]}"

    def _local_slice(self, block: int) -> slice:
        start = block * self.layout.elements_per_block
        return slice(start, min(start + self.layout.elements_per_block, self._values.size))

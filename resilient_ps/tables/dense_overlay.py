"""The blocks of a dense shard as they are for an image, beside the live ones that go on.

As `sparse_overlay`, block by block: a late push first copies the blocks that it touches to `kept`,
which has room for all of them but takes memory only for what is written; an early push also goes
to `kept` for the blocks that stand there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.dense import DenseShard


class DenseOverlay:
    """See the module. All changes of `live` go through it while it is open."""

    def __init__(self, live: DenseShard, allowance: Allowance) -> None:
        self._live = live
        self._allowance = allowance
        self.lr = live.lr  # the image's
        self.writer = 0  # the image's, as `TablePart` has one
        self._is_kept = np.zeros(live.blocks.size, np.bool_)
        self._kept: DenseShard | None = None
        self._accounted = 0
        self._frozen = False
        self._at = 0  # elements before this one have been captured
        self.nbytes = 0

    # -- changes of the live blocks

    def push(self, blocks: NDArray[np.uint64], values: NDArray[Any], *, late: bool) -> None:
        """As `DenseShard.push` of the live blocks."""
        late = late or self._frozen
        apart = late or self.lr != self._live.lr
        if apart or self._kept is not None:
            try:
                if apart:
                    self._keep(self._live.local_blocks(blocks))
                if not late:
                    self._push_kept(blocks, values)
            except (BadInput, MemoryError, OSError) as error:
                self._allowance.fail(f"no room to keep blocks for an image ({error})")
        self._live.push(blocks, values)
        if not self._allowance.failed:
            self._account()

    def may_keep(self, count: int) -> bool:
        """Pushes of blocks go the usual way while an image is taken."""
        return False

    def set_lr(self, lr: float, *, late: bool) -> None:
        """As `DenseShard.set_lr` of the live blocks."""
        self._live.set_lr(lr)
        if not late and not self._frozen:
            self.lr = self._live.lr
            if self._kept is not None:
                self._kept.set_lr(lr)

    def _keep(self, local: NDArray[np.int64]) -> None:
        """Copy those of these blocks that are to be captured and have no copy yet."""
        for block in local[~self._is_kept[local]].tolist():
            if self._live.end_of(block) > self._at:
                self.nbytes += self._live.copy_block(block, self._open_kept())
                self._is_kept[block] = True

    def _open_kept(self) -> DenseShard:
        if self._kept is None:
            self._kept = self._live.hollow()
            if self._kept.lr != self.lr:
                self._kept.set_lr(self.lr)
        return self._kept

    def _push_kept(self, blocks: NDArray[np.uint64], values: NDArray[Any]) -> None:
        if self._kept is None:
            return
        apart = self._is_kept[self._live.local_blocks(blocks)]
        if apart.all():
            self._kept.push(blocks, values)
            return
        sizes = [self._live.layout.block_elements(block) for block in blocks.tolist()]
        ends = np.cumsum(sizes)
        parts = [values[ends[i] - sizes[i] : ends[i]] for i in np.flatnonzero(apart).tolist()]
        if parts:
            self._kept.push(blocks[apart], np.concatenate(parts))

    def _account(self) -> None:
        grown_by, self._accounted = self.nbytes - self._accounted, self.nbytes
        self._allowance.spend(grown_by)

    def close(self) -> None:
        """Let go of everything."""
        self._kept = None
        self.nbytes = 0
        self._is_kept[:] = False
        self._account()

    # -- the image

    def freeze(self) -> None:
        """All early pushes have been made."""
        self._frozen = True

    @property
    def rows(self) -> int:
        """Elements of the image."""
        return len(self._live)

    @property
    def captured(self) -> int:
        """How many elements of the image have been captured."""
        return self._at

    def capture(self, bytes_max: int) -> tuple[NDArray[np.uint64], NDArray[Any]] | None:
        """The next elements, as `DenseShard.capture` gives them; None behind the last one."""
        live = self._live
        first = self._at
        most = max(1, bytes_max // (live.columns * live.itemsize))
        last = self._at = min(first + most, len(live))
        if first == last:
            return None
        parts: list[list[NDArray[Any]]] = []
        for block in range(live.block_at(first), live.block_at(last - 1) + 1):
            end = live.end_of(block)
            begin = max(first, end - live.size_of(block))
            holder = live
            if self._kept is not None and self._is_kept[block]:
                holder = self._kept
            parts.append(holder.parts(begin, min(last, end)))
        content = [part for column in zip(*parts, strict=True) for part in column]
        return np.empty(0, np.uint64), np.concatenate(content)

"""The rows of a sparse shard as they are for an image, beside the live ones that go on.

Theory of operation. Pushes are *early* (they belong in the image) or *late*. Until the first late
one, both views are the same and nothing is kept. From then on a row whose views differ stands
twice: live, and in `kept`, a shard of the same specification, so that the same kernels do the same
arithmetic on it. Per live row a byte says how it stands:

    SAME   both views have it, and it is the same
    KEPT   the image's is in `kept`
    OUT    the image does not have it: a late push created it

A late push first copies the SAME rows that it touches. An early push goes to the live rows, and
once more to `kept` for those that are not SAME. While the learning rates differ, early pushes
treat all rows so. `freeze` ends the early pushes; from then on the image is captured row by row in
the order of creation, and what has been captured needs no copy any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.memory import grown
from resilient_ps.tables.sparse import SparseShard

SAME, KEPT, OUT = 0, 1, 2
KEY_BYTES = 8
WINDOW_ROWS = 1 << 20  # how many states are looked at at once, at most


class SparseOverlay:
    """See the module. All changes of `live` go through it while it is open."""

    def __init__(self, live: SparseShard, allowance: Allowance) -> None:
        self._live = live
        self._allowance = allowance
        self.lr = live.lr  # the image's
        self.writer = 0  # the image's, as `TablePart` has one
        self._states: NDArray[np.uint8] | None = None
        self._known = 0  # rows whose state is known
        self._kept: SparseShard | None = None
        self._accounted = 0
        self._ready = -1  # for so many keys there is room, unless something is kept meanwhile
        self._arrays: tuple[Any, ...] | None = None  # see `keep_arrays`
        self._frozen = False
        self._end = 0  # rows that are in the image or OUT, once it is frozen
        self._at = 0  # rows before this one have been captured
        self.captured = 0  # how many of the image's rows have been

    @property
    def nbytes(self) -> int:
        """What is held for the image."""
        states = 0 if self._states is None else int(self._states.nbytes)
        return states + (0 if self._kept is None else self._kept.bytes_held)

    # -- changes of the live rows

    def push(self, keys: NDArray[np.uint64], grads: NDArray[Any], *, late: bool) -> None:
        """As `SparseShard.push` of the live rows."""
        late = late or self._frozen
        if not late and self._states is None and self.lr == self._live.lr:
            self._live.push(keys, grads)
            return
        try:
            states = self._open_states()
            if late:
                self._keep(states, keys)
            else:
                self._push_kept(states, keys, grads)
        except (BadInput, MemoryError, OSError) as error:
            self._allowance.fail(f"no room to keep rows for an image ({error})")
        self._live.push(keys, grads)
        if not self._allowance.failed:
            self._note_new(late=late)
            self._account()

    # -- the quick way: see `quick_requests`

    def may_keep(self, count: int) -> bool:
        """May the rows of so many keys be kept by `native.push_parts` now, before a late push?"""
        if not self._frozen or self._allowance.failed:
            return False
        if count > self._ready:
            try:
                self._open_states()
                self._ready = count if self._open_kept().make_ready(count) else -1
                self._arrays = None
            except (BadInput, MemoryError, OSError):
                return False
        return count <= self._ready

    def keep_arrays(self) -> tuple[Any, ...]:
        """What `native.push_parts` takes to keep rows. After `may_keep`."""
        if self._arrays is None:
            assert self._states is not None
            assert self._kept is not None
            self._arrays = (self._states, self._at, self._end, *self._kept.kept_in)
        return self._arrays

    def note_kept(self) -> None:
        """Rows have been kept so, and pushed."""
        if not self._allowance.failed:
            self._account()

    def set_lr(self, lr: float, *, late: bool) -> None:
        """As `SparseShard.set_lr` of the live rows."""
        self._live.set_lr(lr)
        if not late and not self._frozen:
            self.lr = self._live.lr
            if self._kept is not None:
                self._kept.set_lr(lr)

    def _push_kept(
        self, states: NDArray[np.uint8], keys: NDArray[np.uint64], grads: NDArray[Any]
    ) -> None:
        if self.lr != self._live.lr:
            self._keep(states, keys)
            self._open_kept().push(keys, grads)
        numbers = self._live.row_numbers(keys)
        known = np.flatnonzero(numbers >= 0)
        apart = known[states[numbers[known]] != SAME]
        if apart.size:
            states[numbers[apart]] = KEPT
            if self.lr == self._live.lr:
                self._open_kept().push(keys[apart], grads[apart])

    def _keep(self, states: NDArray[np.uint8], keys: NDArray[np.uint64]) -> None:
        """Copy those rows of these keys that are to be captured and have no copy yet."""
        last = self._end if self._frozen else len(self._live)
        fresh = self._live.claim(keys, states, self._at, last)  # SAME becomes KEPT
        if fresh.size:
            self._open_kept().load(*self._live.take(fresh))

    def _open_states(self) -> NDArray[np.uint8]:
        if self._states is None:
            self._states = np.zeros(max(1, len(self._live)), np.uint8)
            self._known = len(self._live)
        return self._states

    def _open_kept(self) -> SparseShard:
        if self._kept is None:
            self._kept = SparseShard(self._live.spec, self._live.max_rows)
            self._kept.reserve_slab(self._rows_at_most())
            if self._kept.lr != self.lr:
                self._kept.set_lr(self.lr)
        return self._kept

    def _rows_at_most(self) -> int:
        """How many rows may be kept before the allowance is spent."""
        row_bytes = KEY_BYTES + self._live.columns * self._live.itemsize
        return min(len(self._live), self._allowance.bytes_max // row_bytes)

    def _note_new(self, *, late: bool) -> None:
        """How the rows stand that the push has created."""
        rows, states = len(self._live), self._states
        if self._frozen or states is None or rows == self._known:
            return
        if rows > states.size:
            self._states = states = grown(states, max(rows, 2 * states.size))
        if late:
            states[self._known : rows] = OUT
        elif self.lr != self._live.lr:
            states[self._known : rows] = KEPT
        self._known = rows

    def _account(self) -> None:
        nbytes = self.nbytes
        grown_by, self._accounted = nbytes - self._accounted, nbytes
        self._ready, self._arrays = -1, None
        self._allowance.spend(grown_by)

    def close(self) -> None:
        """Let go of everything."""
        self._states = self._kept = None
        self._account()

    # -- the image

    def freeze(self) -> None:
        """All early pushes have been made."""
        self._frozen = True
        self._end = len(self._live)

    @property
    def rows_passed(self) -> int:
        """How many live rows a survey has to look at."""
        return self._end

    @property
    def rows(self) -> int:
        """Rows of the image, or of what `leave_out` has left of it. After `freeze`."""
        if self._states is None:
            return self._end
        return self._end - int(np.count_nonzero(self._states[: self._end] == OUT))

    def count(self, wanted: NDArray[np.bool_]) -> int:
        """How many of the image's rows are among these."""
        if self._states is None:
            return int(np.count_nonzero(wanted))
        return int(np.count_nonzero(wanted & (self._states[: self._end] != OUT)))

    def leave_out(self, wanted: NDArray[np.bool_]) -> None:
        """Capture only these rows (a flag for each of `rows_passed`)."""
        self._open_states()[: self._end][~wanted] = OUT
        self._account()

    def capture(self, bytes_max: int) -> tuple[NDArray[np.uint64], NDArray[Any]] | None:
        """The next rows: keys, and values and state (n, `columns`); None behind the last one."""
        live, self._arrays = self._live, None
        most = max(1, bytes_max // (KEY_BYTES + live.columns * live.itemsize))
        if self._states is None:
            first, self._at = self._at, min(self._at + most, self._end)
            keys, rows = live.capture(first, self._at)
        else:
            keys, rows = self._capture_apart(self._states, most)
        self.captured += keys.size
        return (keys, rows) if keys.size else None

    def _capture_apart(
        self, states: NDArray[np.uint8], most: int
    ) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        first, last = self._at, min(self._at + most, self._end)
        stand = states[first:last]
        if (stand == OUT).any():
            numbers = self._next(states, most)
            keys, rows = self._live.take(numbers)
            stand = states[numbers]
        else:  # a run: it is copied in half the time
            keys, rows = self._live.capture(first, last)
            self._at = last
        apart = np.flatnonzero(stand == KEPT)
        if apart.size and self._kept is not None:
            kept = self._kept.row_numbers(keys[apart]).astype(np.uint32)
            rows[apart] = self._kept.take(kept)[1]
        return keys, rows

    def _next(self, states: NDArray[np.uint8], most: int) -> NDArray[np.uint32]:
        """The numbers of the next rows that are not OUT."""
        found: list[NDArray[np.int64]] = []
        window = most  # all that there is to look at, where none is OUT
        while most > 0 and self._at < self._end:
            last = min(self._at + window, self._end)
            numbers = self._at + np.flatnonzero(states[self._at : last] != OUT)[:most]
            most -= numbers.size
            self._at = last if most > 0 else int(numbers[-1]) + 1
            window = min(2 * window, WINDOW_ROWS)
            found.append(numbers)
        return np.concatenate(found).astype(np.uint32) if found else np.empty(0, np.uint32)

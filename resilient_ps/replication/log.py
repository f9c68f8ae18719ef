"""The log of one replica: the entries that are not applied yet, and which epochs the others had.

Entries are applied in the order of their lsn and dropped then: what is applied has been committed,
so that every in-sync replica holds it. Of applied entries only the epochs are remembered, as runs;
that is enough to compare two logs (log matching: equal lsn and epoch, equal everything before;
Ongaro, Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014).

Invariants: `applied <= last`; entries are `applied + 1 .. last` without gaps; epochs never fall.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import islice

from resilient_ps.errors import Bug
from resilient_ps.ids import NO_EPOCH, Epoch, Position
from resilient_ps.messages import Entry

EPOCHS_MAX = 4_096
"""Runs that are remembered; a replica that lags behind more changes of primary gets a copy."""

_new = tuple.__new__  # several times faster than a named tuple's own constructor

Epochs = tuple[tuple[int, Epoch], ...]
"""Runs of lsns of one epoch: (first lsn, epoch), ascending."""


class Log:
    """See the module. `applied` and `epochs` are where a state copy begins; 0 and () otherwise."""

    def __init__(self, applied: int = 0, epochs: Iterable[tuple[int, Epoch]] = ()) -> None:
        self.applied = applied
        self.last = applied
        self.nbytes = self.keys = 0  # of what is not applied yet
        self._entries: deque[Entry] = deque()
        self._firsts: list[int] = []
        self._epochs: list[Epoch] = []
        for first, epoch in epochs:
            self._firsts.append(first)
            self._epochs.append(epoch)

    def __len__(self) -> int:
        """Entries that are not applied yet."""
        return self.last - self.applied

    @property
    def epochs(self) -> Epochs:
        """The runs, for a state copy: those of applied entries."""
        runs = zip(self._firsts, self._epochs, strict=True)
        return tuple((first, epoch) for first, epoch in runs if first <= self.applied)

    @property
    def end(self) -> Position:
        """The last entry's place."""
        return Position(self._epochs[-1] if self._epochs else NO_EPOCH, self.last)

    def place(self, lsn: int) -> Position | None:
        """The epoch of an lsn, as a position; None where it is not remembered, or not there."""
        if lsn > self.last or lsn < 0:
            return None
        if self._firsts and lsn >= self._firsts[-1]:  # as nearly always
            return _new(Position, (self._epochs[-1], lsn))
        if lsn == 0:
            return Position(NO_EPOCH, 0)
        run = bisect_right(self._firsts, lsn) - 1
        return None if run < 0 else _new(Position, (self._epochs[run], lsn))

    def run_start(self, lsn: int) -> int:
        """The first lsn of the run that holds `lsn`, as far as is remembered."""
        run = bisect_right(self._firsts, lsn) - 1
        return 0 if run < 0 else self._firsts[run]

    def append(self, entry: Entry) -> None:
        """One more, behind the last."""
        epoch, lsn = entry.at
        if lsn != self.last + 1 or (self._epochs and epoch < self._epochs[-1]):
            raise Bug(f"entry {entry.at} cannot follow {self.end}")
        if not self._epochs or epoch != self._epochs[-1]:
            self._firsts.append(lsn)
            self._epochs.append(epoch)
            if len(self._firsts) > EPOCHS_MAX:
                del self._firsts[0], self._epochs[0]
        self._entries.append(entry)
        self.last = lsn
        self.nbytes += entry.command.nbytes
        self.keys += len(entry.command.keys)

    def pass_over(self, epoch: Epoch) -> int:
        """An entry that is applied at once, where all others are: it need not be kept. Its lsn."""
        if len(self) or not self._epochs or epoch != self._epochs[-1]:
            raise Bug(f"an entry of {epoch} behind {self.end} cannot be passed over")
        self.applied = self.last = self.last + 1
        return self.last

    def take(self) -> Entry:
        """The first entry that is not applied; it is, from now on."""
        entry = self._entries.popleft()
        self.applied = entry.at.lsn
        self.nbytes -= entry.command.nbytes
        self.keys -= len(entry.command.keys)
        return entry

    def take_to(self, lsn: int) -> list[Entry]:
        """All that are not applied up to `lsn`; they are, from now on."""
        if lsn < self.last:
            return [self.take() for _ in range(lsn - self.applied)]
        entries = list(self._entries)
        self._entries.clear()
        self.applied, self.nbytes, self.keys = self.last, 0, 0
        return entries

    def after(self, lsn: int) -> tuple[Entry, ...]:
        """The entries behind `lsn`, which is at least `applied`."""
        if lsn == self.last - 1:
            return (self._entries[-1],)
        return tuple(islice(self._entries, lsn - self.applied, None))

    def pending(self) -> Iterable[Entry]:
        """All entries that are not applied."""
        return iter(self._entries)

    def cut(self, lsn: int) -> None:
        """Drop everything behind `lsn`, which is at least `applied`."""
        if lsn < self.applied:
            raise Bug(f"entries behind {lsn} are to be dropped, {self.applied} is applied")
        while self.last > lsn:
            entry = self._entries.pop()
            self.nbytes -= entry.command.nbytes
            self.keys -= len(entry.command.keys)
            self.last -= 1
        while self._firsts and self._firsts[-1] > self.last:
            del self._firsts[-1], self._epochs[-1]


def in_sequence(prev: Position, entries: Iterable[Entry], epoch: Epoch) -> bool:
    """Does each entry follow the one before, from `prev` on, and is none later than `epoch`?"""
    before = prev
    for entry in entries:
        at = entry.at
        if at.lsn != before.lsn + 1 or at.epoch < before.epoch:
            return False
        before = at
    return before.epoch <= epoch

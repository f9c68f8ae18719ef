"""What BSP holds back: the pushes of clocks that not all ranks have ticked yet.

Invariant: the pushes of a clock are handed out once, in the order (rank, n), so that what is
computed from them does not depend on the order in which they arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.messages import Keys, Values

BARRIER_BYTES_MAX = 4 << 30


class Update(NamedTuple):
    """What push number `n` does to a table: gradients for keys, or a new learning rate."""

    n: int
    table: int
    keys: Keys
    values: Values
    rate: float | None = None

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(slots=True)
class Barrier:
    """The held pushes of one job on one shard. `applied` is the last clock handed out."""

    applied: int = 0
    held_bytes: int = 0
    bytes_max: int = BARRIER_BYTES_MAX
    _held: dict[int, dict[int, list[Update]]] = field(default_factory=dict)

    def has_room(self, clock: int, update: Update) -> bool:
        """May it be held? The next clock has half of the room for itself.

        Otherwise ranks that run ahead could fill it, and those that they wait for find none.
        """
        most = self.bytes_max if clock == self.applied + 1 else self.bytes_max // 2
        return self.held_bytes + update.nbytes <= most

    def has_room_for(self, nbytes: int) -> bool:
        """May so much be held, of whichever clock?"""
        return self.held_bytes + nbytes <= self.bytes_max // 2

    def hold(self, rank: int, clock: int, update: Update) -> None:
        """Keep a push until its clock is complete."""
        self._held.setdefault(clock, {}).setdefault(rank, []).append(update)
        self.held_bytes += update.nbytes

    def forget(self, rank: int, clock: int) -> None:
        """The rank begins this clock again."""
        for update in self._held.get(clock, {}).pop(rank, ()):
            self.held_bytes -= update.nbytes

    def forget_table(self, table: int) -> None:
        """The table is gone: nothing waits for it any more."""
        for by_rank in self._held.values():
            for rank, updates in by_rank.items():
                kept = [update for update in updates if update.table != table]
                self.held_bytes -= sum(u.nbytes for u in updates if u.table == table)
                by_rank[rank] = kept

    def held(self) -> Iterator[tuple[int, int, Update]]:
        """All of them as (clock, rank, push), in the order in which they will be applied."""
        for clock, by_rank in sorted(self._held.items()):
            for rank, updates in sorted(by_rank.items()):
                for update in updates:
                    yield clock, rank, update

    def complete(self, clock: int) -> Iterator[tuple[int, list[Update]]]:
        """All clocks up to this one that have pushes, in order, with what `take` gives of each."""
        for held in sorted(self._held):
            if held <= clock:
                yield held, self.take(held)
        self.applied = max(self.applied, clock)

    def take(self, clock: int) -> list[Update]:
        """The pushes of a complete clock, in the order (rank, n)."""
        by_rank = self._held.pop(clock, {})
        updates = [update for rank in sorted(by_rank) for update in by_rank[rank]]
        self.held_bytes -= sum(update.nbytes for update in updates)
        self.applied = clock
        return updates

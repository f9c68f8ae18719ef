"""What BSP holds back: the pushes of clocks that not all ranks have ticked yet.

Invariant: the pushes of a clock are handed out once, in the order (rank, n), so that what is
computed from them does not depend on the order in which they arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.messages import Keys, Values


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
    _held: dict[int, dict[int, list[Update]]] = field(default_factory=dict)

    def hold(self, rank: int, clock: int, update: Update) -> None:
        """Keep a push until its clock is complete."""
        self._held.setdefault(clock, {}).setdefault(rank, []).append(update)
        self.held_bytes += update.nbytes

    def forget(self, rank: int, clock: int) -> None:
        """The rank begins this clock again."""
        for update in self._held.get(clock, {}).pop(rank, ()):
            self.held_bytes -= update.nbytes

    def take(self, clock: int) -> list[Update]:
        """The pushes of a complete clock, in the order (rank, n)."""
        by_rank = self._held.pop(clock, {})
        updates = [update for rank in sorted(by_rank) for update in by_rank[rank]]
        self.held_bytes -= sum(update.nbytes for update in updates)
        self.applied = clock
        return updates

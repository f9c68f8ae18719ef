"""Pushes that are held back: under BSP until all ranks have ticked their clock, of a graph's task
until it has ticked itself.

Invariant: the pushes of a clock (of a task) are handed out once, in the order (rank, n), so that
what is computed from them does not depend on the order in which they arrived.
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
    """The held pushes of one job on one shard. `applied` is the last clock that was applied."""

    applied: int = 0
    held_bytes: int = 0
    bytes_max: int = BARRIER_BYTES_MAX
    held_keys: dict[int, int] = field(default_factory=dict)  # by table
    _held: dict[int, dict[int, list[Update]]] = field(default_factory=dict)

    def has_room(self, update: Update, *, first: bool) -> bool:
        """May it be held? What has to come `first` has half of the room for itself.

        Otherwise the others could fill it, and those that they wait for would find none.
        """
        most = self.bytes_max if first else self.bytes_max // 2
        return self.held_bytes + update.nbytes <= most

    def first_rank(self) -> int | None:
        """The lowest rank of which anything is held."""
        return min((rank for by_rank in self._held.values() for rank in by_rank), default=None)

    def has_room_for(self, nbytes: int) -> bool:
        """May so much be held, of whichever clock?"""
        return self.held_bytes + nbytes <= self.bytes_max // 2

    def hold(self, rank: int, clock: int, update: Update) -> None:
        """Keep a push until its clock is complete."""
        self._held.setdefault(clock, {}).setdefault(rank, []).append(update)
        self.held_bytes += update.nbytes
        if len(update.keys):
            held = self.held_keys.get(update.table, 0)
            self.held_keys[update.table] = held + len(update.keys)

    def forget(self, rank: int, clock: int) -> None:
        """The rank begins this clock again."""
        self.take_of(rank, clock)

    def forget_table(self, table: int) -> None:
        """The table is gone: nothing waits for it any more."""
        held = list(self.held())
        self._held.clear()
        self.held_keys.clear()
        self.held_bytes = 0
        for clock, rank, update in held:
            if update.table != table:
                self.hold(rank, clock, update)

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

    def take_of(self, rank: int, clock: int) -> list[Update]:
        """The pushes of one rank alone, in the order n."""
        by_rank = self._held.get(clock, {})
        updates = by_rank.pop(rank, [])
        if not by_rank:
            self._held.pop(clock, None)
        self._let_go(updates)
        return updates

    def take(self, clock: int) -> list[Update]:
        """The pushes of a complete clock, in the order (rank, n)."""
        by_rank = self._held.pop(clock, {})
        updates = [update for rank in sorted(by_rank) for update in by_rank[rank]]
        self._let_go(updates)
        self.applied = clock
        return updates

    def _let_go(self, updates: list[Update]) -> None:
        for update in updates:
            self.held_bytes -= update.nbytes
            left = self.held_keys.pop(update.table, 0) - len(update.keys)
            if left:
                self.held_keys[update.table] = left

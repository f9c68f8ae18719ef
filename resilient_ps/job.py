"""A job as one shard sees it: its ledger, and the pushes that are held back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient_ps.barrier import Barrier, Update
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.errors import BadInput
from resilient_ps.ledger import JobLedger
from resilient_ps.table_part import TablePart
from resilient_ps.tables.spec import TableSpec

NAMED_RANKS = 8


@dataclass(slots=True)
class Job:
    """`text` is the job's specification as it was opened."""

    text: str
    ledger: JobLedger
    barrier: Barrier = field(default_factory=Barrier)
    _averages: bool = field(init=False)

    def __post_init__(self) -> None:
        mode = self.spec.consistency
        self._averages = isinstance(mode, BSP) and mode.reduce == "mean"

    @property
    def spec(self) -> JobSpec:
        """What was asked for when the job was opened."""
        return self.ledger.spec

    def reached(self) -> int:
        """The clock up to which every live rank's updates can be seen here."""
        return self.barrier.applied if self.ledger.together else self.ledger.slowest()

    def has_room(self, rank: int, clock: int, update: Update) -> bool:
        """May this push be held?"""
        if self.barrier.has_room(update, first=False):
            return True
        return self._is_first(rank, clock) and self.barrier.has_room(update, first=True)

    def _is_first(self, rank: int, clock: int) -> bool:
        """BSP: is it of the clock that has to be complete next? Tasks: whose rank is the lowest, on
        whichever shard, can always go on."""
        if not self.ledger.is_graph:
            return clock == self.barrier.applied + 1
        first = self.barrier.first_rank()
        return first is None or rank <= first

    def why_full(self) -> str:
        """There is no room for a push; for a person."""
        if not self.ledger.is_graph:
            return self.waits_for(self.barrier.applied + 1)
        barrier = self.barrier
        ranks = sorted({rank for _, rank, _ in barrier.held()})[:NAMED_RANKS]
        return (
            f"{barrier.held_bytes} bytes of pushes are held for tasks that have not ended (lanes "
            f"{', '.join(map(str, ranks))} of graph {self.spec.name!r}), at most "
            f"{barrier.bytes_max} are possible: make tasks smaller, or shards more"
        )

    def close_clocks(self, tables: Mapping[int, TablePart], cut_clock: int) -> None:
        """BSP: apply every clock that all live ranks have ticked.

        What is above `cut_clock` does not belong in the image that is being taken.
        """
        if not self.ledger.together:
            return
        complete = self.ledger.slowest()
        if self.barrier.applied < complete:
            for clock, updates in self.barrier.complete(complete):
                self._apply_clock(clock, updates, tables, late=clock > cut_clock)

    def end_task(
        self, rank: int, clock: int, tables: Mapping[int, TablePart], cut_clock: int
    ) -> None:
        """A rank has ticked: apply its pushes as BSP does those of a job with one rank."""
        updates = self.barrier.take_of(rank, clock)
        self._apply_clock(clock, updates, tables, late=clock > cut_clock)

    def _apply_clock(
        self,
        clock: int,
        updates: list[Update],
        tables: Mapping[int, TablePart],
        *,
        late: bool,
    ) -> None:
        divide_by = self.ledger.taking_part(clock) if self._averages else 1
        by_table: dict[int, list[Update]] = {}
        for update in updates:
            by_table.setdefault(update.table, []).append(update)
        for number in sorted(by_table):
            if number in tables:  # else it was dropped meanwhile
                tables[number].apply_clock(by_table[number], divide_by=divide_by, late=late)

    def check_reduce(self, spec: TableSpec) -> None:
        """Raises `BadInput`: a mean of integers is no integer."""
        if self._averages and spec.dtype == "int64":
            raise BadInput(f"table {spec.name!r} is int64: reduce='mean' needs a float table")

    def waits_for(self, clock: int) -> str:
        """Which ranks have not ticked `clock`: the first few by number, for a person."""
        ranks = self.ledger.ranks
        behind = self.ledger.behind(clock)
        names = ", ".join(
            f"{rank} (at clock {ranks[rank].ticked + 1})" for rank in behind[:NAMED_RANKS]
        )
        more = len(behind) - NAMED_RANKS
        return f"job {self.spec.name!r} waits for clock {clock} of rank {names}" + (
            f" and {more} more" if more > 0 else ""
        )

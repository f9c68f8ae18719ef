"""Faults as bars in lanes: a row of lanes for each group, as many as overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilient_ps.chaos.faults.kinds import GROUPS, KINDS
from resilient_ps.chaos.faults.planned import Struck

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Bar:
    """A fault that was brought about, on one of all lanes, counted from the top."""

    fault: Struck
    group: str
    lane: int

    @property
    def kind(self) -> str:
        return self.fault.planned.kind


@dataclass(frozen=True, slots=True)
class Row:
    """A group's lanes: the first one, and how many."""

    group: str
    lane: int
    lanes: int

    @property
    def middle(self) -> float:
        return self.lane + (self.lanes - 1) / 2


def in_lanes(faults: Sequence[Struck]) -> tuple[list[Row], list[Bar]]:
    """Groups in the order of the catalogue; bars that overlap are on different lanes."""
    done = sorted(
        (fault for fault in faults if not fault.skipped),
        key=lambda fault: (fault.injected_s, fault.planned.number),
    )
    rows: list[Row] = []
    bars: list[Bar] = []
    for group in (*GROUPS, OTHER):
        first = rows[-1].lane + rows[-1].lanes if rows else 0
        ends: list[float] = []
        for fault in done:
            if group_of(fault.planned.kind) == group:
                lane = _free(ends, fault.injected_s)
                ends[lane] = max(fault.healed_s, fault.injected_s)
                bars.append(Bar(fault, group, first + lane))
        if ends:
            rows.append(Row(group, first, len(ends)))
    return rows, bars


def group_of(kind: str) -> str:
    """A kind that a later version knows is `other`."""
    return KINDS[kind].group if kind in KINDS else OTHER


def _free(ends: list[float], from_s: float) -> int:
    """The first lane that is free by then; one more where none is."""
    for lane, end_s in enumerate(ends):
        if end_s <= from_s:
            return lane
    ends.append(from_s)
    return len(ends) - 1

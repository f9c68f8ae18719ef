"""What a report lists: each fault, recovery by kind, settings, versions, logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from resilient_ps.chaos.faults.planned import Struck
from resilient_ps.chaos.report.lanes import group_of
from resilient_ps.chaos.report.wording import number, seconds, size
from resilient_ps.chaos.result import RunResult


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault of the schedule. `state`: "done", "skipped", or "doubtful" without evidence."""

    at: str
    kind: str
    group: str
    whom: str
    lasted: str
    state: str
    remark: str


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """Outages of one kind; `share`: its longest of the longest of all, in percent."""

    kind: str
    group: str
    faults: int
    median: str
    p99: str
    longest: str
    share: float


@dataclass(frozen=True, slots=True)
class Link:
    """To a log."""

    name: str
    href: str


def fault_rows(result: RunResult) -> list[FaultRow]:
    """In the order in which they began."""
    ordered = sorted(result.faults, key=lambda fault: (_began_s(fault), fault.planned.number))
    return [_fault_row(fault) for fault in ordered]


def recovery_rows(result: RunResult) -> list[RecoveryRow]:
    """The kinds that caused an outage; those that hurt most come first."""
    hurt = [row for row in result.recovery if row.longest_s > 0]
    worst_s = max((row.longest_s for row in hurt), default=0.0)
    ordered = sorted(hurt, key=lambda row: (-row.longest_s, row.kind))
    return [
        RecoveryRow(
            kind=row.kind,
            group=group_of(row.kind),
            faults=row.faults,
            median=_outage(row.median_s),
            p99=_outage(row.p99_s),
            longest=_outage(row.longest_s),
            share=round(100 * row.longest_s / worst_s, 1),
        )
        for row in ordered
    ]


def harmless(result: RunResult) -> list[tuple[str, str, int]]:
    """Kinds without an outage: name, group, and how many faults."""
    return [
        (row.kind, group_of(row.kind), row.faults)
        for row in sorted(result.recovery, key=lambda row: row.kind)
        if row.longest_s <= 0
    ]


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings, versions and metrics, as texts: `lease_ttl_s: 2` is lease ttl, 2 s."""
    return [_pair(name, value) for name, value in mapping.items()]


def links(logs: Mapping[str, str]) -> list[Link]:
    """Relative ones only: what looks like a scheme or a host is none."""
    return [Link(name, _relative(path)) for name, path in sorted(logs.items())]


def _relative(path: str) -> str:
    return f".{quote(path)}" if path.startswith("//") else quote(path)


def _fault_row(fault: Struck) -> FaultRow:
    planned = fault.planned
    whom = ", ".join(fault.struck or planned.target)
    role = " -> ".join(planned.target)
    return FaultRow(
        at=f"{_began_s(fault):.1f} s",
        kind=planned.kind,
        group=group_of(planned.kind),
        whom=f"{whom} ({role})" if role and role not in (whom, "") else whom,
        lasted="" if fault.skipped else seconds(fault.healed_s - fault.injected_s),
        state="skipped" if fault.skipped else "done" if fault.evidence else "doubtful",
        remark=fault.skipped or fault.evidence or "nothing shows that it really happened",
    )


def _began_s(fault: Struck) -> float:
    return fault.planned.at_s if fault.skipped else fault.injected_s


def _outage(value_s: float) -> str:
    return seconds(value_s) if value_s > 0 else "none"


def _pair(name: str, value: Any) -> tuple[str, str]:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if plain and name.endswith("_s"):
        return name.removesuffix("_s").replace("_", " "), f"{number(value)} s"
    if plain and name.endswith("_bytes"):
        return name.removesuffix("_bytes").replace("_", " "), size(value)
    return name.replace("_", " "), _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value in (None, "") else str(value)

"""What is put down to which fault: outages of shards, and changes of leadership without one.

Faults overlap. An outage is put down to a fault that was active when it began, or whose effects may
have lasted until then; one that struck the shard's primary goes before one that did not, one that
reaches servers before one that does not, and among equals the latest does.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from resilient_ps.chaos.faults.figures import percentile
from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.faults.planned import Struck
from resilient_ps.chaos.result import Outage, Recovery, Reign

EVERYBODY = frozenset({"machine", "all"})
"""What a fault has struck that concerns all processes."""
BESIDE: tuple[tuple[str, ...], ...] = (("worker",), ("store",))
"""Faults with these targets do not concern servers: they are blamed where there is no other."""
BEFORE_S = 0.3
"""An outage begins with the last acknowledgement, which may be so much earlier than the fault."""


class Failover(NamedTuple):
    """Another server took a shard over without the old primary's help."""

    at_s: float
    shard: int
    before: str
    after: str


def put_down(
    outages: Iterable[Outage], faults: Sequence[Struck], reigns: Sequence[Reign], after_s: float
) -> tuple[Outage, ...]:
    """The outages, each with the fault that it is put down to. `after_s`: so long after a fault has
    ended an outage may still be due to it."""
    real = [fault for fault in faults if not fault.skipped]
    return tuple(
        replace(outage, fault=_blamed(outage, real, _leaders(outage, reigns), after_s))
        for outage in outages
    )


def _blamed(
    outage: Outage, faults: Iterable[Struck], leaders: frozenset[str], after_s: float
) -> int:
    candidates = [
        fault
        for fault in faults
        if fault.injected_s <= max(outage.from_s + BEFORE_S, outage.to_s)
        and fault.healed_s + after_s >= outage.from_s
    ]
    best = max(candidates, key=lambda fault: _weight(fault, outage, leaders), default=None)
    return -1 if best is None else best.planned.number


def _weight(
    fault: Struck, outage: Outage, leaders: frozenset[str]
) -> tuple[bool, bool, bool, float]:
    """Was it there when the outage began? Did it strike whom it would have to, or could it be that
    it keeps a shard away at all? How late was it?"""
    begun = fault.injected_s <= outage.from_s + BEFORE_S <= fault.healed_s + 2 * BEFORE_S
    kind = KINDS[fault.planned.kind]
    reaches = kind.group != "store" and kind.targets not in BESIDE
    return begun, concerns(fault, leaders), reaches, fault.injected_s


def concerns(fault: Struck, servers: Iterable[str]) -> bool:
    """Did it strike one of these servers, or all?"""
    return bool(EVERYBODY.union(servers).intersection(fault.struck))


def _leaders(outage: Outage, reigns: Iterable[Reign]) -> frozenset[str]:
    """Who led the shard when the outage began, or soon before."""
    return frozenset(
        reign.server
        for reign in reigns
        if reign.shard == outage.shard
        and reign.server
        and reign.from_s <= outage.from_s + BEFORE_S
        and reign.to_s >= outage.from_s - BEFORE_S
    )


def recoveries(outages: Sequence[Outage], faults: Iterable[Struck]) -> tuple[Recovery, ...]:
    """By kind, in the order of the catalogue: of each fault its longest outage, from the moment of
    the fault if that is later."""
    return recoveries_of([(outages, faults)])


def recoveries_of(
    runs: Iterable[tuple[Sequence[Outage], Iterable[Struck]]],
) -> tuple[Recovery, ...]:
    """Of several runs together: outages and faults of each."""
    by_kind: dict[str, list[float]] = {}
    for outages, faults in runs:
        begun = {fault.planned.number: fault for fault in faults if not fault.skipped}
        longest = _longest(outages, begun)
        for number, fault in begun.items():
            by_kind.setdefault(fault.planned.kind, []).append(longest.get(number, 0.0))
    order = {name: place for place, name in enumerate(KINDS)}
    return tuple(
        Recovery(
            kind=kind,
            faults=len(times_s),
            median_s=round(statistics.median(times_s), 3),
            p99_s=round(percentile(times_s, 99), 3),
            longest_s=round(max(times_s), 3),
        )
        for kind, times_s in sorted(by_kind.items(), key=lambda pair: order[pair[0]])
    )


def _longest(outages: Iterable[Outage], begun: Mapping[int, Struck]) -> dict[int, float]:
    """By the number of a fault: seconds."""
    longest: dict[int, float] = {}
    for outage in outages:
        fault = begun.get(outage.fault)
        if fault is not None:
            away_s = outage.to_s - max(outage.from_s, min(fault.injected_s, outage.to_s))
            longest[outage.fault] = max(away_s, longest.get(outage.fault, 0.0))
    return longest


def false_failovers(
    failovers: Iterable[Failover], faults: Sequence[Struck], after_s: float
) -> tuple[Failover, ...]:
    """Those of shards whose primary no fault had struck, while it lasted or within `after_s`."""
    return tuple(
        failover
        for failover in failovers
        if not any(
            concerns(fault, [failover.before])
            and fault.injected_s <= failover.at_s <= fault.healed_s + after_s
            for fault in faults
            if not fault.skipped
        )
    )

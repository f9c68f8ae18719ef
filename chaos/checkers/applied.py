"""Exactly once, of any program: what was acknowledged, against what servers say they applied.

Two sources: *receipts* (a worker's pushes that were acknowledged, and by which shards) and the
servers' *audit* (everything that took effect on a replica of a shard, where in its log). Audits of
all replicas are joined: each place of a shard's log is one event, whoever applied it.

A shard's *lineage* is what counts in the end. A new epoch begins with an entry of its own, and what
an earlier epoch had at that place or behind it is dropped then. In the lineage

* every acknowledged push is applied once; a redo (BSP: the rank's open clock begins again) undoes
  what came before it of its clock, and what is not made again then was of a clock nobody ended;
* no push is applied twice without a redo in between;
* replicas agree on what stands at a place.

When the cluster was rolled back, the last incarnation is judged: what came before is undone as the
checkpoint says, which others judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from resilient_ps.chaos.checkers.verdict import Verdict, judge, together
from resilient_ps.ids import Epoch, Position


class Receipt(NamedTuple):
    """A push that was acknowledged. `shards`: where each stood when it answered."""

    job: int
    rank: int
    incarnation: int
    clock: int
    n: int
    shards: tuple[tuple[int, Position], ...]


class Event(NamedTuple):
    """Something took effect at a place of a shard's log. `what`: see `chaos.live.audit`."""

    what: str
    shard: int
    at: Position
    job: int = 0
    rank: int = 0
    incarnation: int = 0
    clock: int = 0
    n: int = 0


_Clock = tuple[int, int, int]  # job, rank, clock
_Identity = tuple[int, int, int, int]  # and n


@dataclass(slots=True)
class _Lineage:
    """Of one shard: events by their identity, in the order of the log."""

    pushes: dict[_Identity, list[int]] = field(default_factory=dict)  # lsns
    redone: dict[_Clock, list[int]] = field(default_factory=dict)
    ticked: dict[_Clock, int] = field(default_factory=dict)

    def after_redo(self, clock: _Clock) -> int:
        """What is below this lsn of the clock has been undone; 0: nothing."""
        return max(self.redone.get(clock, ()), default=0)


def check_applied(receipts: Iterable[Receipt], audit: Iterable[Event]) -> Verdict:
    """`audit`: of all servers, in any order."""
    events, disagreements = _joined(audit)
    incarnation = max((event.at.epoch.incarnation for event in events), default=0)
    events = [event for event in events if event.at.epoch.incarnation == incarnation]
    lineages = _lineages(events)
    checked = 0
    violations: list[str] = []
    for receipt in receipts:
        for shard, at in receipt.shards:
            if at.epoch.incarnation == incarnation:
                checked += 1
                violations += _lost(receipt, shard, at, lineages.get(shard) or _Lineage())
    for shard, lineage in lineages.items():
        violations += _doubled(shard, lineage)
    return together(
        judge(disagreements, checked=len(events), what="entries that a server applied"),
        judge(violations, checked=checked, what="acknowledged pushes"),
    )


def _joined(audit: Iterable[Event]) -> tuple[list[Event], list[str]]:
    """One event for each place, in order; and where replicas say different things of one."""
    by_place: dict[tuple[int, Position], Event] = {}
    disagreements: list[str] = []
    for event in audit:
        held = by_place.setdefault((event.shard, event.at), event)
        if held != event:
            disagreements.append(
                f"shard {event.shard}, {_at(event.at)}: one replica applied {_of(held)}, another "
                f"one {_of(event)}"
            )
    return [by_place[place] for place in sorted(by_place)], disagreements


def _lineages(events: Iterable[Event]) -> dict[int, _Lineage]:
    by_shard: dict[int, list[Event]] = {}
    for event in events:
        by_shard.setdefault(event.shard, []).append(event)
    lineages: dict[int, _Lineage] = {}
    for shard, here in by_shard.items():
        lineages[shard] = lineage = _Lineage()
        for event in _kept(here):
            clock = event.job, event.rank, event.clock
            if event.what == "push":
                lineage.pushes.setdefault((*clock, event.n), []).append(event.at.lsn)
            elif event.what == "redo":
                lineage.redone.setdefault(clock, []).append(event.at.lsn)
            elif event.what == "tick":
                lineage.ticked[clock] = event.at.lsn
    return lineages


def _kept(events: list[Event]) -> Iterator[Event]:
    """`events` of one shard, in order: those that no later epoch has dropped."""
    first: dict[Epoch, int] = {}
    for event in events:
        first[event.at.epoch] = min(first.get(event.at.epoch, event.at.lsn), event.at.lsn)
    dropped_from: dict[Epoch, float] = {}
    least = float("inf")
    for epoch in sorted(first, reverse=True):
        dropped_from[epoch] = least
        least = min(least, first[epoch])
    return (event for event in events if event.at.lsn < dropped_from[event.at.epoch])


def _lost(receipt: Receipt, shard: int, at: Position, lineage: _Lineage) -> Iterator[str]:
    clock = receipt.job, receipt.rank, receipt.clock
    undone = lineage.after_redo(clock)
    applied = [lsn for lsn in lineage.pushes.get((*clock, receipt.n), ()) if lsn > undone]
    if applied or (undone and clock not in lineage.ticked):
        return
    yield (
        f"push {receipt.n} of clock {receipt.clock} of {_who(receipt)} was acknowledged by shard "
        f"{shard} at {_at(at)}, and is not in its log"
    )


def _doubled(shard: int, lineage: _Lineage) -> Iterator[str]:
    for (job, rank, clock, n), lsns in lineage.pushes.items():
        redone = lineage.redone.get((job, rank, clock), [])
        for before, after in pairwise(lsns):
            if not any(before < lsn < after for lsn in redone):
                yield (
                    f"push {n} of clock {clock} of rank {rank} of job {job} was applied twice by "
                    f"shard {shard}, at lsn {before} and {after}"
                )


def check_nothing_lost(lost: Mapping[str, int]) -> Verdict:
    """`lost`: by server, how much of its audit could not be written: then nothing is certain."""
    missing = [f"{count} lines of the audit of {name}" for name, count in lost.items() if count]
    return Verdict("unknown", tuple(missing)) if missing else Verdict("true")


def _who(receipt: Receipt) -> str:
    return f"rank {receipt.rank}.{receipt.incarnation} of job {receipt.job}"


def _of(event: Event) -> str:
    if event.what == "epoch":
        return "the first entry of an epoch"
    return (
        f"the {event.what} of rank {event.rank}.{event.incarnation} of job {event.job}, clock "
        f"{event.clock}, n {event.n}"
    )


def _at(at: Position) -> str:
    return f"epoch {at.epoch.incarnation}.{at.epoch.counter} lsn {at.lsn}"

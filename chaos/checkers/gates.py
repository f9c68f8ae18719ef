"""The bounds of BSP and SSP, of any program: when a pull was answered, had all ranks come so far?

Two sources: the pulls that were answered, with the place of each shard's log at which it was, and
the servers' *audit* (see `applied`). Up to a place, a shard's log tells what each rank has ticked,
and which ranks were in the job. A pull at clock c, answered at a place, must find there that every
rank of the job had ticked `gate(c)` (see `consistency`).

When the cluster was rolled back, the last incarnation is judged. What ranks had ticked before it
is not in its log: a rank's first tick there tells.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.chaos.checkers.applied import Event
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.consistency import JobSpec
from resilient_ps.ids import Position


class AnsweredPull(NamedTuple):
    """A worker's pull at its clock. `shards`: where each stood when it answered."""

    job: int
    rank: int
    clock: int
    shards: tuple[tuple[int, Position], ...]


@dataclass(slots=True)
class _Course:
    """Of one rank on one shard: what it came to at which places, in the order of the log."""

    lsns: list[int] = field(default_factory=list)
    ticked: list[int | None] = field(default_factory=list)  # None: it is not in the job
    before: int | None = None  # what it had ticked before the first of them; None: not known

    def at(self, lsn: int) -> int | None:
        """What it had ticked there; None: it does not count."""
        place = bisect_right(self.lsns, lsn)
        return self.ticked[place - 1] if place else self.before


_Courses = dict[tuple[int, int], dict[int, _Course]]  # by shard and job, then by rank


def check_gates(
    pulls: Iterable[AnsweredPull], audit: Iterable[Event], jobs: Mapping[int, JobSpec]
) -> Verdict:
    """`audit`: of all servers, in any order. `jobs` by number; pulls of others are not judged."""
    events = list(audit)
    incarnation = max((event.at.epoch.incarnation for event in events), default=0)
    courses = _courses([e for e in events if e.at.epoch.incarnation == incarnation])
    checked = 0
    violations: list[str] = []
    for pull in pulls:
        if pull.job in jobs:
            checked += 1
            violations += _too_early(pull, jobs[pull.job], courses, incarnation)
    return judge(violations, checked=checked, what="pulls that were answered")


def _courses(events: list[Event]) -> _Courses:
    """Replicas tell the same things: what the log has at a place counts once."""
    told = {(e.shard, e.at.lsn, e.what, e.job, e.rank): e for e in events if e.what in _TOLD}
    courses: _Courses = {}
    for _, event in sorted(told.items()):
        ranks = courses.setdefault((event.shard, event.job), {})
        course = ranks.setdefault(event.rank, _Course())
        if not course.lsns:
            course.before = _came_from(event)
        course.lsns.append(event.at.lsn)
        course.ticked.append(_comes_to(event))
    return courses


def _came_from(first: Event) -> int | None:
    match first.what:
        case "tick":
            return first.clock - 1
        case "leave":
            return _silent(first.at.epoch.incarnation)
        case _:
            return None


_TOLD = frozenset({"tick", "join", "leave"})


def _comes_to(event: Event) -> int | None:
    match event.what:
        case "tick":
            return event.clock
        case "join":
            return event.clock - 1  # its first clock is open
        case _:
            return None


def _too_early(
    pull: AnsweredPull, job: JobSpec, courses: _Courses, incarnation: int
) -> Iterator[str]:
    gate = job.consistency.gate(pull.clock)
    for shard, at in pull.shards:
        if at.epoch.incarnation != incarnation or gate <= 0:
            continue
        ranks = courses.get((shard, pull.job), {})
        for rank in sorted({*range(job.ranks), *ranks}):
            ticked = ranks[rank].at(at.lsn) if rank in ranks else _silent(incarnation)
            if ticked is not None and ticked < gate:
                yield (
                    f"shard {shard} answered rank {pull.rank} of job {job.name!r} at clock "
                    f"{pull.clock}, at {at.lsn}, where rank {rank} had ticked {ticked}: must be "
                    f"{gate}"
                )


def _silent(incarnation: int) -> int | None:
    """What a rank has ticked of which a log tells nothing: a first one begins with nothing."""
    return 0 if incarnation == 1 else None

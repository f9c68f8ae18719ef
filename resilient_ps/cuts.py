"""Which cut a shard is at: a part of the state that its log determines.

A cut is accepted when nothing behind it is here, and awaited until all live ranks have ticked its
clocks. Cuts come in the order of their numbers: a newer one takes the place of an older one, and
a number that was given up, or has been passed, cannot begin any more. Only the last one is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.cut import Cut
from resilient_ps.errors import BadInput
from resilient_ps.job import Job

NO_CUT = 1 << 62  # above all clocks
RESTING = -1  # below all clocks: whatever comes after a cut has begun is behind it


class CutRefusal(NamedTuple):
    """`value`: the largest clock that is held where it should not be; 0: the cut is too late."""

    value: int
    text: str


@dataclass(slots=True)
class Cuts:
    """See the module. `number` is the largest seen; `cut` is None when that one was given up.

    `awaited`: jobs of the cut whose live ranks have not all ticked their clock.
    """

    number: int = 0
    cut: Cut | None = None
    awaited: set[int] = field(default_factory=set)
    _clocks: dict[int, int] = field(default_factory=dict)

    # -- questions

    def clock_of(self, job: int) -> int:
        """The last clock of this job before the cut: what comes later does not belong to it."""
        return NO_CUT if self.cut is None else self._clocks.get(job, 0)

    def start_above(self, job: int) -> int:
        """Ranks that join start above this clock."""
        return 0 if self.cut is None else max(0, self._clocks.get(job, 0))

    def holds_back(self, job: int, clock: int) -> bool:
        """Has a push of this clock to wait until the cut is reached?"""
        cut = self.cut
        if cut is None or not cut.hold or not self.awaited:
            return False
        return clock > self._clocks.get(job, 0)

    def repeats(self, cut: Cut) -> bool:
        """Is this the present cut once more?"""
        held = self.cut
        if held is None or cut.number != held.number:
            return False
        return (cut.clocks, cut.resting) == (held.clocks, held.resting)

    def refusal(self, cut: Cut, jobs: Mapping[int, Job]) -> CutRefusal | None:
        """Why this cut, which is no repeat, cannot begin."""
        if cut.number == self.number:
            what = "was given up" if self.cut is None else "has begun with other clocks"
            return CutRefusal(0, f"cut {cut.number} {what}: use a new number")
        if cut.number < self.number:
            return CutRefusal(0, f"cut {cut.number} comes after {self.number}: use a new number")
        clocks = dict(cut.clocks)
        for number, job in sorted(jobs.items()):
            clock, furthest = clocks.get(number, 0), job.ledger.furthest()
            if furthest > clock and number not in cut.resting:
                name = job.spec.name
                known = f"is to be cut at {clock}" if number in clocks else "is not named"
                text = f"job {number} ({name!r}) {known}, but has come to clock {furthest}"
                return CutRefusal(furthest, text)
        return None

    def waits_for(self, jobs: Mapping[int, Job]) -> str:
        """For whom, if anybody; for a person."""
        for number in sorted(self.awaited):
            if number not in jobs:
                return f"job {number} is not open on this shard"
            return jobs[number].waits_for(self._clocks[number])
        return ""

    # -- changes, each made by an entry of the shard's log

    def begin(self, cut: Cut, jobs: Mapping[int, Job]) -> None:
        """This is the cut from now on."""
        self._take(cut.number, cut)
        self.awaited = {number for number, clock in cut.clocks if clock > 0}
        for number in sorted(jobs):
            self.look(number, jobs[number])

    def give_up(self, number: int) -> None:
        """No cut up to this number may begin any more."""
        self._take(number, None)
        self.awaited = set()

    def look(self, number: int, job: Job) -> bool:
        """The job's clocks may have moved. True: with that, the cut is reached."""
        if number not in self.awaited or not job.ledger.has_reached(self._clocks[number]):
            return False
        self.awaited.discard(number)
        return not self.awaited

    def forget_job(self, number: int) -> bool:
        """The job is gone: nothing of it is awaited. True: with that, nothing is at all."""
        if number not in self.awaited:
            return False
        self.awaited.discard(number)
        return not self.awaited

    def restore(self, number: int, text: str, awaited: list[int]) -> None:
        """Be what another replica was. Raises `BadInput`."""
        cut = Cut.from_json(text) if text else None
        jobs = set() if cut is None else {job for job, clock in cut.clocks if clock > 0}
        if number < 1 or (cut is not None and cut.number != number) or not jobs >= set(awaited):
            raise BadInput(f"a cut {number} that cannot be: {text[:200]!r}")
        self._take(number, cut)
        self.awaited = set(awaited)

    def _take(self, number: int, cut: Cut | None) -> None:
        self.number = number
        self.cut = cut
        self._clocks = {}
        if cut is not None:
            self._clocks = {**dict(cut.clocks), **dict.fromkeys(cut.resting, RESTING)}

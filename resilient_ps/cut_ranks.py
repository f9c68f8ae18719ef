"""The ranks of all jobs of a cut, each as it was when it had ticked the cut's clock.

Under SSP and ASP a rank may tick later clocks while others are still behind the cut: so its place
is written down at the moment of the tick. A rank that leaves before it comes to the cut is written
down as it leaves; one that joins after the cut has begun is not in it. The ranks of jobs that rest
are written down as the cut begins.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from resilient_ps.cut import Cut
from resilient_ps.cuts import RESTING
from resilient_ps.job import Job
from resilient_ps.ledger import RankRecord
from resilient_ps.small_state import Item


class CutRanks:
    """See the module."""

    def __init__(self, cut: Cut, jobs: Mapping[int, Job]) -> None:
        self._clocks = {**dict(cut.clocks), **dict.fromkeys(cut.resting, RESTING)}
        self._texts: dict[int, str] = {}
        self._pending: dict[int, set[int]] = {}
        self._places: dict[int, dict[int, Item]] = {}
        for number in sorted(jobs):
            self.open_job(number, jobs[number])

    def open_job(self, number: int, job: Job) -> None:
        """The cut has just begun, or the job has just been opened."""
        if number not in self._clocks:
            return
        ranks = job.ledger.ranks
        self._texts[number] = job.text
        self._places[number] = {}
        self._pending[number] = set(ranks)
        for rank in sorted(ranks):
            self.look(number, rank, ranks[rank])

    def look(self, number: int, rank: int, record: RankRecord) -> None:
        """A rank has just ticked or left."""
        pending = self._pending.get(number, set())
        if rank not in pending or (record.live and record.ticked < self._clocks[number]):
            return
        pending.discard(rank)
        cursor = base64.b64encode(record.cursor).decode()
        self._places[number][rank] = [record.ticked, record.live, record.started, cursor]

    def __contains__(self, number: object) -> bool:
        """Has this job ranks in the cut?"""
        return number in self._places

    def items(self) -> list[Item]:
        """[number, text, clock, [[rank, ticked, live, started, cursor in base64], ...]]."""
        return [
            [
                number,
                self._texts[number],
                self._clock(number),
                [[rank, *place] for rank, place in sorted(self._places[number].items())],
            ]
            for number in sorted(self._places)
        ]

    def _clock(self, number: int) -> int:
        """The cut's clock; of a job that rests, the last one that any rank has ticked."""
        clock = self._clocks[number]
        if clock != RESTING:
            return clock
        return max((place[0] for place in self._places[number].values()), default=0)

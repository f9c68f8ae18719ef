"""Where the jobs are: what each primary tells of their clocks, and how fast they move.

A cut's clock must not lie below anything that a shard holds already, and should not lie far above
it. So before a cut is planned the primaries are asked at least twice: how far the fastest rank of
each job is, and by how much it moves.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.job import Job
from resilient_ps.machine import Effect, Send
from resilient_ps.messages import Ask
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.shard import Shard

QUESTION = '{"clocks"'
RECORDS_SEARCHED = 20_000  # ranks of one job, over shards: all shards are told of each tick
JOBS_TOLD = 1_000
ANSWER_NS = 1_000_000_000  # a server that does not answer within it is left out
SECOND_NS = 10**9
KEPT = 32  # readings
KEPT_NS = 3 * SECOND_NS  # older ones say little of how fast a job is now
FIRST_ASK = 1 << 40  # of the numbers of our questions


class Span(NamedTuple):
    """Of one job: the smallest tick of a live rank, and the last clock that anything is held of."""

    slowest: int
    held: int


def clocks_told(shards: Collection[Shard]) -> JsonObject:
    """What a server answers: the jobs of the shards that it is primary of, by number."""
    jobs: dict[int, list[Job]] = {}
    for shard in shards:
        for number, job in shard.jobs.items():
            jobs.setdefault(number, []).append(job)
    told = {str(n): list(_span(jobs[n])) for n in itertools.islice(sorted(jobs), JOBS_TOLD)}
    return {"clocks": told}


def _span(parts: list[Job]) -> Span:
    slowest, held, left = 1 << 62, 0, RECORDS_SEARCHED
    for part in parts:
        ledger = part.ledger
        slowest = min(slowest, ledger.slowest())
        if left > 0:
            held = max([held, *[r.ticked + (r.last > 0) for r in ledger.ranks.values()]])
            left -= len(ledger.ranks)
    return Span(slowest, held)


@dataclass(slots=True)
class Reading:
    """What the servers were asked at `at_ns`, and had said by `heard_ns`: by number of the job."""

    at_ns: int
    heard_ns: int = 0
    spans: dict[int, Span] = field(default_factory=dict)

    def add(self, spans: Mapping[int, Span]) -> None:
        """Another server's answer."""
        for job, span in spans.items():
            held = self.spans.get(job, span)
            self.spans[job] = Span(min(held.slowest, span.slowest), max(held.held, span.held))


class Clocks:
    """Asks the servers, and keeps the readings of the last few seconds."""

    def __init__(self) -> None:
        self._kept: list[Reading] = []
        self._asked = FIRST_ASK
        self._open: dict[int, str] = {}  # questions without an answer yet; to whom
        self._coming: Reading | None = None
        self._heard = 0  # how many have answered

    def drop(self) -> None:
        """Everything that is known is old."""
        self._kept, self._coming = [], None
        self._open.clear()

    @property
    def last(self) -> Reading | None:
        """The newest reading."""
        return self._kept[-1] if self._kept else None

    @property
    def span_ns(self) -> int:
        """How far the readings are apart that tell how fast jobs are."""
        return self._kept[-1].at_ns - self._kept[0].at_ns if self._kept else 0

    @property
    def asking(self) -> bool:
        """Is a reading under way?"""
        return self._coming is not None

    @property
    def ends_ns(self) -> int:
        """When servers that are silent are waited for no more; 0: no reading is under way."""
        return 0 if self._coming is None else self._coming.at_ns + ANSWER_NS

    def ask(self, servers: Iterable[str], now_ns: int) -> list[Effect]:
        """Begin a reading, unless one is under way."""
        self.look(now_ns)
        if self._coming is not None:
            return []
        self._coming, self._heard = Reading(now_ns), 0
        effects: list[Effect] = []
        for server in servers:
            self._asked += 1
            self._open[self._asked] = server
            effects.append(Send(PEER_PREFIX + server, Ask(self._asked, QUESTION + ": {}}")))
        return effects

    def hear(self, request: int, body: str, now_ns: int) -> bool:
        """An answer; is the reading complete now?"""
        if self._open.pop(request, None) is None or self._coming is None:
            return False
        self._coming.add(spans_told(_parsed(body)))
        self._heard += 1
        if self._open:
            return False
        self._end(now_ns)
        return True

    def look(self, now_ns: int) -> None:
        """Wait no more for servers that are silent."""
        if self._coming is not None and now_ns - self._coming.at_ns >= ANSWER_NS:
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        self._open.clear()
        coming, self._coming = self._coming, None
        if coming is not None and self._heard:
            coming.heard_ns = now_ns
            recent = [r for r in self._kept if coming.at_ns - r.at_ns <= KEPT_NS]
            self._kept = [*recent[1 - KEPT :], coming]

    def rate(self, job: int) -> float:
        """Clocks per second that the fastest rank certainly does.

        One clock less than was seen counts: over a short time, a slow job may just have ticked.
        """
        known = [(r.at_ns, r.spans[job].held) for r in self._kept if job in r.spans]
        if len(known) < 2 or known[0][0] == known[-1][0]:
            return 0.0
        (then_ns, then), (now_ns, now) = known[0], known[-1]
        return max(0, now - then - 1) * SECOND_NS / (now_ns - then_ns)


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def spans_told(told: Any) -> dict[int, Span]:
    """What `clocks_told` tells. Of what does not look as it should nothing is believed."""
    clocks = told.get("clocks") if isinstance(told, dict) else None
    found: dict[int, Span] = {}
    for job, span in clocks.items() if isinstance(clocks, dict) else ():
        match span:
            case [int(slowest), int(held)] if job.isdecimal() and slowest >= 0 and held >= 0:
                found[int(job)] = Span(slowest, held)
    return found

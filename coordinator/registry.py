"""Which workers live: what their heartbeats say, in the memory of the coordinator.

Nothing of it is stored. A new coordinator knows nobody, and gives everybody the whole time to be
heard; so does one that has been away itself (paused, or busy): silence counts only while it was
listening.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilient_ps.coordinator.fields import INT64_MAX
from resilient_ps.coordinator.keys import MAX_NAME_CHARS, MAX_RANK
from resilient_ps.errors import BadInput

WORKERS_MAX = 20_000
WORKERS_TOLD = 500
HOST_CHARS_MAX = 100
AWAY_NS = 2_000_000_000  # who has not looked for so long was not listening
SECOND_NS = 10**9


class Seat(NamedTuple):
    """A rank of a job."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker says of itself, about once a second."""

    seat: Seat
    incarnation: int
    host: str
    pid: int

    @classmethod
    def from_json(cls, fields: Any) -> Heartbeat:
        """Raises `BadInput` for what is no heartbeat."""
        if not isinstance(fields, dict):
            raise BadInput("a heartbeat is an object: job, rank, incarnation, host, pid")
        job, host = fields.get("job"), fields.get("host")
        if not isinstance(job, str) or not 1 <= len(job) <= MAX_NAME_CHARS:
            raise BadInput(f"a heartbeat's job is a name of 1 to {MAX_NAME_CHARS} characters")
        if not isinstance(host, str):
            raise BadInput("a heartbeat's host is a text")
        host = host[:HOST_CHARS_MAX].encode("ascii", "replace").decode()
        seat = Seat(job, _whole(fields, "rank", MAX_RANK))
        incarnation = _whole(fields, "incarnation", INT64_MAX)
        return cls(seat, incarnation, host, _whole(fields, "pid", INT64_MAX))


@dataclass(slots=True)
class _Since:
    """Since when nothing was heard of an incarnation."""

    incarnation: int
    at_ns: int


class WorkerRegistry:
    """See the module."""

    def __init__(self) -> None:
        self._heard: dict[Seat, tuple[Heartbeat, int]] = {}  # the one heard longest ago first
        self._since: dict[Seat, _Since] = {}
        self._looked_ns: int | None = None

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._heard.clear()
        self._since.clear()
        self._looked_ns = None

    def hear(self, beat: Heartbeat, now_ns: int) -> None:
        """A worker lives. What an earlier incarnation of a rank says counts no more while the later
        is heard: that may be from before etcd was lost, and incarnations began at 1 again."""
        held = self._heard.get(beat.seat)
        is_later = held is not None and held[0].incarnation > beat.incarnation
        if held is not None and is_later and now_ns - held[1] < AWAY_NS:
            return
        self._heard.pop(beat.seat, None)
        self._heard[beat.seat] = (beat, now_ns)
        if len(self._heard) > WORKERS_MAX:
            self._heard.pop(next(iter(self._heard)))

    def part(self, beat: Heartbeat, now_ns: int) -> None:
        """A worker has ended: it is shown no more. Its rank stays in the job, and may be silent."""
        held = self._heard.get(beat.seat)
        if held is not None and held[0].incarnation <= beat.incarnation:
            del self._heard[beat.seat]
            since = self._since.get(beat.seat)
            if since is not None:
                since.at_ns = max(since.at_ns, now_ns)

    def look(self, now_ns: int) -> None:
        """Time passes. To be called more often than every `AWAY_NS`."""
        if self._looked_ns is not None and now_ns - self._looked_ns > AWAY_NS:
            for since in self._since.values():
                since.at_ns = now_ns
        self._looked_ns = now_ns

    def silent(self, drawn: Mapping[Seat, int], limit_ns: int, now_ns: int) -> list[Seat]:
        """Of the ranks and incarnations in `drawn`, those that were silent for `limit_ns`.

        The time of an incarnation begins when it is seen here for the first time.
        """
        found = []
        for seat, incarnation in sorted(drawn.items()):
            since = self._since.get(seat)
            if since is None or since.incarnation < incarnation:
                since = self._since[seat] = _Since(incarnation, now_ns)
            held = self._heard.get(seat)
            if held is not None and held[0].incarnation >= incarnation:
                since.at_ns = max(since.at_ns, held[1])
            if now_ns - since.at_ns >= limit_ns:
                found.append(seat)
        return found

    def forget(self, jobs: Mapping[str, object]) -> None:
        """Keep only what belongs to these jobs."""
        for seat in [seat for seat in (*self._heard, *self._since) if seat.job not in jobs]:
            self._heard.pop(seat, None)
            self._since.pop(seat, None)

    def status(self, now_ns: int) -> dict[str, Any]:
        """For `resilient-ps status`; of very many, the first ones."""
        seats = sorted(self._heard)
        told = []
        for seat in seats[:WORKERS_TOLD]:
            beat, heard_ns = self._heard[seat]
            told.append(
                {
                    "job": seat.job,
                    "rank": seat.rank,
                    "incarnation": beat.incarnation,
                    "host": beat.host,
                    "pid": beat.pid,
                    "silent_s": round((now_ns - heard_ns) / SECOND_NS, 3),
                }
            )
        return {"workers": told, "workers_left_out": max(0, len(seats) - WORKERS_TOLD)}


def _whole(fields: Mapping[str, Any], name: str, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise BadInput(f"a heartbeat's {name} is a whole number from 0 to {most}")
    return value

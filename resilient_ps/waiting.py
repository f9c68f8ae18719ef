"""Pulls that wait for other ranks: an event with a deadline, not a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.ids import WorkerId
from resilient_ps.messages import Keys, Part

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 256 << 20  # of keys


class Origin(NamedTuple):
    """Whom to answer: a peer, and the number that it gave to its request."""

    peer: str
    request: int


class WaitingPull(NamedTuple):
    """A pull whose gate has not been reached yet."""

    origin: Origin
    worker: WorkerId
    clock: int
    table: int
    part: Part
    keys: Keys
    deadline_ns: int


@dataclass(slots=True)
class WaitingPulls:
    """The waiting pulls of one shard, at most `WAITING_MAX` with `bytes_max` of keys."""

    bytes_max: int = WAITING_BYTES_MAX
    held_bytes: int = 0
    _pulls: dict[Origin, WaitingPull] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._pulls)

    def has_room(self, keys: Keys) -> bool:
        """May a further pull wait here?"""
        return len(self) < WAITING_MAX and self.held_bytes + keys.nbytes <= self.bytes_max

    def add(self, pull: WaitingPull) -> None:
        """Wait. A repeat of the same request takes the place of the first."""
        self._forget(pull.origin)
        self._pulls[pull.origin] = pull
        self.held_bytes += pull.keys.nbytes

    def take_all(self) -> list[WaitingPull]:
        """All of them, in order of arrival; the caller adds again what still has to wait."""
        pulls, self._pulls, self.held_bytes = self._pulls, {}, 0
        return list(pulls.values())

    def forget_peer(self, peer: str) -> None:
        """Nobody is there to be answered any more."""
        for origin in [origin for origin in self._pulls if origin.peer == peer]:
            self._forget(origin)

    def _forget(self, origin: Origin) -> None:
        pull = self._pulls.pop(origin, None)
        if pull is not None:
            self.held_bytes -= pull.keys.nbytes

    def next_deadline_ns(self) -> int | None:
        """When the first of them gives up."""
        return min((pull.deadline_ns for pull in self._pulls.values()), default=None)

"""Pulls that wait for other ranks: an event with a deadline, not a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.ids import WorkerId
from resilient_ps.messages import Keys, Part

WAITING_MAX = 10_000


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
    """The waiting pulls of one shard, at most `WAITING_MAX`."""

    _pulls: dict[Origin, WaitingPull] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._pulls)

    @property
    def full(self) -> bool:
        """No further pull may wait here."""
        return len(self._pulls) >= WAITING_MAX

    def add(self, pull: WaitingPull) -> None:
        """Wait. A repeat of the same request takes the place of the first."""
        self._pulls.pop(pull.origin, None)
        self._pulls[pull.origin] = pull

    def take_all(self) -> list[WaitingPull]:
        """All of them, in order of arrival; the caller adds again what still has to wait."""
        pulls, self._pulls = self._pulls, {}
        return list(pulls.values())

    def forget_peer(self, peer: str) -> None:
        """Nobody is there to be answered any more."""
        self._pulls = {at: pull for at, pull in self._pulls.items() if at.peer != peer}

    def next_deadline_ns(self) -> int | None:
        """When the first of them gives up."""
        return min((pull.deadline_ns for pull in self._pulls.values()), default=None)

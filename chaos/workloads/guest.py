"""A rank that joins while a job runs, and leaves again: asked for in etcd, as clients do.

The guest may also be made to leave while its process lives: then the coordinator takes it over, and
the process learns that its rank has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resilient_ps.chaos.sim.worker import SimWorker
from resilient_ps.chaos.workloads.crew import Crew

POLL_NS = 200_000_000

State = Literal["invited", "joining", "here", "leaving", "gone"]


@dataclass(frozen=True, slots=True)
class Visit:
    """When the guest asks to join, and when to leave, counted from the start of the run.

    `dies_ns`: when its process is killed, to be taken over by another one at once (0: never).
    """

    joins_ns: int
    leaves_ns: int
    dies_ns: int = 0


class Guest:
    """The states of one visit: invited, joining, here, leaving, gone."""

    def __init__(self, crew: Crew, rank: int, visit: Visit) -> None:
        self.rank = rank
        self.state: State = "invited"
        self._crew = crew
        self._visit = visit
        self._world = crew.cluster.world
        self._intent = 0
        self._leave = 0  # number of the operation in the history
        self._stays = False

    def invite(self) -> None:
        """Begin the visit when it is due."""
        self._world.after(self._visit.joins_ns, self._join)
        self._world.after(self._visit.leaves_ns, self._ask_to_leave)
        if self._visit.dies_ns:
            self._world.after(self._visit.dies_ns, self._die)

    def stay(self) -> None:
        """Do not join or leave any more; what has been begun is finished."""
        self._stays = True

    @property
    def finished(self) -> bool:
        """Is there nothing more to come?"""
        if self.state == "here":
            return self._stays and self._crew.over(self.rank)
        return self.state == "gone" or (self.state == "invited" and self._stays)

    def _join(self) -> None:
        if not self._stays:
            self.state = "joining"
            self._intent = self._crew.cluster.propose("join", self._crew.job, self.rank)
            self._await()

    def _ask_to_leave(self) -> None:
        if self.state != "here" or self._stays:
            return
        self.state = "leaving"
        self._intent = self._crew.cluster.propose("leave", self._crew.job, self.rank)
        self._leave = self._crew.history.invoke(
            f"leave.{self._intent}", "leave", self.rank, 0, self._world.now_ns
        )
        self._await()

    def _die(self) -> None:
        worker = self._present()
        if self.state == "here" and worker is not None and not worker.finished:
            self._world.kill(worker.process)
            self._crew.spawn(self.rank)

    def _await(self) -> None:
        """Look at the intent every now and then until it is over."""
        record = self._crew.cluster.intent(self._intent)
        if record.state == "open":
            self._world.after(POLL_NS, self._await)
        elif self.state == "joining":
            self.state = "here" if record.state == "done" else "gone"
            if self.state == "here":
                self._crew.spawn(self.rank)
        else:
            self.state = "gone"
            if record.state == "done":
                ticked = record.result["ticked"]
                assert isinstance(ticked, int)
                self._crew.history.complete(self._leave, self._world.now_ns, "ok", (ticked,))

    def _present(self) -> SimWorker | None:
        lives = self._crew.lives.get(self.rank)
        return lives[-1] if lives else None

"""What a run needs to know of the work that is done in it."""

from __future__ import annotations

from typing import Protocol

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import SimWorker


class Workload(Protocol):
    """Some ranks of one job, their programs, and how to judge what they saw."""

    name: str
    ranks: tuple[int, ...]

    def prepare(self, cluster: SimCluster) -> None:
        """Create tables and the job. Nothing has gone wrong yet."""

    def start(self) -> None:
        """Start the first process of every rank."""

    def worker(self, rank: int) -> SimWorker:
        """The latest process of a rank."""

    def respawn(self, rank: int) -> None:
        """Let a new process take the rank over; the one before may be dead, or paused."""

    def stop(self) -> None:
        """Begin no further clock."""

    @property
    def finished(self) -> bool:
        """After `stop`: has every rank's latest process ended?"""

    def acknowledged(self, rank: int) -> int:
        """How many pushes were acknowledged to processes of a rank. It only grows."""

    def judge(self, run: RunRecord) -> list[Finding]:
        """Read what is held in the end, and check it and the history."""

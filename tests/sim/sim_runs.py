"""Clusters and workloads that several simulation tests start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.sessions import check_sessions
from resilient_ps.chaos.checkers.staleness import check_staleness
from resilient_ps.chaos.checkers.verdict import Verdict, together
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.worker import SimWorker
from resilient_ps.chaos.workloads.counters import Counters
from resilient_ps.consistency import Consistency, JobSpec
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

MILLISECOND_NS = 1_000_000


@dataclass
class CountersRun:
    """The counting workload on a cluster of two servers; `spawn` starts processes of a rank."""

    seed: int
    mode: Consistency
    guards: Guards = ALL_GUARDS
    ranks: int = 3
    observed: int = 3
    clocks: int = 6
    incarnations: dict[int, int] = field(default_factory=dict)
    workers: list[SimWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = SimCluster(self.seed, guards=self.guards)
        self.world = self.cluster.world
        rows = self.cluster.create_table(1, SparseSpec("rows", 1, "int64", Sum()))
        slots = self.cluster.create_table(2, SparseSpec("slots", 1, "int64", Sum()))
        self.job = JobSpec(1, "count", self.ranks, self.mode)
        self.cluster.register(self.job)
        self.load = Counters(rows, slots, tuple(range(self.observed)), self.clocks)

    def spawn(self, rank: int) -> SimWorker:
        incarnation = self.cluster.draw_incarnation(self.job, rank)
        self.incarnations[rank] = incarnation
        worker = self.cluster.spawn(self.job, rank, incarnation, self.load.program)
        self.workers.append(worker)
        return worker

    def spawn_all(self) -> list[SimWorker]:
        return [self.spawn(rank) for rank in range(self.ranks)]

    def run(self) -> None:
        """Until everybody who lives is done; errors of workers are the test's to judge."""
        assert self.cluster.run(self.workers), self.stuck()

    def stuck(self) -> str:
        return "; ".join(
            f"{w.process.name} at clock {w.clock}: {w.session.calls.open}"
            for w in self.workers
            if not w.finished and not w.process.killed
        )

    def errors(self) -> list[str]:
        return [f"{w.process.name}: {w.error}" for w in self.workers if w.error is not None]

    def slots(self) -> dict[int, int]:
        keys = self.load.all_slots()
        held = self.cluster.read(self.load.slots, keys)[:, 0]
        return dict(zip(keys.tolist(), held.tolist(), strict=True))

    def staleness(self, lives: dict[int, range] | None = None) -> Verdict:
        history = self.load.row_history
        return together(
            check_staleness(history, self.mode, lives), check_sessions(history, self.mode)
        )

    def exactly_once(self) -> Verdict:
        return check_one_hot(self.load.slot_history, self.slots())

    def rows(self) -> list[int]:
        keys = np.arange(self.observed, dtype=np.uint64)
        return self.cluster.read(self.load.rows, keys)[:, 0].tolist()


def at_step(run: CountersRun, step: int, action: Callable[[], None]) -> None:
    """Run to the world's step of this number, then do something."""
    assert run.world.run_until(lambda: run.world.steps >= step)
    action()

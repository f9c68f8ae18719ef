"""The processes of a job's ranks: their starts, takeovers and ends, in the job's history."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from resilient_ps.chaos.history import History, Invocation
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.worker import Operation, SimWorker
from resilient_ps.chaos.workloads.journal import name_of, process_name
from resilient_ps.consistency import JobSpec
from resilient_ps.errors import Fenced

Program: TypeAlias = Callable[[SimWorker], Generator[Operation, Any, None]]
Prepared: TypeAlias = Callable[[SimWorker], None]


def _as_it_is(worker: SimWorker) -> None:
    """Nothing to prepare."""


@dataclass(slots=True)
class Crew:
    """All processes there were, by rank, in the order of their incarnations.

    `prepared` is called with every worker before it begins.
    """

    cluster: SimCluster
    job: JobSpec
    program: Program
    history: History
    prepared: Prepared = _as_it_is
    lives: dict[int, list[SimWorker]] = field(default_factory=dict)

    def spawn(self, rank: int) -> SimWorker:
        """A new process takes the rank."""
        incarnation = self.cluster.draw_incarnation(self.job, rank)
        number = self.history.invoke(
            process_name(rank, incarnation), "open", rank, 0, self.cluster.world.now_ns
        )

        def program(worker: SimWorker) -> Generator[Operation, Any, None]:
            now_ns = worker.world.now_ns
            self.history.complete(number, now_ns, "ok", (worker.clock - 1,))
            yield from self.program(worker)

        worker = self.cluster.spawn(self.job, rank, incarnation, program)
        self.prepared(worker)
        self.lives.setdefault(rank, []).append(worker)
        return worker

    def present(self, rank: int) -> SimWorker:
        """The rank's last process."""
        return self.lives[rank][-1]

    def over(self, rank: int) -> bool:
        """Has the rank's last process ended by itself?"""
        return self.present(rank).finished

    def top(self) -> int:
        """The largest clock that any process has opened."""
        return max((w.clock for lives in self.lives.values() for w in lives), default=0)

    def paused_ns(self) -> dict[str, int]:
        """By process: for how long it stood still."""
        workers = [worker for lives in self.lives.values() for worker in lives]
        return {name_of(worker): worker.process.paused_ns_total for worker in workers}

    def close_history(self) -> None:
        """After the run: processes that were killed, or ended by an error, are written down."""
        latest: dict[str, int] = {}
        for record in self.history.records:
            if type(record) is Invocation:
                latest[record.process] = record.at_ns
        for lives in self.lives.values():
            for worker in lives:
                if worker.killed or worker.error is not None:
                    name = name_of(worker)
                    self.history.died(name, latest.get(name, 0))

    def errors(self, *, may_leave: tuple[int, ...] = ()) -> list[str]:
        """Errors of workers that nothing explains.

        A process may be told that another one took its rank over, and one of a rank in `may_leave`
        that its rank has left.
        """
        found: list[str] = []
        for rank, lives in sorted(self.lives.items()):
            for worker in lives:
                if worker.error is None or worker.killed:
                    continue
                replaced = worker is not lives[-1] or rank in may_leave
                if not (replaced and isinstance(worker.error, Fenced)) and rank not in may_leave:
                    found.append(f"{name_of(worker)}: {worker.error}")
        return found

"""The processes of a job's ranks: their starts, takeovers and ends, in the job's history."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from resilient_ps.chaos.history import History, Invocation, process_name
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.worker import Announce, Operation, Resume, SimWorker
from resilient_ps.chaos.workloads.journal import name_of
from resilient_ps.consistency import JobSpec
from resilient_ps.errors import Fenced, RolledBack
from resilient_ps.routing import Routing
from resilient_ps.split import TableHandle

Running: TypeAlias = Generator[Operation, Any, None]
Program: TypeAlias = Callable[[SimWorker], Running]
Prepared: TypeAlias = Callable[[SimWorker], None]

WATCH_NS = 250_000_000


def _as_it_is(worker: SimWorker) -> None:
    """Nothing to prepare."""


@dataclass(slots=True)
class Crew:
    """All processes there were, by rank, in the order of their incarnations.

    `prepared` is called with every worker before it begins. `tables`: those that each process opens
    when it starts, and again after a rollback; without any they are known once and for all.
    """

    cluster: SimCluster
    job: JobSpec
    program: Program
    history: History
    prepared: Prepared = _as_it_is
    tables: tuple[TableHandle, ...] = ()
    lives: dict[int, list[SimWorker]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # by process: the cluster's incarnation
    _wanted: set[int] = field(default_factory=set)  # ranks that wait for a cluster

    def spawn(self, rank: int) -> SimWorker:
        """A new process takes the rank."""
        cluster, job = self.cluster, self.job
        incarnation, now_ns = cluster.draw_incarnation(job, rank), cluster.world.now_ns
        name = process_name(rank, incarnation, cluster.incarnation)
        self.names[name] = cluster.incarnation
        number = self.history.invoke(name, "open", rank, 0, now_ns)

        def program(worker: SimWorker) -> Running:
            self.history.complete(number, worker.world.now_ns, "ok", (worker.clock - 1,))
            while True:
                try:
                    if self.tables:
                        yield Announce(self.tables)
                    yield from self.program(worker)
                    return
                except RolledBack:
                    yield from self._go_on(worker)

        worker = cluster.spawn(job, rank, incarnation, program)
        self.prepared(worker)
        self.lives.setdefault(rank, []).append(worker)
        return worker

    def _go_on(self, worker: SimWorker) -> Running:
        """The cluster was rolled back: the process takes its rank again, as a new incarnation."""
        world, history = worker.world, self.history
        history.told(name_of(worker), world.now_ns, worker.incarnation)
        while True:
            try:
                yield Resume(partial(self._next, worker))
            except RolledBack:
                continue
            break
        self.names[name_of(worker)] = worker.incarnation
        number = history.invoke(name_of(worker), "open", worker.rank, 0, world.now_ns)
        history.complete(number, world.now_ns, "ok", (worker.clock - 1,))

    def _next(self, worker: SimWorker) -> tuple[Routing, int] | None:
        """Where a process that was told of a rollback goes on, and as which incarnation."""
        cluster = self.cluster
        if not cluster.is_open or cluster.incarnation <= worker.incarnation:
            return None
        cluster.enter(self.job, self.tables)
        routing = cluster.routing()
        assert routing is not None
        return routing, cluster.draw_incarnation(self.job, worker.rank)

    def respawn(self, rank: int) -> None:
        """A new process takes the rank, as soon as there is a cluster that takes it in."""
        if self.cluster.is_open:
            self._wanted.discard(rank)
            self.cluster.enter(self.job, self.tables)
            self.spawn(rank)
        else:
            self._wanted.add(rank)

    def watch(self) -> None:
        """From now on start processes for ranks whose last one ended before a rollback."""
        for rank in sorted(self.lives):
            if rank in self._wanted or self._left_behind(rank):
                self.respawn(rank)
        self.cluster.world.after(WATCH_NS, self.watch)

    def _left_behind(self, rank: int) -> bool:
        worker = self.present(rank)
        ended = worker.finished and not worker.killed
        return ended and worker.incarnation < self.cluster.incarnation

    def present(self, rank: int) -> SimWorker:
        """The rank's last process: mostly the one that was started last.

        After a rollback one that had been taken over before may be the first to go on, and take the
        rank back.
        """
        return max(self.lives[rank], key=lambda w: (w.incarnation, w.session.worker.incarnation))

    def over(self, rank: int) -> bool:
        """Has the rank's last process ended by itself, with nothing left to do?"""
        here = rank not in self._wanted and not self._left_behind(rank)
        return here and self.present(rank).finished

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
                replaced = worker is not self.present(rank) or rank in may_leave
                told = isinstance(worker.error, Fenced | RolledBack)
                if not (replaced and told) and rank not in may_leave:
                    found.append(f"{name_of(worker)}: {worker.error}")
        return found

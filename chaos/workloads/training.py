"""BSP in floats: whatever dies on the way, the model ends with the bytes of an undisturbed run.

A dense and a sparse table train with Adagrad, whose state lives beside the values. Gradients depend
on what was pulled, so that a difference anywhere spreads over the model. The number of clocks is
fixed. The program is repeatable, and pulls wait for as long as it takes. When the cluster goes back
to a checkpoint, so do the ranks.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from typing import Any

import numpy as np

from resilient_ps.chaos.checkers.identity import check_identity
from resilient_ps.chaos.checkers.sessions import check_clocks, check_views
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import Operation, Pull, Push, SimWorker, Tick, Wait
from resilient_ps.chaos.workloads.crew import Crew, Prepared
from resilient_ps.chaos.workloads.journal import Journal, Noted
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.survival import judge_survival
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.messages import Keys, Values
from resilient_ps.tables.optimisers import Adagrad
from resilient_ps.tables.spec import DenseSpec, SparseSpec

RANKS = 3
CLOCKS = 7
KEYS = 32
SPARSE_PUSHES = 9  # of a clock, where nobody asks for another number
KEYS_OF_CLOCK = 12  # the first push has what the others, with one each, leave over
DIM = 2
SHAPE = (8,)
RATE = 0.1
PATIENCE_NS = 300 * 10**9
TABLES = (1, 2)


class Training:
    """The workload: three ranks train one model."""

    name = "training"
    ranks = tuple(range(RANKS))

    def __init__(
        self,
        prepared: Prepared | None = None,
        *,
        clocks: int = CLOCKS,
        pace: Pace | None = None,
        sparse_pushes: int = SPARSE_PUSHES,
    ) -> None:
        self.journal = Journal(PATIENCE_NS)
        self._prepared = prepared
        self._clocks = clocks
        self._hurry = False
        self._pace = pace or Pace()
        self._pushes = sparse_pushes

    def prepare(self, cluster: SimCluster) -> None:
        """Create tables and job."""
        self._cluster = cluster
        dense = DenseSpec("dense", SHAPE, "float32", Adagrad(RATE))
        sparse = SparseSpec("sparse", DIM, "float32", Adagrad(RATE))
        tables = cluster.create_tables({TABLES[0]: dense, TABLES[1]: sparse})
        self._dense, self._sparse = tables
        job = JobSpec(1, "training", RANKS, BSP())
        cluster.enter(job, tables)
        self._crew = Crew(cluster, job, self._program, self.journal.history)
        if cluster.archive is not None:
            self._crew.tables = tuple(tables)
        if self._prepared is not None:
            self._crew.prepared = self._prepared

    def start(self) -> None:
        """The first process of every rank."""
        self._start_ns = self._cluster.world.now_ns
        for rank in self.ranks:
            self._crew.spawn(rank)
        if self._cluster.archive is not None:
            self._crew.watch()

    def worker(self, rank: int) -> SimWorker:
        """The rank's present process."""
        return self._crew.present(rank)

    def respawn(self, rank: int) -> None:
        """A new process takes the rank over."""
        self._crew.respawn(rank)

    def stop(self) -> None:
        """Go through the rest of the clocks without waiting."""
        self._hurry = True

    @property
    def finished(self) -> bool:
        """Has everybody ended?"""
        return all(self._crew.over(rank) for rank in self.ranks)

    def acknowledged(self, rank: int) -> int:
        """How many pushes of the rank were acknowledged."""
        return self.journal.acknowledged.get(rank, 0)

    def judge(self, run: RunRecord) -> list[Finding]:
        """Is the model what it would be without faults?"""
        self._crew.close_history()
        errors = self._crew.errors()
        findings = [
            Finding("no worker fails", judge(errors, checked=RANKS, what="workers")),
            Finding("BSP is reproducible", self._identical(run)),
            Finding("positions only grow", check_views(self.journal.history)),
        ]
        if self._cluster.archive is not None:
            return [*findings, *judge_survival(self._crew, self._cluster.archive)]
        return [*findings, Finding("clocks only grow", check_clocks(self.journal.history))]

    def _identical(self, run: RunRecord) -> Verdict:
        if run.lost_shards or not run.healed:
            return Verdict("unknown", ("the cluster has not come to rest",))
        due = undisturbed(self._shards(), self._clocks, self._pushes)
        return check_identity(model_of(self._cluster), due)

    def _shards(self) -> int:
        routing = self._cluster.routing()
        assert routing is not None
        return routing.shards

    # -- the program

    def _program(self, worker: SimWorker) -> Generator[Operation, Any, None]:
        while worker.clock <= self._clocks:
            yield from self._one_clock(worker, worker.clock)

    def _one_clock(self, worker: SimWorker, clock: int) -> Generator[Operation, Any, None]:
        rank = worker.rank
        keys = sparse_keys(rank, clock)
        weights = yield Pull(self._dense)
        rows = yield Pull(self._sparse, keys)
        yield from self._rest(worker, clock, 0.5)
        grads = sparse_gradient(rank, clock, rows)
        pushes = [Push(self._dense, None, dense_gradient(rank, clock, weights))]
        first = KEYS_OF_CLOCK - self._pushes + 1
        for n in range(self._pushes):
            part = slice(n + first - 1 if n else 0, n + first)
            pushes.append(Push(self._sparse, keys[part], grads[part]))
        yield from self.journal.do(worker, *[Noted("push", push) for push in pushes])
        yield from self._rest(worker, clock, 1.0)
        yield from self.journal.do(worker, Noted("tick", Tick(b"%d" % clock)))

    def _rest(self, worker: SimWorker, clock: int, part: float) -> Generator[Operation, Any, None]:
        due_ns = self._start_ns + self._pace.due_ns(worker.rank, clock, part)
        if due_ns > worker.world.now_ns and not self._hurry:
            yield Wait(due_ns - worker.world.now_ns)


def dense_gradient(rank: int, clock: int, weights: Values) -> Values:
    """Depends on every bit of the weights."""
    offsets = np.arange(weights.size, dtype=np.float32).reshape(weights.shape)
    return _wave(weights * np.float32(rank + 1) + offsets + np.float32(clock))


def sparse_keys(rank: int, clock: int) -> Keys:
    """Some are those of other ranks, some are named twice."""
    places = range(KEYS_OF_CLOCK)
    return np.array([(7 * clock + 3 * rank * i + i) % KEYS for i in places], np.uint64)


def sparse_gradient(rank: int, clock: int, rows: Values) -> Values:
    """Depends on every bit of the rows."""
    offsets = np.arange(rows.size, dtype=np.float32).reshape(rows.shape)
    return _wave(rows + offsets * np.float32(0.25) + np.float32(rank) - np.float32(clock))


def _wave(x: Values) -> Values:
    """Between -1 and 1, in operations that are rounded alike everywhere."""
    whole = x - np.floor(x)
    return (whole * 2 - 1).astype(np.float32)


def model_of(cluster: SimCluster) -> dict[str, str]:
    """The digest of each table on each shard's primary."""
    return {
        f"table {table}, shard {shard}": digest
        for table in TABLES
        for shard, digest in enumerate(cluster.digests(table))
    }


@cache
def undisturbed(
    shards: int, clocks: int = CLOCKS, sparse_pushes: int = SPARSE_PUSHES
) -> dict[str, str]:
    """What the model is without faults, on as many shards, after so many clocks of such pushes."""
    cluster = SimCluster(0, servers=1, shards=shards)
    load = Training(clocks=clocks, sparse_pushes=sparse_pushes)
    load.prepare(cluster)
    load.start()
    load.stop()
    if not cluster.world.run_until(lambda: load.finished):
        raise AssertionError("the undisturbed run does not end")
    return model_of(cluster)

"""Ranks that create rows in a namespace until its quota is used up.

The keys of a push depend on (rank, clock, n) only, and no two pushes share any, so the quota is
used up after a known number of pushes, whoever dies meanwhile. A rank that is refused ends.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from resilient_ps.chaos.checkers.quotas import Sample, check_quota, check_used_up
from resilient_ps.chaos.checkers.sessions import check_views
from resilient_ps.chaos.checkers.verdict import judge
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import Operation, Push, SimWorker, Tick, Wait
from resilient_ps.chaos.workloads.crew import Crew
from resilient_ps.chaos.workloads.journal import Journal, Noted
from resilient_ps.consistency import Consistency, JobSpec
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.errors import QuotaExceeded
from resilient_ps.messages import Keys
from resilient_ps.shard import Shard
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

RANKS = 3
ROWS_PER_PUSH = 12
PUSHES_PER_CLOCK = 3
CLOCKS_MAX = 200  # more than any quota here takes
NAMESPACE, TABLE = "full", 1
SAMPLE_NS = 100_000_000
PATIENCE_NS = 300 * 10**9
CLOCK_NS = 400_000_000


class Filling:
    """The workload; `rows_max`: the quota."""

    name = "filling"
    ranks = tuple(range(RANKS))

    def __init__(self, mode: Consistency, rows_max: int = 4_000) -> None:
        self.journal = Journal(PATIENCE_NS)
        self.samples: list[Sample] = []
        self.refused: set[int] = set()
        self._mode = mode
        self._rows_max = rows_max
        self._hurry = False

    def prepare(self, cluster: SimCluster) -> None:
        """Table, job, and the quota, which is in force before anybody begins."""
        self._cluster = cluster
        tables = cluster.create_tables({TABLE: SparseSpec(f"{NAMESPACE}/rows", 1, "int64", Sum())})
        (self._table,) = tables
        job = JobSpec(1, "filling", RANKS, self._mode)
        cluster.enter(job, tables)
        key = cluster.keys.namespace(NAMESPACE)
        cluster.put(key, NamespaceRecord(self._rows_max, None).to_bytes())
        assert cluster.world.wait_for(lambda: self._in_force(), 60), "no quota comes into force"
        self._crew = Crew(cluster, job, self._program, self.journal.history)

    def _in_force(self) -> bool:
        key = self._cluster.keys.namespace(NAMESPACE)
        (item,) = self._cluster.entries(key)
        return NamespaceRecord.from_bytes(item.value, key).in_force == self._cluster.incarnation

    def start(self) -> None:
        """The first process of every rank."""
        for rank in self.ranks:
            self._crew.spawn(rank)
        self._look()

    def worker(self, rank: int) -> SimWorker:
        """The rank's present process."""
        return self._crew.present(rank)

    def respawn(self, rank: int) -> None:
        """A new process takes the rank over."""
        self._crew.respawn(rank)

    def stop(self) -> None:
        """Nothing is waited for any more: all end soon, as the quota does."""
        self._hurry = True

    @property
    def finished(self) -> bool:
        """Has everybody ended?"""
        return all(self._crew.over(rank) for rank in self.ranks)

    def acknowledged(self, rank: int) -> int:
        """How many pushes of the rank were acknowledged."""
        return self.journal.acknowledged.get(rank, 0)

    def judge(self, run: RunRecord) -> list[Finding]:
        """Was the quota kept at all times, and used up in the end?"""
        self._crew.close_history()
        self._sample()
        errors = self._crew.errors()
        routing = self._cluster.routing()
        assert routing is not None
        quota = check_quota(self.samples, self._rows_max, routing.shards)
        used = check_used_up(self.samples, self._rows_max, ROWS_PER_PUSH)
        return [
            Finding("no worker fails", judge(errors, checked=RANKS, what="workers")),
            Finding("a quota is kept", quota),
            Finding("a quota can be used up", used),
            Finding("positions only grow", check_views(self.journal.history)),
        ]

    # -- the program

    def _program(self, worker: SimWorker) -> Generator[Operation, Any, None]:
        try:
            while worker.clock <= CLOCKS_MAX:
                for n in range(PUSHES_PER_CLOCK):
                    keys = keys_of(worker.rank, worker.clock, n)
                    push = Push(self._table, keys, np.ones((len(keys), 1), np.int64))
                    yield from self.journal.do(worker, Noted("push", push))
                yield from self.journal.do(worker, Noted("tick", Tick(b"%d" % worker.clock)))
                if not self._hurry:
                    yield Wait(int(worker.world.rng.exponential(CLOCK_NS)))
        except QuotaExceeded:
            self.refused.add(worker.rank)

    # -- samples

    def _look(self) -> None:
        self._sample()
        self._cluster.world.after(SAMPLE_NS, self._look)

    def _sample(self) -> None:
        primaries: dict[int, Shard] = {}
        for server in self._cluster.servers.values():
            for shard in server.node.served() if server.alive else ():
                held = primaries.get(shard.number)
                if held is None or held.epoch < shard.epoch:
                    primaries[shard.number] = shard
        used = {number: rows_of(shard) for number, shard in sorted(primaries.items())}
        allowed = {
            number: shard.quotas.by_path[NAMESPACE].allowed.rows
            for number, shard in sorted(primaries.items())
            if NAMESPACE in shard.quotas.by_path
        }
        self.samples.append(Sample(self._cluster.world.now_ns, used, allowed))


def rows_of(shard: Shard) -> int:
    """With those that pushes which are held back will create."""
    table = shard.tables.get(TABLE)
    if table is None:
        return 0
    keys = set(table.rows_held.keys().tolist())
    for job in shard.jobs.values():
        for _, _, update in job.barrier.held():
            keys.update(update.keys.tolist())
    return len(keys)


def keys_of(rank: int, clock: int, n: int) -> Keys:
    """Nobody else's."""
    first = ((rank * CLOCKS_MAX + clock) * PUSHES_PER_CLOCK + n) * ROWS_PER_PUSH
    return np.arange(first, first + ROWS_PER_PUSH, dtype=np.uint64)

"""Looks at what etcd says of a graph's progress, whenever it says more, and at what shards hold."""

from __future__ import annotations

from resilient_ps.chaos.checkers.tasks import Claim
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.consistency import JobSpec
from resilient_ps.coordinator.kv import Event
from resilient_ps.coordinator.task_records import BUCKET_LANES, LanesRecord


class ProgressWatch:
    """`claims`: of each lane and step that etcd has called done, what the shards had come to."""

    def __init__(self, cluster: SimCluster, job: JobSpec) -> None:
        self.claims: list[Claim] = []
        self._cluster = cluster
        self._job = job
        self._done: dict[tuple[int, int], int] = {}  # by incarnation of the cluster and lane
        cluster.world.audit.on_event.append(self._on_event)

    def _on_event(self, world_ns: int, event: Event) -> None:
        at = self._cluster.keys.locate(event.item.key)
        if event.kind != "put" or at is None or (at.kind, at.name) != ("lanes", self._job.name):
            return
        record = LanesRecord.from_bytes(event.item.value, event.item.key)
        if record.incarnation != self._cluster.incarnation:
            return  # of before a rollback, whose coordinator has not heard of it
        for rank, lane in enumerate(record.lanes, at.number * BUCKET_LANES):
            before = self._done.setdefault((record.incarnation, rank), lane.done)
            if lane.done > before:
                self._done[record.incarnation, rank] = lane.done
                held = self._held(rank, record.incarnation)
                self.claims.append(Claim(world_ns, rank, lane.done, held))

    def _held(self, rank: int, incarnation: int) -> int:
        """What every shard's best replica, living or dead, has seen ticked of a lane, at least."""
        best: dict[int, int] = {}
        for life in self._cluster.lives:
            for number in self._cluster.records():
                replica = life.node.replicas.get(number)
                shard = None if replica is None else replica.shard
                job = None if shard is None else shard.jobs.get(self._job.job)
                if replica is None or job is None:
                    continue
                if replica.epoch.incarnation == incarnation:  # a shard's is that of who served it
                    ticked = job.ledger.ranks[rank].ticked
                    best[number] = max(best.get(number, 0), ticked)
        return min((best.get(number, 0) for number in self._cluster.records()), default=0)

"""What a simulated cluster holds on to, counted (see `bounds`)."""

from __future__ import annotations

from collections import Counter

from resilient_ps.chaos.checkers.bounds import ClusterSize
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.holder import SimHolder
from resilient_ps.coordinator.kv import Read
from resilient_ps.replication.replica import Replica

READERS_MOST = 16  # clients that made tables before a run, or read them after it


def size_of(cluster: SimCluster) -> ClusterSize:
    """What the limits depend on."""
    ranks = {(worker.session.worker.job, worker.rank) for worker in cluster.workers}
    clients = sum(not worker.killed for worker in cluster.workers)
    return ClusterSize(
        servers=len(cluster.servers),
        shards=len(cluster.records()),
        replicas=cluster.replicas_wanted + 1,  # a learner may be on its way
        ranks=len(ranks),
        clients=clients + READERS_MOST,
        holders=sum(type(worker) is SimHolder and not worker.killed for worker in cluster.workers),
    )


def usage_of(cluster: SimCluster) -> dict[str, int]:
    """How many there are of each kind, in etcd and in all living servers together."""
    kv, now_ns = cluster.world.kv, cluster.world.now_ns
    usage: Counter[str] = Counter()
    usage["leases"] = kv.lease_count
    usage["etcd keys"] = len(kv.apply(Read(cluster.keys.prefix, prefix=True), now_ns).items)
    for server in cluster.servers.values():
        if server.alive:
            usage["timers"] += server.process.timer_count
            usage["connections"] += len(server.process.connections)
            for replica in server.node.replicas.values():
                usage.update(_held_by(replica))
    return dict(usage)


def _held_by(replica: Replica) -> dict[str, int]:
    shard = replica.shard
    return {
        "log entries": len(replica.log),
        "log epochs": len(replica.log.epochs),
        "waiting pulls": 0 if shard is None else len(shard.waiting),
        "ranks": 0 if shard is None else sum(len(j.ledger.ranks) for j in shard.jobs.values()),
    }

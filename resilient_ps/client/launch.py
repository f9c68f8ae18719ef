"""A cluster of processes on this machine, for trying things out, demos and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import AUTO, Standby, StorePlace
from resilient_ps.client.connection import Client, connect, wait_for_cluster
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import Prefer
from resilient_ps.runtime.local import REPLICAS, LocalCluster

PLACED_DEADLINE_S = 60.0  # for the servers, once they run, to elect a coordinator and place shards


class RunningCluster:
    """A local cluster, for as long as its `with` block lasts."""

    def __init__(self, processes: LocalCluster) -> None:
        self.processes = processes

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.processes.cluster

    @property
    def etcd(self) -> str:
        """Endpoints of its coordination, as `connect` takes them."""
        return ",".join(self.processes.endpoints)

    @property
    def coordination(self) -> str:
        """ "etcd", or "embedded" where no etcd is installed."""
        return self.processes.coordination.kind

    def connect(self, deadline_s: float = 30.0) -> Client:
        """A client of this cluster."""
        return connect(self.etcd, self.name, deadline_s=deadline_s)


@contextmanager
def local_cluster(
    servers: int = 2,
    *,
    replicas: int = REPLICAS,
    min_in_sync: int = 1,
    name: str = "local",
    coordination: Prefer = "auto",
    store: str = "",
    checkpoints: CheckpointSettings | None = None,
    restore: str = AUTO,
    server_flags: Sequence[str] = (),
) -> Iterator[RunningCluster]:
    """Run `servers` server processes and a coordination process on loopback ports.

    When the block begins, every shard is served. `replicas` servers (or all, if there are fewer)
    hold each shard; a push is acknowledged when all of those that are in sync hold it, and at least
    `min_in_sync`.

    `coordination`: "etcd", "embedded" (a process of our own, in memory), or "auto": etcd where it
    is installed. Everything ends with the block, on an exception and on Ctrl-C too.

    `store`: where checkpoints lie ("s3://bucket/prefix", or a folder; "": there are none), and
    `checkpoints`: when they are made; by default when the cost of one and the usual rate of
    failures say so. `restore`: what the cluster begins with: "auto" (the newest checkpoint in the
    store, if there is any), "none", "latest", "clock:N", "time:2026-07-01T23:30", or the id of one.
    """
    with LocalCluster(
        servers,
        replicas=replicas,
        min_in_sync=min_in_sync,
        cluster=name,
        prefer=coordination,
        standby=Standby(
            StorePlace(store), checkpoints or CheckpointSettings(auto=True), restore=restore
        ),
        flags=server_flags,
    ) as processes:
        with closing(EtcdKv(processes.endpoints)) as kv:
            wait_for_cluster(kv, name, PLACED_DEADLINE_S)
        yield RunningCluster(processes)

"""A small cluster for users' own tests: what they connect to, and run their programs on.

`plugin.py` makes it a fixture. For several tests on one cluster, or without pytest:

    with cluster_under_test(servers=3) as cluster, cluster.connect() as client:
        faults = Faults(cluster.scene)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.parties import WorkerParty, end_of
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.client.connection import Client, connect
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound, Unavailable

SETTLED_DEADLINE_S = 60.0
JOB_DEADLINE_S = 120.0
POLL_S = 0.05
MAX_RANKS = 64


class Job:
    """Worker processes that run one program, one for each rank."""

    def __init__(self, workers: list[WorkerParty]) -> None:
        self.workers = workers

    @property
    def names(self) -> tuple[str, ...]:
        """Of its processes, by rank, as `faults.kill` takes them."""
        return tuple(worker.name for worker in self.workers)

    def wait(self, deadline_s: float = JOB_DEADLINE_S) -> None:
        """Until all have ended in order.

        Raises `Unavailable` with the end of its log when one ended with an error or was killed and
        not healed, `DeadlineExceeded` naming one that still runs.
        """
        until_s = time.monotonic() + deadline_s
        for worker in self.workers:
            while worker.runs:
                if time.monotonic() > until_s:
                    where = f"it is {worker.state}, its log is {worker.log}"
                    raise DeadlineExceeded(
                        f"{worker.name} has not ended after {deadline_s:g} s: {where}"
                    )
                time.sleep(POLL_S)
            if worker.exit_code != 0:
                raise Unavailable(end_of(worker))


class ClusterUnderTest:
    """A running cluster. `scene`: all of it, as faults see it."""

    def __init__(self, scene: ChaosCluster, *, ends_with_test: bool = False) -> None:
        self.scene = scene
        self.ends_with_test = ends_with_test
        self._started = 0

    @property
    def name(self) -> str:
        """The cluster's name, as `connect` takes it."""
        return self.scene.cluster

    @property
    def etcd(self) -> str:
        """Endpoints of its coordination, as `connect` takes them."""
        return self.scene.public_etcd

    @property
    def servers(self) -> tuple[str, ...]:
        """Names: s1, s2, ..."""
        return tuple(party.name for party in self.scene.parties("server"))

    @property
    def shards(self) -> int:
        """How many there are."""
        return self.scene.shards

    @property
    def logs(self) -> dict[str, Path]:
        """By process."""
        return self.scene.logs

    def connect(self, deadline_s: float = 30.0) -> Client:
        """A client of this cluster, in this process."""
        return connect(self.etcd, self.name, deadline_s=deadline_s)

    def primary(self, shard: int = 0) -> str:
        """The server that leads a shard, as etcd says; "" while there is none."""
        record = self.scene.records.look().shard(shard)
        if record is None:
            raise NotFound(f"there is no shard {shard}; they are 0 to {self.shards - 1}")
        return record.primary

    def start(self, script: str | Path, *arguments: str, ranks: int = 1) -> Job:
        """Run a Python program of yours in `ranks` worker processes.

        It needs to know nothing of this: in it `connect()` finds the cluster, and
        `client.worker(job)` its rank, in the environment.
        """
        path = Path(script).absolute()
        if not path.is_file():
            raise NotFound(f"there is no program {path}")
        if not 1 <= ranks <= MAX_RANKS:
            raise BadInput(f"ranks={ranks}: use 1 to {MAX_RANKS}")
        command = [sys.executable, str(path), *arguments]
        return Job([self._start_rank(command, rank, ranks) for rank in range(ranks)])

    def wait_settled(self, deadline_s: float = SETTLED_DEADLINE_S) -> None:
        """Until all servers are there, and every shard has its copies where they should be.

        Raises `Unavailable`, naming what lacks.
        """
        self.scene.wait_settled(deadline_s)

    def _start_rank(self, command: list[str], rank: int, ranks: int) -> WorkerParty:
        name = f"w{self._started}"
        self._started += 1
        told = {"RESILIENT_PS_RANK": str(rank), "RESILIENT_PS_RANKS": str(ranks)}
        return self.scene.add_worker(name, command, told)


@contextmanager
def cluster_under_test(
    servers: int = 3,
    *,
    replicas: int = 2,
    min_in_sync: int = 1,
    shards: int = 0,
    etcd: int = 0,
    store: str = "",
    lease_ttl_s: int = 2,
    logs: Path | None = None,
    ends_with_test: bool = False,
) -> Iterator[ClusterUnderTest]:
    """Start a cluster on loopback; it ends, with all that was started on it, with the block.

    `shards` 0: four per server. `etcd`: members of a real one; 0: an embedded process, which needs
    no etcd. `store`: for checkpoints: "seaweedfs" (started here), "folder" (a temporary one), the
    URL of a store of yours, or "" for none. `logs`: a folder where logs stay. `ends_with_test`:
    nobody needs the cluster when a test is over, so that nothing is healed then.

    Raises `BadInput` for what cannot be started, `NotFound` with the remedy where a program is
    missing, `Unavailable` with the end of a log when something does not start.
    """
    plan = ClusterPlan(
        servers=servers,
        workers=0,
        replicas=replicas,
        min_in_sync=min_in_sync,
        shards=shards,
        etcd=etcd,
        store=store,
        lease_ttl_s=lease_ttl_s,
        keep=logs,
    )
    with ChaosCluster(plan) as scene:
        yield ClusterUnderTest(scene, ends_with_test=ends_with_test)

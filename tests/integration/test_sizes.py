"""As many shards and workers as there may be: everything that etcd holds stays small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.chaos.live.records import Records
from resilient_ps.client.launch import RunningCluster
from resilient_ps.coordinator.keys import ROOT
from resilient_ps.coordinator.placement import MAX_SHARDS
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import find_etcd

RANKS = 500
STEP = 125  # between the ranks that work in the short case
DEADLINE_S = 60.0
VALUE_BYTES = 16 * 1024  # etcd takes 1.5 MiB for a whole transaction
KEYS = np.arange(2 * MAX_SHARDS, dtype=np.uint64)
ONES = np.ones((len(KEYS), 1), np.int64)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    flags = ["--shards", str(MAX_SHARDS)]
    with ps.local_cluster(2, replicas=2, coordination="etcd", server_flags=flags) as running:
        yield running


def work(cluster: RunningCluster, job: str, ranks: range) -> set[int]:
    """Each of these ranks takes its place and pushes to the shards; how often keys were pushed."""
    with cluster.connect(deadline_s=DEADLINE_S) as client:
        for rank in ranks:
            with client.worker(job, rank, RANKS, "asp") as worker:
                table = worker.sparse_table(job, dim=1, dtype="int64", optimiser=ps.Sum())
                table.push(KEYS, ONES)
                worker.tick()
        held = client.table(job)
        assert isinstance(held, ps.SparseTable)
        return set(held.pull(KEYS).ravel().tolist())


def largest_value(cluster: RunningCluster) -> int:
    """In bytes, of all that etcd holds of clusters."""
    with closing(EtcdKv(cluster.etcd)) as kv:
        items = kv.read(ROOT.encode(), prefix=True, deadline_s=DEADLINE_S).items
    assert len(items) >= 2 * MAX_SHARDS  # a record and a leader key of each shard
    return max(len(item.value) for item in items)


def test_all_shards_of_the_largest_cluster_come_to_rest_on_both_servers(
    cluster: RunningCluster,
) -> None:
    with closing(EtcdKv(cluster.etcd)) as kv:
        records = Records(kv, cluster.name, copies=2)
        records.wait_settled(DEADLINE_S)
        held = [len(record.in_sync) for record in records.look().shards]
    assert held == [2] * MAX_SHARDS


def test_all_shards_of_the_largest_cluster_take_the_pushes_of_a_large_job(
    cluster: RunningCluster,
) -> None:
    some = range(0, RANKS, STEP)
    assert work(cluster, "some", some) == {len(some)}
    assert largest_value(cluster) <= VALUE_BYTES


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_five_hundred_ranks_work_on_the_largest_cluster(cluster: RunningCluster) -> None:
    assert work(cluster, "all", range(RANKS)) == {RANKS}
    assert largest_value(cluster) <= VALUE_BYTES

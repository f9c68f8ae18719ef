"""Servers that hang without dying: briefly, so that nothing may happen, and for too long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from crew import CLUSTER, NUMBERS, Hurt, eventually, hurt_cluster, ranks_at_work

import resilient_ps as ps
from resilient_ps.chaos.live.straight import stale

LEASE_TTL_S = 4  # so that a slow machine is none that hangs


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hurt]:
    with hurt_cluster(2, shards=4, lease_ttl_s=LEASE_TTL_S) as hurt:
        yield hurt


def test_a_server_that_hangs_for_less_than_half_its_lease_stays_primary(cluster: Hurt) -> None:
    before = cluster.records.epochs()
    with ranks_at_work(cluster) as ranks:
        for what in ("gil", "loop"):
            cluster.hang("s1", what, 0.3 * LEASE_TTL_S).wait()
            for rank in ranks:
                rank.wait_for_more()
    assert cluster.records.epochs() == before


@pytest.mark.parametrize("what", ["gil", "loop"])
def test_a_server_that_hangs_for_longer_than_its_lease_is_replaced_and_refuses(
    cluster: Hurt, what: str
) -> None:
    cluster.settle()
    led = cluster.records.led_by("s1")
    assert led
    with cluster.connect() as client, ranks_at_work(cluster) as ranks:
        writer = cluster.straight_writer(client, "s1")
        hanging = cluster.hang("s1", what, 1.5 * LEASE_TTL_S)
        writer.push()
        eventually(lambda: not cluster.records.led_by("s1"), "another primary")
        writer.push()
        for rank in ranks:
            rank.wait_for_more()  # while it hangs still
        hanging.wait()
        assert stale(writer.answers(2), led) == 0
        writer.close()
        cluster.settle()  # it takes part again


# --- one that is dead or hangs holds nobody up but those that wait for it ------------------------

PUSHES_FOR_EVER = """
import sys
import numpy as np
import resilient_ps as ps

etcd, cluster, name = sys.argv[1:]
keys = np.arange(1000, dtype=np.uint64)
with ps.connect(etcd, cluster) as client, client.worker(name, 1, 2, "bsp") as worker:
    table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
    while True:
        table.push(keys, np.ones((1000, 1), np.int64))
        print("pushed", flush=True)
"""


def test_a_dead_worker_is_named_at_the_deadline_and_holds_no_other_job_up(cluster: Hurt) -> None:
    cluster.settle()
    name = f"bsp{next(NUMBERS)}"
    with (
        cluster.connect(deadline_s=4.0) as client,
        client.worker(name, 0, 2, "bsp") as worker,
        ranks_at_work(cluster) as others,
    ):
        table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
        command = [sys.executable, "-c", PUSHES_FOR_EVER, cluster.endpoints, CLUSTER, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        worker.tick()
        with pytest.raises(ps.DeadlineExceeded, match="rank 1"):
            table.pull([1, 2, 3])
        for rank in others:
            rank.wait_for_more()


def test_a_hanging_server_holds_shards_of_others_up_for_no_longer_than_its_lease(
    cluster: Hurt,
) -> None:
    cluster.settle()
    with ranks_at_work(cluster) as ranks:
        cluster.processes.pause("s2")
        try:
            for rank in ranks:
                rank.wait_for_more()
            assert not cluster.records.led_by("s2")
        finally:
            cluster.processes.resume("s2")
    cluster.settle()

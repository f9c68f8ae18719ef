"""Simulated clusters: servers that die and come back, and what is known of them from outside."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from sim_toys import MILLISECOND_NS, SECOND_NS

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.worker import Operation, Pull, Push, SimWorker, Tick, Within
from resilient_ps.consistency import ASP, JobSpec
from resilient_ps.errors import DeadlineExceeded, Fenced
from resilient_ps.split import TableHandle
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

JOB = JobSpec(1, "toy", 1, ASP())
KEYS = np.arange(16, dtype=np.uint64)
ONES = np.ones((len(KEYS), 1), np.int64)


def three_servers(seed: int = 1, replicas: int = 2) -> tuple[SimCluster, TableHandle]:
    cluster = SimCluster(seed, servers=3, replicas=replicas)
    assert cluster.world.wait_for(cluster.settled, 10)
    return cluster, cluster.create_table(1, SparseSpec("t", 1, "int64", Sum()))


def test_a_restarted_server_is_another_process_and_the_cluster_comes_to_rest_again() -> None:
    cluster, table = three_servers()
    before = cluster.servers["s1"]
    cluster.kill("s1")
    assert not cluster.settled()
    after = cluster.restart_server("s1")
    assert after.process_id != before.process_id
    assert cluster.world.wait_for(cluster.settled, 30), cluster.unsettled()
    assert [life.name for life in cluster.lives] == ["s1", "s2", "s3", "s1"]
    assert cluster.lost_shards() == ()
    assert cluster.read(table, KEYS).tolist() == [[0]] * len(KEYS)


def test_a_shard_is_lost_when_the_last_of_its_in_sync_members_is_dead() -> None:
    cluster, _ = three_servers()
    record = cluster.records()[0]
    first, second = (member.server for member in record.in_sync)
    assert cluster.would_lose(first) == ()
    cluster.kill(first)
    assert 0 in cluster.would_lose(second)
    cluster.kill(second)
    assert 0 in cluster.lost_shards()
    cluster.restart_server(first)
    cluster.restart_server(second)
    cluster.world.run_to(cluster.world.now_ns + 10 * SECOND_NS)
    assert 0 in cluster.lost_shards()


def test_a_stopped_server_hands_over_and_exits() -> None:
    cluster, table = three_servers()
    server = cluster.servers["s2"]
    cluster.stop("s2")
    assert cluster.world.wait_for(lambda: not server.alive, 10)
    assert server.process.exit_code == 0
    assert cluster.read(table, KEYS, limit_s=5).tolist() == [[0]] * len(KEYS)


def run_one(program: Any, *, pause_ns: int, seed: int = 1) -> tuple[SimCluster, SimWorker, Any]:
    """A worker, while the only server of a cluster pauses."""
    cluster = SimCluster(seed, servers=1)
    table = cluster.create_table(1, SparseSpec("t", 1, "int64", Sum()))
    worker = cluster.spawn(JOB, 0, 1, lambda worker: program(worker, table))
    assert cluster.world.run_until(lambda: worker.clock == 1)
    cluster.pause("s1", pause_ns)
    assert cluster.run([worker], 60)
    return cluster, worker, table


def test_an_operation_that_is_not_over_in_time_is_abandoned_and_a_push_still_delivered() -> None:
    caught: list[str] = []

    def program(worker: SimWorker, table: TableHandle) -> Generator[Operation, Any, None]:
        for operation in (Push(table, KEYS, ONES), Pull(table, KEYS)):
            try:
                yield Within(operation, 100 * MILLISECOND_NS)
            except DeadlineExceeded as error:
                caught.append(str(error))
        yield Tick()

    cluster, worker, table = run_one(program, pause_ns=SECOND_NS)
    assert [text.split(" timed out")[0] for text in caught] == [
        "the push of clock 1",
        "the pull of clock 1",
    ]
    assert worker.error is None
    assert worker.clock == 2
    assert cluster.read(table, KEYS).tolist() == ONES.tolist()


def test_an_operation_that_is_over_in_time_gives_its_result() -> None:
    found: list[Any] = []

    def program(worker: SimWorker, table: TableHandle) -> Generator[Operation, Any, None]:
        yield Within(Push(table, KEYS, ONES), 10 * SECOND_NS)
        found.append((yield Within(Pull(table, KEYS), 10 * SECOND_NS)))

    run_one(program, pause_ns=SECOND_NS)
    assert found[0].tolist() == ONES.tolist()


def test_a_program_that_does_not_catch_the_deadline_ends_with_it() -> None:
    def program(worker: SimWorker, table: TableHandle) -> Generator[Operation, Any, None]:
        yield Within(Push(table, KEYS, ONES), MILLISECOND_NS)

    _, worker, _ = run_one(program, pause_ns=SECOND_NS)
    assert isinstance(worker.error, DeadlineExceeded)


def test_a_paused_worker_that_was_taken_over_is_fenced_when_it_goes_on() -> None:
    cluster, table = three_servers()

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        for _ in range(5):
            yield Push(table, KEYS, ONES)
            yield Tick()

    old = cluster.spawn(JOB, 0, cluster.draw_incarnation(JOB, 0), program)
    assert cluster.world.run_until(lambda: old.clock == 2)
    old.process.pause(2 * SECOND_NS)
    new = cluster.spawn(JOB, 0, cluster.draw_incarnation(JOB, 0), program)
    assert cluster.run([old, new], 60)
    assert isinstance(old.error, Fenced)
    assert new.error is None


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_in_sync_replicas_of_a_cluster_at_rest_are_equal(replicas: int) -> None:
    cluster, table = three_servers(replicas=replicas)

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        yield Push(table, KEYS, ONES)
        yield Tick()

    assert cluster.run([cluster.spawn(JOB, 0, 1, program)], 60)
    assert cluster.world.wait_for(cluster.settled, 10), cluster.unsettled()
    for number in range(4):
        digests = [held.shard.digest() for held in cluster.replicas(number)]
        assert len(digests) == replicas
        assert len(set(digests)) == 1
    assert len(cluster.digests(1)) == 4

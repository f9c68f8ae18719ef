"""After hundreds of failovers a cluster holds on to no more than after a few."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilient_ps.chaos.checkers.bounds import check_bounds, check_growth
from resilient_ps.chaos.checkers.usage import size_of, usage_of
from resilient_ps.chaos.checkers.writers import check_epochs
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.workloads.mixed import Flavour, Mixed
from resilient_ps.consistency import ASP

SECOND_NS = 10**9
WARM_UP = 6  # failovers, after which everything is there that ever will be


def fail_over(cluster: SimCluster, load: Mixed, number: int) -> None:
    """Kill a server that is a primary, and a worker; all come back, and the cluster settles."""
    shard = number % len(cluster.records())
    name = cluster.records()[shard].primary
    cluster.kill(name)
    rank = number % len(load.ranks)
    cluster.world.kill(load.worker(rank).process)
    load.respawn(rank)
    wait(cluster, lambda: not cluster.lost_shards() and served_by_others(cluster, name))
    cluster.restart_server(name)
    wait(cluster, cluster.settled)


def served_by_others(cluster: SimCluster, name: str) -> bool:
    return all(record.primary != name for record in cluster.records().values())


def wait(cluster: SimCluster, condition: Callable[[], bool]) -> None:
    assert cluster.world.wait_for(condition, 60), cluster.unsettled()


def judge_failovers(count: int) -> None:
    cluster = SimCluster(count, servers=3, shards=4, replicas=2)
    load = Mixed(Flavour(ASP(), 20 * SECOND_NS))
    load.prepare(cluster)
    load.start()
    for number in range(WARM_UP):
        fail_over(cluster, load, number)
    early = usage_of(cluster)
    for number in range(WARM_UP, count):
        fail_over(cluster, load, number)
    late = usage_of(cluster)
    load.stop()
    wait(cluster, lambda: load.finished and cluster.settled())
    rest = usage_of(cluster)
    assert check_bounds(late, size_of(cluster).limits()).outcome == "true", late
    epochs = early.pop("log epochs"), late.pop("log epochs")
    assert epochs[1] <= epochs[0] + 3 * len(cluster.servers) * count  # bounded by their maximum
    assert check_growth(early, late, slack=8).outcome == "true", (early, late)
    assert rest["log entries"] == 0
    assert rest["waiting pulls"] == 0
    assert check_epochs(record for _, record in cluster.world.audit.records).outcome == "true"


def test_after_twenty_failovers_no_more_is_held_than_after_six() -> None:
    judge_failovers(20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_after_hundreds_of_failovers_no_more_is_held_than_after_six() -> None:
    judge_failovers(300)

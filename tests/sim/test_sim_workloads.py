"""The workloads themselves: undisturbed, they hold every promise, and do enough."""

from __future__ import annotations

import pytest

from resilient_ps.chaos.checkers.suite import check_run
from resilient_ps.chaos.history import Invocation
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import RunRecord
from resilient_ps.chaos.workloads.choice import choose_workload
from resilient_ps.chaos.workloads.guest import Visit
from resilient_ps.chaos.workloads.mixed import GUEST_RANK, Flavour, Mixed
from resilient_ps.chaos.workloads.training import Training, undisturbed
from resilient_ps.consistency import ASP, BSP, SSP, Consistency

SECOND_NS = 10**9
VISIT = Visit(joins_ns=4 * SECOND_NS, leaves_ns=16 * SECOND_NS, dies_ns=9 * SECOND_NS)


def run_to_its_end(load: Mixed | Training, seed: int) -> RunRecord:
    cluster = SimCluster(seed, servers=2, shards=4, replicas=2)
    load.prepare(cluster)
    load.start()
    cluster.world.run_to(24 * SECOND_NS)
    load.stop()
    assert cluster.world.wait_for(lambda: load.finished and cluster.settled(), 30)
    return RunRecord(cluster, "safety", seed, (), (), True, cluster.world.now_ns)


def broken(load: Mixed | Training, run: RunRecord) -> list[str]:
    findings = load.judge(run) + check_run(run)
    return [finding.invariant for finding in findings if finding.verdict.outcome != "true"]


@pytest.mark.parametrize("mode", [BSP(), SSP(1), ASP()], ids=str)
def test_undisturbed_the_mixed_workload_holds_every_promise(mode: Consistency) -> None:
    load = Mixed(Flavour(mode, 8 * SECOND_NS, visit=VISIT))
    run = run_to_its_end(load, 1)
    assert broken(load, run) == []
    assert sum(load.acknowledged(rank) for rank in load.ranks) >= 200
    pushes = load.journal.history.operations("push")
    assert {push.invoked.table for push in pushes} == {"rows", "board", "slots", "weights"}
    of_guest = [push for push in pushes if push.invoked.rank == GUEST_RANK]
    assert {push.invoked.process for push in of_guest} >= {"3.1", "3.2"}
    (leave,) = load.journal.history.operations("leave")
    assert leave.outcome == "ok"


def test_a_killed_and_a_superseded_worker_are_taken_over() -> None:
    load = Mixed(Flavour(BSP(), 8 * SECOND_NS))
    cluster = SimCluster(2, servers=2, shards=4, replicas=2)
    load.prepare(cluster)
    load.start()
    cluster.world.run_to(5 * SECOND_NS)
    cluster.world.kill(load.worker(0).process)
    load.worker(1).process.pause(2 * SECOND_NS)
    for rank in (0, 1):
        load.respawn(rank)
    cluster.world.run_to(12 * SECOND_NS)
    load.stop()
    assert cluster.world.wait_for(lambda: load.finished and cluster.settled(), 30)
    run = RunRecord(cluster, "safety", 2, (), (), True, cluster.world.now_ns)
    assert broken(load, run) == []
    begun = [r.process for r in load.journal.history.records if isinstance(r, Invocation)]
    assert {"0.1", "0.2", "1.1", "1.2"} <= set(begun)


def test_training_ends_with_the_same_bytes_whatever_the_timings() -> None:
    for seed in (1, 2):
        load = Training()
        assert broken(load, run_to_its_end(load, seed)) == []
    assert len(set(undisturbed(4).values())) > 2


def test_seeds_choose_among_all_workloads_and_the_same_one_again() -> None:
    def described(seed: int) -> str:
        load = choose_workload(seed)
        return repr(load.flavour) if isinstance(load, Mixed) else load.name

    chosen = {described(seed) for seed in range(60)}
    assert chosen == {described(seed) for seed in range(60)}
    for word in ("training", "BSP", "SSP", "ASP", "Visit"):
        assert any(word in text for text in chosen)

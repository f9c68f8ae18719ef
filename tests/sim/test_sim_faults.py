"""Every kind of fault does what it says, and can be undone."""

from __future__ import annotations

from typing import get_args

import pytest
from sim_toys import MILLISECOND_NS, SECOND_NS

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import Faults
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Fault, FaultKind
from resilient_ps.chaos.sim.setup import schedule_of
from resilient_ps.chaos.workloads.mixed import Flavour, Mixed
from resilient_ps.consistency import ASP

TARGETS: dict[FaultKind, tuple[str, ...]] = {
    "crash worker": ("rank:1",),
    "supersede": ("rank:2",),
    "partition": ("s1", "s2"),
    "one-way": ("rank:0", "primary:1"),
    "refuse": ("s2", "s3"),
    "slow": ("s1", "etcd"),
    "cut": (),
    "etcd down": (),
    "etcd leader": (),
    "join": (),
}


def a_fault(kind: FaultKind, *, at_ms: int = 2_000, duration_ms: int = 1_500) -> Fault:
    return Fault(at_ms, kind, TARGETS.get(kind, ("coordinator",)), duration_ms, how=12_345)


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_a_single_fault_of_any_kind_is_performed_and_survived(kind: FaultKind) -> None:
    outcome = run_seed(1, schedule=(a_fault(kind),), with_story=True)
    assert outcome.verdict == "true", outcome.findings
    assert (outcome.faults, outcome.skipped) == (1, 0)
    assert any("!!" in line for line in outcome.story)


def begun(seed: int = 1, *, careful: bool = True) -> tuple[SimCluster, Faults]:
    cluster = SimCluster(seed, servers=3, replicas=2)
    load = Mixed(Flavour(ASP(), 8 * SECOND_NS))
    load.prepare(cluster)
    load.start()
    return cluster, Faults(cluster, load, careful=careful)


def run_for(cluster: SimCluster, ms: int) -> None:
    cluster.world.run_to(cluster.world.now_ns + ms * MILLISECOND_NS)


def test_a_careful_schedule_does_not_kill_the_last_member_of_a_shard() -> None:
    cluster, faults = begun()
    faults.plan((Fault(10, "crash", ("s1",), 60_000), Fault(20, "crash", ("s2",), 60_000)))
    run_for(cluster, 1_000)
    assert (faults.performed, faults.skipped) == (1, 1)
    assert cluster.lost_shards() == ()


def test_a_careless_one_does() -> None:
    cluster, faults = begun(careful=False)
    faults.plan((Fault(10, "crash", ("s1",), 60_000), Fault(20, "crash", ("s2",), 60_000)))
    run_for(cluster, 1_000)
    assert faults.performed == 2
    assert cluster.lost_shards() != ()


def test_healing_ends_everything_that_was_begun() -> None:
    cluster, faults = begun()
    kinds: tuple[FaultKind, ...] = (
        "isolate", "partition", "one-way", "etcd loses answers", "etcd lags", "slow", "refuse",
        "long steps", "pause", "crash worker", "etcd down",
    )  # fmt: skip
    faults.plan(tuple(a_fault(kind, at_ms=10, duration_ms=60_000) for kind in kinds))
    run_for(cluster, 1_000)
    assert faults.performed == len(kinds)
    faults.heal()
    hosts = faults.hosts()
    network, store = cluster.world.network, cluster.world.store
    assert not any(network.is_blocked(a, b) for a in hosts for b in hosts)
    assert not store.down
    assert store.lags == store.lost_answers == cluster.world.long_steps == {}
    assert not any(server.process.paused for server in cluster.servers.values())
    assert not any(faults.load.worker(rank).killed for rank in faults.load.ranks)
    assert cluster.world.wait_for(cluster.settled, 30), cluster.unsettled()


def test_after_healing_no_planned_fault_strikes_any_more() -> None:
    cluster, faults = begun()
    faults.plan((a_fault("crash", at_ms=500),))
    faults.heal()
    run_for(cluster, 2_000)
    assert faults.performed == 0


def test_a_fault_that_finds_nothing_to_strike_is_left_out() -> None:
    cluster, faults = begun()
    cluster.kill("s3")
    faults.plan((Fault(10, "pause", ("s3",), 100), Fault(10, "partition", ("s2", "s2"), 100)))
    run_for(cluster, 100)
    assert (faults.performed, faults.skipped) == (0, 2)


def test_liveness_leaves_a_majority_and_strikes_the_others_for_ever() -> None:
    for seed in range(2):
        outcome = run_seed(seed, kind="liveness", schedule=schedule_of(seed)[:3], with_story=True)
        ends = [line for line in outcome.story if "for ever" in line]
        assert len(ends) == 1, outcome.story


@pytest.mark.parametrize(("seed", "of_these", "lost"), [(610, (10, 11, 13), (2,)), (163, (4,), ())])
def test_who_wrote_that_it_alone_is_in_sync_takes_a_shard_along_when_it_is_struck(
    seed: int, of_these: tuple[int, ...], lost: tuple[int, ...]
) -> None:
    """Right after it heard that the other member had lost its lease: nothing goes on without it."""
    faults = schedule_of(seed)
    outcome = run_seed(seed, kind="liveness", schedule=tuple(faults[at] for at in of_these))
    assert (outcome.verdict, outcome.lost_shards) == ("true", lost), outcome.findings


def test_a_shard_that_survivors_cannot_go_on_with_is_told_as_lost_though_its_server_lives() -> None:
    outcome = run_seed(689, kind="liveness")
    assert outcome.verdict == "true", outcome.findings
    assert outcome.lost_shards
    assert outcome.virtual_s < 30, "it ends there"


def test_a_run_goes_on_for_thirty_virtual_seconds() -> None:
    outcome = run_seed(2, schedule=())
    assert outcome.virtual_s >= 30
    assert outcome.acknowledged >= 200
    assert outcome.steps * MILLISECOND_NS < 30 * SECOND_NS  # the world does not spin


def test_a_server_runs_again_when_it_has_stopped_however_long_that_takes() -> None:
    cluster, faults = begun()
    before = cluster.servers["s1"]
    faults.plan((Fault(10, "stop", ("s1",), duration_ms=1),))
    run_for(cluster, 11)
    assert before.alive  # the fault is over, but not what it began
    run_for(cluster, 10_000)
    assert not before.alive
    assert cluster.servers["s1"].alive


def test_when_all_faults_have_ended_nobody_is_stopping() -> None:
    cluster, faults = begun()
    before = cluster.servers["s1"]
    faults.plan((Fault(10, "stop", ("s1",), duration_ms=60_000),))
    run_for(cluster, 11)
    assert before.alive
    faults.heal()
    assert not before.alive
    assert cluster.servers["s1"].alive

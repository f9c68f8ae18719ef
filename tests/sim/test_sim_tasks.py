"""Graphs of tasks, done by production sessions under a production coordinator, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_ps.chaos.checkers.suite import check_run
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.holder import LEASE_TTL_S, SimHolder
from resilient_ps.chaos.sim.outcome import Outcome, RunKind, RunRecord
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Fault, Schedule
from resilient_ps.chaos.sim.setup import Setup, setup_of
from resilient_ps.chaos.sim.worker import Tick
from resilient_ps.chaos.workloads.choice import workload_of
from resilient_ps.chaos.workloads.task_bodies import tasks_of
from resilient_ps.chaos.workloads.tasks import TaskLoad
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.progress import Progress
from resilient_ps.guards import Guards
from resilient_ps.session import Resolved

SECOND_NS = 10**9


class Scene:
    """A cluster and its holders; `goes_on` ends the run and says which promises were broken."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        self.load = TaskLoad()
        self.cluster = SimCluster(seed, servers=3, shards=4, replicas=2, **options)
        self.load.prepare(self.cluster)
        self.load.start()

    def run_to(self, seconds: float) -> None:
        self.cluster.world.run_to(int(seconds * SECOND_NS))

    def goes_on(self) -> list[str]:
        world = self.cluster.world
        world.run_to(max(world.now_ns, 20 * SECOND_NS))
        self.load.stop()
        assert world.wait_for(lambda: self.load.finished and self.cluster.settled(), 60)
        run = RunRecord(self.cluster, "safety", 1, (), (), True, world.now_ns)
        findings = [*self.load.judge(run), *check_run(run)]
        return [finding.invariant for finding in findings if finding.verdict.outcome != "true"]

    def in_a_task(self, seat: int) -> None:
        """Until the holder in this seat has begun with a task, and pushes."""
        holder, runs = self.load.worker(seat), self.load.runs
        name = holder.process.name
        assert self.cluster.world.run_until(
            lambda: bool(runs) and any(r.holder == name and r.own for r in runs[-3:]), 30
        )


def test_undisturbed_every_task_is_done_once_and_the_end_is_that_of_the_serial_order() -> None:
    scene = Scene()
    assert scene.goes_on() == []
    runs = scene.load.runs
    assert sorted(run.task for run in runs) == sorted(tasks_of(scene.load.graph))
    assert {run.end for run in runs} == {"ticked"}
    assert len({run.holder for run in runs}) == 3


def test_a_holder_that_sleeps_for_three_leases_loses_its_task_and_what_it_had_pushed() -> None:
    scene = Scene(2)
    scene.in_a_task(0)
    holder = scene.load.worker(0)
    held = next(r for r in reversed(scene.load.runs) if r.holder == holder.process.name)
    holder.process.pause(3 * LEASE_TTL_S * SECOND_NS)
    assert scene.goes_on() == []
    again = [run for run in scene.load.runs if run.task == held.task]
    assert [run.end for run in again] == ["lost", "ticked"]
    assert again[1].token > held.token
    assert again[1].holder != held.holder


def test_a_killed_holder_and_a_killed_coordinator_are_followed_by_others() -> None:
    scene = Scene(3)
    scene.in_a_task(1)
    scene.cluster.world.kill(scene.load.worker(1).process)
    scene.cluster.kill(scene.cluster.coordinator())
    scene.load.respawn(1)
    scene.run_to(12)
    for name, server in list(scene.cluster.servers.items()):
        if not server.alive:
            scene.cluster.restart_server(name)
    assert scene.goes_on() == []


# -- many seeds


def judged(seed: int, kind: RunKind = "safety", *, store: bool | None = None) -> Outcome:
    return run_seed(seed, kind=kind, setup=setup_of(seed, store=store, workload="tasks"))


@pytest.mark.parametrize("kind", ["safety", "liveness"])
@pytest.mark.parametrize("store", [False, True], ids=["no store", "store"])
def test_tasks_keep_every_promise_under_random_faults(kind: RunKind, *, store: bool) -> None:
    for seed in range(2):
        outcome = judged(seed, kind, store=store)
        assert outcome.verdict == "true", (seed, outcome.findings)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["safety", "liveness"])
@pytest.mark.parametrize("seeds", [range(n, n + 50) for n in range(0, 400, 50)], ids=str)
def test_tasks_keep_every_promise_in_hundreds_of_runs(kind: RunKind, seeds: range) -> None:
    for seed in seeds:
        outcome = judged(seed, kind)
        assert outcome.verdict == "true", (seed, outcome.findings)


def test_seeds_choose_tasks_now_and_then_and_always_the_same_ones() -> None:
    chosen = [seed for seed in range(100) if setup_of(seed).workload == "tasks"]
    assert 5 < len(chosen) < 30
    assert chosen == [seed for seed in range(100) if setup_of(seed).workload == "tasks"]
    assert isinstance(workload_of(chosen[0], setup_of(chosen[0])), TaskLoad)


# -- negative controls: without a rule a checker convicts


def first_convicted(seeds: range, **options: Any) -> tuple[str, ...]:
    """The promises that the first of these seeds breaks; () when none does."""
    for seed in seeds:
        outcome = run_seed(seed, setup=Setup(workload="tasks"), **options)
        if outcome.verdict == "false":
            return outcome.broken
    return ()


@pytest.mark.no_cover
def test_without_holding_pushes_back_a_task_counts_in_part_and_twice() -> None:
    broken = first_convicted(range(1), guards=Guards(barrier=False))
    assert {"every task takes effect once", "exclusive tasks run alone"} <= set(broken)


def naps() -> Schedule:
    """Holders stand still for longer than their leases, again and again, in the middle of tasks."""
    return tuple(
        Fault(1_500 + 2_100 * i, "pause mid-step", (f"rank:{i % 3}",), 2_300 + 300 * i % 2_000)
        for i in range(9)
    )


@pytest.mark.no_cover
def test_without_fencing_late_writes_are_taken_and_with_it_they_are_not() -> None:
    assert first_convicted(range(3), guards=Guards(fencing=False), schedule=naps())
    assert not first_convicted(range(1), schedule=naps())


@pytest.mark.no_cover
def test_a_task_that_is_granted_before_its_predecessors_are_done_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Progress, "_source", lambda self, rank, edge: (rank, 1_000))
    broken = first_convicted(range(3))
    assert "tasks begin after their predecessors" in broken


@pytest.mark.no_cover
def test_tasks_of_an_exclusive_group_that_run_at_once_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Graph, "exclusives", ())
    assert "exclusive tasks run alone" in first_convicted(range(20))


@pytest.mark.no_cover
def test_a_holder_that_says_done_without_a_tick_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So progress in etcd is really compared with the shards."""
    begin = SimHolder._begin

    def hasty(holder: SimHolder, operation: Any) -> list[Any]:
        if isinstance(operation, Tick):
            return [Resolved(holder._begun())]
        return begin(holder, operation)

    monkeypatch.setattr(SimHolder, "_begin", hasty)
    broken = first_convicted(range(1), schedule=())
    assert "progress is never ahead of the shards" in broken

"""Every push counts once: through broken connections, kills, and processes that come back."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from sim_runs import MILLISECOND_NS, CountersRun, at_step

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.history import History
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import break_connections
from resilient_ps.chaos.sim.worker import (
    Operation,
    Push,
    SimWorker,
    Tick,
    Together,
    Wait,
)
from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec
from resilient_ps.errors import Fenced, NotRepeatable
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec


def run_with_broken_connections(seed: int, mode: Consistency, guards: Guards) -> CountersRun:
    run = CountersRun(seed, mode, guards)
    until_ns = run.world.now_ns + 100 * MILLISECOND_NS
    break_connections(run.world, seed, every_ns=MILLISECOND_NS // 2, until_ns=until_ns)
    run.spawn_all()
    run.run()
    return run


@pytest.mark.parametrize("mode", [BSP(), SSP(1), ASP()], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_pushes_that_are_sent_again_count_once(seed: int, mode: Consistency) -> None:
    run = run_with_broken_connections(seed, mode, ALL_GUARDS)
    assert run.errors() == []
    assert run.exactly_once().outcome == "true", run.exactly_once()


def test_control_without_deduplication_doubled_pushes_are_convicted() -> None:
    outcomes = set()
    for seed in range(4):
        run = run_with_broken_connections(seed, SSP(1), Guards(deduplication=False))
        outcomes.add(run.exactly_once().outcome)
    assert "false" in outcomes


def kill_at(seed: int, mode: Consistency, step: int, rank: int, *, cuts: bool) -> CountersRun:
    run = CountersRun(seed, mode, clocks=4)
    first = run.world.steps
    workers = run.spawn_all()
    if cuts:
        until_ns = run.world.now_ns + 50 * MILLISECOND_NS
        break_connections(run.world, seed, every_ns=MILLISECOND_NS, until_ns=until_ns)

    def kill() -> None:
        run.world.kill(workers[rank].process)
        run.spawn(rank)

    at_step(run, first + step, kill)
    run.run()
    return run


@pytest.mark.parametrize("mode", [BSP(), SSP(1), ASP()], ids=str)
def test_a_killed_worker_is_taken_over_without_loss_or_doubling(mode: Consistency) -> None:
    for step in range(1, 380, 38):
        run = kill_at(step, mode, step, step % 3, cuts=False)
        assert run.errors() == [], step
        assert run.exactly_once().outcome == "true", (step, run.exactly_once())
        assert run.staleness().outcome == "true", (step, run.staleness())
        assert run.rows() == [run.clocks] * run.ranks


@pytest.mark.parametrize("mode", [BSP(), SSP(1)], ids=str)
def test_takeovers_end_the_same_while_connections_break(mode: Consistency) -> None:
    for step in range(5, 380, 62):
        run = kill_at(step, mode, step, step % 3, cuts=True)
        assert run.errors() == [], step
        assert run.exactly_once().outcome == "true", (step, run.exactly_once())
        assert run.rows() == [run.clocks] * run.ranks


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", [BSP(), SSP(0), SSP(3), ASP()], ids=str)
def test_many_takeovers_while_connections_break(mode: Consistency) -> None:
    for step in range(1, 500):
        run = kill_at(1000 + step, mode, step, step % 3, cuts=True)
        assert run.errors() == [], step
        assert run.exactly_once().outcome == "true", (step, run.exactly_once())
        assert run.rows() == [run.clocks] * run.ranks


# -- two processes of one rank


def two_lives(seed: int, guards: Guards) -> tuple[Verdict, list[SimWorker]]:
    """A process stops for a long time between two clocks, is taken over, and comes back.

    Each of the two has slots of its own, so that a push of one that is taken for the other's shows.
    """
    cluster = SimCluster(seed, guards=guards)
    slots = cluster.create_table(1, SparseSpec("slots", 1, "int64", Sum()))
    history, world = History(), cluster.world
    all_slots: list[int] = []

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        incarnation = worker.session.worker.incarnation
        while worker.clock <= 4:
            for n in range(8):
                slot = (incarnation * 100 + worker.clock) * 100 + n
                all_slots.append(slot)
                number = history.invoke(
                    f"0.{incarnation}", "push", 0, worker.clock, world.now_ns, (slot,)
                )
                yield Push(slots, np.array([slot], np.uint64), np.ones((1, 1), np.int64))
                history.complete(number, world.now_ns)
                yield Wait(int(world.rng.exponential(300_000)))
            yield Tick(b"")
            if incarnation == 1:
                yield Wait(int((3 + world.rng.exponential(6)) * MILLISECOND_NS))

    job = JobSpec(1, "two", 1, SSP(3))
    old = cluster.spawn(job, 0, 1, program)
    assert world.run_until(lambda: old.clock == 2 and not old.session.unsettled)
    new = cluster.spawn(job, 0, 2, program)
    assert cluster.run([old, new])
    keys = np.array(all_slots, np.uint64)
    final = dict(zip(all_slots, cluster.read(slots, keys)[:, 0].tolist(), strict=True))
    return check_one_hot(history, final), [old, new]


def test_a_process_that_comes_back_after_a_takeover_writes_nothing() -> None:
    for seed in range(6):
        verdict, (old, new) = two_lives(seed, ALL_GUARDS)
        assert verdict.outcome == "true", verdict
        assert isinstance(old.error, Fenced)
        assert new.error is None


def test_control_without_fencing_two_writing_processes_are_convicted() -> None:
    outcomes = {two_lives(seed, Guards(fencing=False))[0].outcome for seed in range(6)}
    assert "false" in outcomes


# -- programs that are not repeatable


@pytest.mark.parametrize("mode", [SSP(1), ASP()], ids=str)
@pytest.mark.parametrize("fault", ["none", "other keys", "fewer pushes", "more pushes"])
def test_a_program_that_is_not_repeatable_is_told_so(mode: Consistency, fault: str) -> None:
    for seed in range(4):
        cluster = SimCluster(seed)
        slots = cluster.create_table(1, SparseSpec("slots", 1, "int64", Sum()))

        def program(worker: SimWorker, slots=slots) -> Generator[Operation, Any, None]:
            again = worker.session.worker.incarnation > 1
            for n in range(5):
                keys = np.arange(n, n + 8, dtype=np.uint64)
                if again and fault == "other keys" and n == 2:
                    keys += np.uint64(1000)
                if again and fault == "fewer pushes" and n == 3:
                    continue
                ones = np.ones((len(keys), 1), np.int64)
                pushes = [Push(slots, keys, ones)] * (2 if again and fault == "more pushes" else 1)
                yield Together(tuple(pushes))
            yield Wait(MILLISECOND_NS)
            yield Tick(b"")

        job = JobSpec(1, "other", 1, mode)
        old = cluster.spawn(job, 0, 1, program)
        cluster.world.run_until(lambda old=old: old.session.calls.last_number >= 7)
        cluster.world.run_until(lambda old=old: not old.session.unsettled)
        cluster.world.kill(old.process)
        new = cluster.spawn(job, 0, 2, program)
        until_ns = cluster.world.now_ns + 3 * MILLISECOND_NS
        break_connections(cluster.world, seed, every_ns=MILLISECOND_NS, until_ns=until_ns)
        assert cluster.run([new])
        if fault == "none":
            assert new.error is None
        else:
            assert isinstance(new.error, NotRepeatable)


def test_an_etcd_outage_beyond_the_lease_stops_writes_and_they_go_on_afterwards() -> None:
    run = CountersRun(7, SSP(1), clocks=12)
    run.load.compute_ns = 400 * MILLISECOND_NS
    run.spawn_all()
    run.world.run_until(lambda: run.workers[0].clock == 3)
    run.world.kv_down = True
    stop_ns = run.world.now_ns + 6_000 * MILLISECOND_NS
    run.world.run_until(lambda: run.world.now_ns > stop_ns)
    servers = run.cluster.servers.values()
    assert not any(s.node.membership.may_answer(s.process.now_ns) for s in servers)
    stopped_at = [worker.clock for worker in run.workers]
    run.world.run_until(lambda: run.world.now_ns > stop_ns + 3_000 * MILLISECOND_NS)
    assert [worker.clock for worker in run.workers] == stopped_at
    run.world.kv_down = False
    run.run()
    assert run.errors() == []
    assert run.exactly_once().outcome == "true"
    assert run.staleness().outcome == "true"

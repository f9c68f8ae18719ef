"""BSP is bitwise reproducible: whatever the timings, and whoever is killed on the way."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from bsp_problem import CLOCKS, BspProblem, loop
from sim_runs import MILLISECOND_NS

from resilient_ps.chaos.checkers.whole_clock import check_whole_clocks
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import break_connections
from resilient_ps.chaos.sim.worker import (
    Operation,
    Pull,
    Push,
    SimWorker,
    Tick,
    Together,
    Tune,
    Wait,
)
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.tables.optimisers import SGD, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec


@pytest.mark.parametrize(("ranks", "mode"), [(4, BSP()), (3, BSP("mean"))], ids=str)
def test_bsp_equals_a_loop_in_one_process_whatever_the_timings(ranks: int, mode: BSP) -> None:
    models = {BspProblem(seed, ranks, mode).run() for seed in range(10)}
    assert models == {loop(ranks, mode)}


def test_bsp_equals_the_loop_while_connections_break() -> None:
    models = set()
    for seed in range(6):
        problem = BspProblem(seed)
        until_ns = problem.world.now_ns + 500 * MILLISECOND_NS
        break_connections(problem.world, seed, every_ns=MILLISECOND_NS, until_ns=until_ns)
        models.add(problem.run())
    assert models == {loop(4, BSP())}


def steps_of_a_run(seed: int) -> range:
    """The world's steps from the first worker's start to the end of an undisturbed run."""
    problem = BspProblem(seed)
    first = problem.world.steps
    for rank in range(problem.ranks):
        problem.spawn(rank)
    assert problem.cluster.run(problem.workers)
    return range(first, problem.world.steps)


def run_with_kills(seed: int, kills: list[tuple[int, int]]) -> tuple[bytes, bytes]:
    """`kills`: (world step, rank); the rank is started again at once."""
    problem = BspProblem(seed)
    current = {rank: problem.spawn(rank) for rank in range(problem.ranks)}
    for step, rank in kills:
        problem.world.run_until(lambda step=step: problem.world.steps >= step)
        problem.world.kill(current[rank].process)
        current[rank] = problem.spawn(rank)
    return problem.run()


def test_a_worker_killed_at_many_steps_of_a_clock_leaves_the_same_bytes() -> None:
    steps = steps_of_a_run(0)
    expected = loop(4, BSP())
    for step in steps[::20]:
        assert run_with_kills(0, [(step, step // 20 % 4)]) == expected, step


def test_a_successor_killed_in_any_step_of_its_takeover_leaves_the_same_bytes() -> None:
    steps = steps_of_a_run(1)
    middle = steps[len(steps) // 2]
    expected = loop(4, BSP())
    for later in range(1, 100, 8):
        kills = [(middle, 1), (middle + later, 1), (middle + 2 * later, 1)]
        assert run_with_kills(1, kills) == expected, later


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_worker_killed_at_every_single_step_leaves_the_same_bytes() -> None:
    expected = loop(4, BSP())
    for step in steps_of_a_run(0):
        for rank in range(4):
            assert run_with_kills(0, [(step, rank)]) == expected, (step, rank)


def mixed_clocks(seed: int, guards: Guards) -> Any:
    """Each process adds its incarnation to its clock's slots; rank 0 is killed in between."""
    cluster = SimCluster(seed, guards=guards)
    slots = cluster.create_table(1, SparseSpec("slots", 1, "int64", Sum()))
    job = JobSpec(1, "mixed", 2, BSP())
    pushes, clocks = 6, 3

    def keys(rank: int, clock: int, n: int) -> Any:
        return np.array([(rank * 100 + clock) * 100 + n], np.uint64)

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        while worker.clock <= clocks:
            value = np.full((1, 1), worker.session.worker.incarnation, np.int64)
            for n in range(pushes):
                yield Push(slots, keys(worker.rank, worker.clock, n), value)
                yield Wait(int(cluster.world.rng.exponential(200_000)))
            yield Tick(b"")

    workers = [cluster.spawn(job, rank, 1, program) for rank in range(2)]
    assert cluster.world.run_until(lambda: workers[0].clock == 2)
    middle = cluster.world.steps + 3 + 4 * seed
    assert cluster.world.run_until(lambda: cluster.world.steps == middle)
    assert workers[0].clock == 2
    cluster.world.kill(workers[0].process)
    workers.append(cluster.spawn(job, 0, 2, program))
    assert cluster.run(workers)
    held = {
        f"rank {rank}, clock {clock}": [
            int(cluster.read(slots, keys(rank, clock, n))[0, 0]) for n in range(pushes)
        ]
        for rank in range(2)
        for clock in range(1, clocks + 1)
    }
    return check_whole_clocks(held, dict.fromkeys(held, 2))


def test_a_clock_is_repeated_as_a_whole_after_a_takeover() -> None:
    for seed in range(6):
        assert mixed_clocks(seed, ALL_GUARDS).outcome == "true"


def test_control_without_redo_a_clock_that_mixes_two_processes_is_convicted() -> None:
    outcomes = {mixed_clocks(seed, Guards(takeover_redo=False)).outcome for seed in range(6)}
    assert "false" in outcomes


def test_a_tick_does_not_overtake_a_pull_of_its_clock_while_connections_break() -> None:
    """A pull that is sent again after its clock was closed would see the next state."""
    for seed in range(15):
        cluster = SimCluster(seed)
        table = cluster.create_table(1, SparseSpec("sum", 1, "int64", Sum()))
        job = JobSpec(1, "early", 2, BSP())
        keys = np.arange(8, dtype=np.uint64)
        seen: list[tuple[int, list[int]]] = []

        def program(worker: SimWorker, seen=seen, table=table, keys=keys):
            while worker.clock <= 6:
                clock = worker.clock
                push = Push(table, keys, np.ones((len(keys), 1), np.int64))
                rows = yield Together((push, Pull(table, keys), Tick(b"")))
                seen.append((clock, rows[:, 0].tolist()))

        until_ns = cluster.world.now_ns + 300 * MILLISECOND_NS
        break_connections(cluster.world, seed, every_ns=MILLISECOND_NS // 4, until_ns=until_ns)
        assert cluster.run([cluster.spawn(job, rank, 1, program) for rank in range(2)])
        assert all(rows == [2 * (clock - 1)] * len(keys) for clock, rows in seen), seen


def test_a_new_learning_rate_holds_from_the_next_clock_on() -> None:
    cluster = SimCluster(3)
    table = cluster.create_table(1, DenseSpec("w", (4,), "float32", SGD(1.0)))
    job = JobSpec(1, "tuned", 2, BSP())
    ones = np.ones(4, np.float32)

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        while worker.clock <= 3:
            if worker.rank == 1 and worker.clock == 2:
                yield Tune(table, 0.5)
            yield Push(table, None, ones)
            yield Tick(b"")

    assert cluster.run([cluster.spawn(job, rank, 1, program) for rank in range(2)])
    assert cluster.read(table).tolist() == [-2.0 - 2.0 - 1.0] * 4


def test_an_empty_push_and_an_empty_pull_are_over_at_once() -> None:
    cluster = SimCluster(4)
    table = cluster.create_table(1, SparseSpec("s", 2, "float32", SGD(1.0)))
    nothing, shapes = np.empty(0, np.uint64), []

    def program(worker: SimWorker) -> Generator[Operation, Any, None]:
        yield Push(table, nothing, np.empty((0, 2), np.float32))
        rows = yield Pull(table, nothing)
        shapes.append(rows.shape)
        yield Tick(b"")

    worker = cluster.spawn(JobSpec(1, "empty", 1, BSP()), 0, 1, program)
    assert cluster.run([worker])
    assert shapes == [(0, 2)]
    assert worker.clock == 2


def test_the_problem_is_not_trivial() -> None:
    dense, sparse = loop(4, BSP())
    for values in (np.frombuffer(dense, np.float32), np.frombuffer(sparse, np.float32)):
        assert np.isfinite(values).all()
        assert len(np.unique(values)) > 10
    assert CLOCKS >= 3
    assert loop(4, BSP()) != loop(4, BSP("mean"))

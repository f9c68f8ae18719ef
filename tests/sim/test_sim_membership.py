"""Ranks that join and leave while a job runs, and coordinators that die on the way."""

from __future__ import annotations

from typing import Literal

import pytest
from sim_runs import MILLISECOND_NS, CountersRun, at_step

from resilient_ps.consistency import ASP, BSP, SSP, Consistency
from resilient_ps.coordinator.records import IntentRecord
from resilient_ps.errors import Fenced, Reopen


def execute(run: CountersRun, kind: Literal["join", "leave"], rank: int) -> IntentRecord:
    number = run.cluster.propose(kind, run.job, rank)
    assert run.world.run_until(lambda: run.cluster.intent(number).state != "open", 60), number
    return run.cluster.intent(number)


def wait_for_clock(run: CountersRun, clock: int) -> None:
    assert run.world.run_until(lambda: run.workers[0].clock >= clock)


@pytest.mark.parametrize("mode", [BSP(), SSP(2), SSP(0), ASP()], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_late_rank_joins_and_the_bounds_hold_with_it(seed: int, mode: Consistency) -> None:
    run = CountersRun(seed, mode, observed=4, clocks=10)
    run.spawn_all()
    wait_for_clock(run, 4)
    assert execute(run, "join", 3).state == "done"
    joiner = run.spawn(3)
    assert run.world.run_until(lambda: joiner.clock > 0)
    first = joiner.clock
    assert first >= 2
    run.run()
    assert run.errors() == []
    assert run.rows() == [10, 10, 10, 11 - first]
    verdict = run.staleness({3: range(first, 11)})
    assert verdict.outcome == "true", verdict
    assert run.exactly_once().outcome == "true", run.exactly_once()


@pytest.mark.parametrize("mode", [BSP(), SSP(1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_others_wait_for_a_rank_until_it_has_left(seed: int, mode: Consistency) -> None:
    run = CountersRun(seed, mode, clocks=8)
    run.load.last[1] = 3
    workers = run.spawn_all()
    later_ns = run.world.now_ns + 2_000 * MILLISECOND_NS
    run.world.run_until(lambda: run.world.now_ns > later_ns)
    assert workers[1].finished
    assert not workers[0].finished
    assert not workers[2].finished
    assert execute(run, "leave", 1).result == {"ticked": 3}
    run.run()
    assert run.errors() == []
    assert run.rows() == [8, 3, 8]
    verdict = run.staleness({1: range(1, 4)})
    assert verdict.outcome == "true", verdict


def test_a_living_process_of_a_rank_that_was_made_to_leave_writes_no_more() -> None:
    run = CountersRun(1, SSP(2), clocks=12)
    run.load.compute_ns = 20 * MILLISECOND_NS
    workers = run.spawn_all()
    wait_for_clock(run, 3)
    assert execute(run, "leave", 1).state == "done"
    run.run()
    assert isinstance(workers[1].error, Reopen)
    assert run.rows()[0] == run.rows()[2] == 12


def test_a_new_process_of_a_rank_that_left_is_refused() -> None:
    run = CountersRun(2, BSP(), clocks=5)
    run.load.last[1] = 2
    run.spawn_all()
    assert run.world.run_until(lambda: run.workers[1].finished)
    execute(run, "leave", 1)
    late = run.spawn(1)
    run.run()
    assert isinstance(late.error, Reopen)
    assert not isinstance(late.error, Fenced)
    assert "has left" in str(late.error)


@pytest.mark.parametrize("mode", [BSP(), SSP(1)], ids=str)
def test_a_rank_that_left_joins_again_behind_its_last_clock_with_its_cursor(
    mode: Consistency,
) -> None:
    run = CountersRun(3, mode, clocks=9)
    run.load.last[1] = 4
    run.spawn_all()
    assert run.world.run_until(lambda: run.workers[1].finished)
    execute(run, "leave", 1)
    assert execute(run, "join", 1).state == "done"
    del run.load.last[1]
    again = run.spawn(1)
    assert run.world.run_until(lambda: again.clock > 0)
    assert again.clock >= 5
    assert again.session.cursor == b"4"
    missed = again.clock - 5
    run.run()
    assert run.errors() == []
    assert run.rows() == [9, 9 - missed, 9]
    assert run.exactly_once().outcome == "true", run.exactly_once()


def test_a_join_of_a_rank_that_is_live_changes_nothing() -> None:
    run = CountersRun(4, BSP(), clocks=8)
    run.spawn_all()
    wait_for_clock(run, 3)
    assert execute(run, "join", 1).state == "done"
    run.run()
    assert run.errors() == []
    assert run.rows() == [8, 8, 8]
    assert run.staleness().outcome == "true"


def test_the_last_rank_leaves_and_a_new_one_carries_on() -> None:
    run = CountersRun(5, BSP(), ranks=1, observed=2, clocks=6)
    run.load.last[0] = 3
    run.spawn_all()
    run.run()
    execute(run, "leave", 0)
    execute(run, "join", 1)
    joiner = run.spawn(1)
    run.run()
    assert joiner.error is None
    assert run.rows() == [3, 3]


def test_intents_of_unknown_jobs_and_ranks_are_aborted_and_say_why() -> None:
    run = CountersRun(6, SSP(1))
    run.spawn_all()
    wait_for_clock(run, 2)
    number = run.cluster.propose("leave", run.job, 77)
    other = IntentRecord(number + 1, "join", "nobody", 0, 0, "open")
    run.cluster.put(run.cluster.keys.intent(number + 1), other.to_bytes())
    done = lambda: run.cluster.intent(number + 1).state != "open"  # noqa: E731
    assert run.world.run_until(done, 60)
    assert run.cluster.intent(number).state == "aborted"
    assert "rank 77 is not in job" in str(run.cluster.intent(number).result)
    assert run.cluster.intent(number + 1).state == "aborted"
    assert "no job 'nobody'" in str(run.cluster.intent(number + 1).result)
    run.run()
    assert run.errors() == []


def test_a_leave_whose_number_was_overtaken_draws_a_new_one() -> None:
    run = CountersRun(7, SSP(2), clocks=10)
    run.load.compute_ns = 200 * MILLISECOND_NS
    workers = run.spawn_all()
    wait_for_clock(run, 2)
    run.world.kill(workers[1].process)
    run.spawn(1)
    wait_for_clock(run, 4)
    intent = IntentRecord(1, "leave", run.job.name, 1, 1, "open")  # incarnation 2 is running
    run.cluster.put(run.cluster.keys.intent(1), intent.to_bytes())
    assert run.world.run_until(lambda: run.cluster.intent(1).state != "open", 60)
    assert run.cluster.intent(1).state == "done"
    assert run.cluster.intent(1).incarnation == 3
    run.run()
    assert run.workers[-1].error is not None


def live_ranks(run: CountersRun) -> list[list[int]]:
    """On every shard, the ranks that are live there."""
    shards = [shard for node in run.cluster.nodes for shard in node.served()]
    return [shard.jobs[run.job.job].ledger.live_ranks() for shard in shards]


@pytest.mark.parametrize("kind", ["join", "leave"])
@pytest.mark.parametrize(
    "steps", [range(0, 30, 3), pytest.param(range(30), marks=pytest.mark.soak)], ids=len
)
def test_a_new_coordinator_finishes_what_its_predecessor_began(
    kind: Literal["join", "leave"], steps: range
) -> None:
    for step in steps:
        run = CountersRun(step, BSP(), observed=4, clocks=5)
        spare = run.cluster.add_spare("spare")
        run.load.last[1] = 2
        run.spawn_all()
        assert run.world.run_until(lambda run=run: run.workers[1].finished)
        number = run.cluster.propose(kind, run.job, 3 if kind == "join" else 1)
        begun = lambda spare=spare: any(log.event == "intent begins" for log in spare.log)  # noqa: E731
        assert run.world.run_until(begun)
        at_step(run, run.world.steps + step, lambda run=run, spare=spare: run.world.kill(spare))
        done = lambda run=run, number=number: run.cluster.intent(number).state != "open"  # noqa: E731
        assert run.world.run_until(done, 60), (step, "the intent stays open")
        assert run.cluster.intent(number).state == "done", (step, run.cluster.intent(number))
        expected = [0, 1, 2, 3] if kind == "join" else [0, 2]
        assert live_ranks(run) == [expected] * 4, step
        if kind == "join":
            run.spawn(3)
            execute(run, "leave", 1)
        run.run()
        assert run.errors() == []
        assert run.rows()[:3] == [5, 2, 5]

"""`resilient-ps simulate`: what it prints, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.sim.outcome import Finding, Outcome
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.setup import schedule_of
from resilient_ps.cli.exits import run
from resilient_ps.cli.main import application
from resilient_ps.cli.simulate import Failure, Task, show_results
from resilient_ps.cli.tally import Tally

Captured = pytest.CaptureFixture[str]


def test_a_calm_run_holds_and_its_story_is_told(capsys: Captured) -> None:
    code = run(application, ["simulate", "--seed", "1", "--kind", "safety", "--only", "none"])
    told = capsys.readouterr().out
    assert code == 0
    assert "shard 3, epoch 1.1: primary" in told
    assert "1 runs: 1 held, 0 violated, 0 undecided" in told
    assert "seeds/s" in told


def test_json_says_the_same_for_programs(capsys: Captured) -> None:
    arguments = ["--seed", "1", "--kind", "liveness", "--only", "none", "--json"]
    code = run(application, ["simulate", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (told["runs"], told["held"], told["violated"]) == (1, 1, [])
    assert told["seeds_per_s"] > 0
    least = told["least_of_a_run"]
    assert (least["virtual_s"], least["faults"]) == (30.0, 0)
    assert 200 <= least["acknowledged_pushes"] <= told["acknowledged_pushes"]


def test_with_a_store_a_cluster_makes_checkpoints(capsys: Captured) -> None:
    arguments = ["--seed", "1", "--kind", "safety", "--only", "none", "--store", "--json"]
    code = run(application, ["simulate", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["checkpoints"] >= 3
    assert told["rollbacks"] == 0


def test_a_command_says_whether_there_is_a_store() -> None:
    assert " --store" in Task(3, "safety", store=True).command(())
    assert " --no-store" in Task(3, "safety", store=False).command(())
    with_store, without = (Task(5, "safety", store=store).schedule() for store in (True, False))
    assert set(without) < set(with_store)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--only", "1"], "--seed"),
        (["--seed", "1", "--only", "1"], "--kind"),
        (["--seed", "1", "--kind", "safety", "--only", "1000"], "faults 0 to"),
        (["--seed", "1", "--kind", "safety", "--only", "x"], "numbers"),
        (["--seeds", "0"], "seeds"),
        (["--kind", "sefety"], "kind"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_run(
    arguments: list[str], fault: str, capsys: Captured
) -> None:
    assert run(application, ["simulate", *arguments]) == 2
    assert fault in capsys.readouterr().err


def test_the_command_of_a_shortened_schedule_runs_exactly_that() -> None:
    schedule = schedule_of(3)
    command = Task(3, "safety").command((schedule[1], schedule[4]))
    assert command == "resilient-ps simulate --seed 3 --kind safety --only 1,4"
    assert Task(3, "safety", (1, 4)).schedule() == (schedule[1], schedule[4])
    assert Task(3, "safety").command(schedule) == "resilient-ps simulate --seed 3 --kind safety"
    assert Task(3, "safety").command(()).endswith("--only none")


def violated() -> Outcome:
    finding = Finding("no acknowledged push is lost", Verdict("false", ("slot 7 holds 0",)))
    outcome = run_seed(1, schedule=schedule_of(1)[:1], with_story=True)
    return replace(outcome, verdict="false", findings=(finding,))


def test_a_violation_is_told_with_its_faults_its_story_and_its_command(capsys: Captured) -> None:
    outcome = violated()
    tally = Tally(begun_s=0.0)
    tally.take(outcome)
    show_results(tally, [Failure(outcome, "resilient-ps simulate --seed 1")], ())
    told = capsys.readouterr().out
    assert "seed 1, safety" in told
    assert "no acknowledged push is lost: false" in told
    assert "slot 7 holds 0" in told
    assert str(outcome.schedule[0]) in told
    assert "!! all faults end" in told
    assert "to see it again:\n  resilient-ps simulate --seed 1\n" in told
    assert "1 violated" in told


def test_the_least_of_all_runs_is_told_without_those_that_lost_a_shard(capsys: Captured) -> None:
    whole, tally = violated(), Tally(begun_s=0.0)
    runs = [
        replace(whole, faults=12, acknowledged=250),
        replace(whole, faults=14, acknowledged=203),
    ]
    runs.append(replace(whole, faults=1, acknowledged=3, lost_shards=(2,)))
    for outcome in runs:
        tally.take(replace(outcome, verdict="true", virtual_s=30.0))
    assert tally.least == (30.0, 12, 203)
    show_results(tally, [], ())
    told = capsys.readouterr().out
    assert "at least 30.0 virtual s, 12 faults, 203 acknowledged pushes" in told
    assert "without the 1 that lost a shard" in told


def test_the_rate_counts_seeds_and_says_what_one_process_does() -> None:
    tally = Tally(begun_s=0.0, runs_per_seed=2, processes=4, runs=80, ended_s=10.0)
    assert tally.seeds_per_s == 4.0
    assert tally.rate == "4.0 seeds/s (2 runs each), 1.0 per process"
    assert Tally(begun_s=0.0, runs=30, ended_s=2.0).rate == "15.0 seeds/s"


def test_an_undecided_run_is_no_success_and_no_violation() -> None:
    tally = Tally(begun_s=0.0)
    tally.take(replace(violated(), verdict="unknown"))
    assert tally.exit_code == 2
    tally.take(violated())
    assert tally.exit_code == 1
    assert Tally(begun_s=0.0).exit_code == 0

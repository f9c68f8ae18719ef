"""Whole runs: clusters under random faults, judged by all checkers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_ps.chaos.sim.outcome import Outcome, RunKind
from resilient_ps.chaos.sim.run import run_seed

SEEDS: dict[RunKind, int] = {"safety": 140, "liveness": 60}
AT_ONCE = 10
SOME_SEEDS = [
    pytest.param(kind, range(first, first + AT_ONCE), id=f"{kind}-{first}")
    for kind, count in SEEDS.items()
    for first in range(0, count, AT_ONCE)
]

# Runs of many seeds reach no lines that one does not: counting lines would make them thrice as long
many_seeds = pytest.mark.no_cover


@many_seeds
@pytest.mark.parametrize(("kind", "seeds"), SOME_SEEDS)
def test_every_promise_holds_under_random_faults(kind: RunKind, seeds: range) -> None:
    for seed in seeds:
        outcome = run_seed(seed, kind=kind)
        assert outcome.verdict == "true", (seed, outcome.findings)
        assert outcome.lost_shards or is_eventful(outcome), outcome


def is_eventful(outcome: Outcome) -> bool:
    """Does enough happen for the run to prove something? Where a shard is lost it ends early."""
    return outcome.virtual_s >= 30 and outcome.faults >= 10 and outcome.acknowledged >= 200


@pytest.mark.parametrize(
    "seed",
    [
        287,  # a listing lags, a checkpoint goes, etcd is lost
        700073,  # nobody has committed in the epoch of the shards that hold a graph's progress
        890097,  # the only backup was silent for long, and is heard again when nothing waits for it
        870197,  # the only backup, which is needed to commit, has no lease when it is to be asked
    ],
)
def test_every_promise_holds_where_it_once_did_not(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.verdict == "true", outcome.findings


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["safety", "liveness"])
def test_every_promise_holds_under_very_many_random_faults(kind: RunKind) -> None:
    for seed in range(1_000):
        outcome = run_seed(seed, kind=kind)
        assert outcome.verdict != "false", (seed, outcome.findings)


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        pytest.param(700048, "safety", id="many-pushes-are-given-up"),
        pytest.param(710122, "safety", id="many-faults-find-nothing-to-strike"),
        pytest.param(700011, "liveness", id="tasks-take-long"),
        pytest.param(710092, "liveness", id="most-of-its-faults-come-late"),
    ],
)
def test_a_run_is_eventful_even_where(seed: int, kind: RunKind) -> None:
    outcome = run_seed(seed, kind=kind)
    assert outcome.verdict == "true", outcome.findings
    assert is_eventful(outcome), outcome


def test_a_world_that_sends_bytes_runs_to_the_same_end() -> None:
    outcomes = [run_seed(4, wire=wire) for wire in (False, True)]
    assert [outcome.verdict for outcome in outcomes] == ["true", "true"]
    assert outcomes[0].steps == outcomes[1].steps
    assert outcomes[0].acknowledged == outcomes[1].acknowledged


@many_seeds
def test_faults_that_spare_nothing_end_in_no_violation() -> None:
    for seed in range(10):
        outcome = run_seed(seed, careful=False)
        assert outcome.verdict != "false", (seed, outcome.findings)


def traces() -> str:
    return " ".join(run_seed(seed, kind=kind).trace for seed in (1,) for kind in KINDS)


KINDS: tuple[RunKind, ...] = ("safety", "liveness")


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    code = "import test_sim_runs as t; print(t.traces())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in range(2)
    ]
    found = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert set(found) == {traces()}

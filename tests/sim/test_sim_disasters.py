"""Clusters with an object store: checkpoints under faults, and coming back when all is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from resilient_ps.chaos.sim.drawing import DISASTER_WEIGHTS
from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Fault, Schedule, StoreFaultKind
from resilient_ps.chaos.sim.setup import LOSS_GRACE_S, Setup, schedule_of, setup_of, with_store
from resilient_ps.chaos.sim.workload import Workload
from resilient_ps.chaos.workloads.choice import SURVIVOR_CLOCK_NS, SURVIVOR_CLOCKS
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.training import Training
from resilient_ps.chaos.workloads.transfers import Transfers
from resilient_ps.consistency import ASP, BSP, SSP, Consistency

PLAIN = 23  # all servers come back at once, with as many shards as before; workers live on
TARGETS: dict[StoreFaultKind, tuple[str, ...]] = {"crash shard": ("shard:1",)}


def survivor(seed: int = 1) -> Setup:
    """A cluster that makes checkpoints, and soon notices that something is lost."""
    setup = with_store(Setup(), seed)
    assert setup.store is not None
    return replace(setup, store=replace(setup.store, loss_grace_s=LOSS_GRACE_S), disasters=1)


def transfers(mode: Consistency, schedule: Schedule, seed: int = 1) -> Outcome:
    return run_seed(
        seed, setup=survivor(seed), schedule=schedule, workload=lambda seed: Transfers(mode)
    )


HOWS = range(0, 100, 12)
HOWS_BY_DEFAULT = 24  # below
MODES = [BSP(), SSP(1), ASP()]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_in_a_calm_run_checkpoints_follow_each_other_and_hold_their_clocks(
    mode: Consistency,
) -> None:
    outcome = transfers(mode, ())
    assert outcome.verdict == "true", outcome.findings
    assert outcome.checkpoints >= 4
    assert outcome.rollbacks == 0


@pytest.mark.parametrize("kind", get_args(StoreFaultKind))
def test_a_single_fault_of_any_kind_is_performed_and_survived(kind: StoreFaultKind) -> None:
    fault = Fault(9_000, kind, TARGETS.get(kind, ()), 1_500, how=12_345)
    outcome = transfers(SSP(1), (fault,))
    assert outcome.verdict == "true", outcome.findings
    assert (outcome.faults, outcome.skipped) == (1, 0)
    assert outcome.rollbacks == (kind in DISASTER_WEIGHTS)


@pytest.mark.parametrize("first", ["store damage", "crash all"])
def test_the_only_checkpoint_and_what_needs_it_are_not_both_lost(first: StoreFaultKind) -> None:
    second: StoreFaultKind = "lose etcd" if first == "store damage" else "store damage"
    schedule = (Fault(4_000, first, (), 300, PLAIN), Fault(4_100, second, (), 300, PLAIN))
    outcome = transfers(SSP(1), schedule)
    assert outcome.verdict == "true", outcome.findings
    assert (outcome.faults, outcome.skipped) == (1, 1)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_order_is_carried_out_once_though_everything_is_lost_again_and_again(
    mode: Consistency,
) -> None:
    schedule = (
        Fault(3_000, "crash all", (), 300, PLAIN),
        Fault(10_000, "lose etcd", (), 300, PLAIN),
        Fault(14_000, "crash shard", ("shard:2",), 500),
    )
    outcome = transfers(mode, schedule)
    assert outcome.verdict == "true", outcome.findings
    assert outcome.rollbacks == 3


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=() if how < HOWS_BY_DEFAULT else pytest.mark.soak) for how in HOWS],
)
@pytest.mark.parametrize("kind", ["crash all", "lose etcd"])
def test_a_cluster_comes_back_on_one_server_and_in_any_number_of_shards(
    kind: StoreFaultKind, how: int
) -> None:
    outcome = transfers(SSP(1), (Fault(7_000, kind, (), 500, how),), seed=how)
    assert outcome.verdict == "true", outcome.findings
    assert outcome.rollbacks == 1


@pytest.mark.parametrize("seed", range(2))
def test_who_is_to_hold_every_write_is_waited_for_while_it_loads_its_part(seed: int) -> None:
    setup = replace(survivor(seed), min_in_sync=2)
    schedule = (Fault(7_000, "crash all", (), 300, PLAIN),)
    outcome = run_seed(seed, setup=setup, schedule=schedule, workload=lambda seed: Transfers(BSP()))
    assert outcome.verdict == "true", outcome.findings
    assert outcome.rollbacks == 1


@pytest.mark.parametrize("at_ms", [2_500, pytest.param(6_300, marks=pytest.mark.soak), 11_900])
def test_a_model_that_was_restored_ends_with_the_bytes_of_an_undisturbed_run(at_ms: int) -> None:
    def training(seed: int) -> Workload:
        return Training(clocks=SURVIVOR_CLOCKS, pace=Pace(SURVIVOR_CLOCK_NS))

    schedule = (Fault(at_ms, "crash all", (), 400),)
    outcome = run_seed(2, setup=survivor(), schedule=schedule, workload=training)
    assert outcome.verdict == "true", outcome.findings
    assert outcome.rollbacks == 1


def test_without_a_store_to_be_reached_training_goes_on() -> None:
    calm = transfers(SSP(1), ())
    cut_off = transfers(SSP(1), (Fault(100, "store down", (), 60_000),))
    assert cut_off.acknowledged == calm.acknowledged
    assert "false" not in {finding.verdict.outcome for finding in cut_off.findings}


def test_what_is_lost_before_the_first_checkpoint_begins_anew() -> None:
    outcome = transfers(ASP(), (Fault(100, "store down", (), 8_000), Fault(4_000, "crash all")))
    assert outcome.verdict == "true", outcome.findings
    assert outcome.rollbacks == 1


def traces() -> str:
    return " ".join(
        run_seed(seed, setup=setup, schedule=schedule_of(seed, setup)).trace
        for seed in (3,)
        for setup in [setup_of(seed, store=True)]
    )


def test_a_run_with_a_store_does_not_depend_on_the_hash_seed() -> None:
    code = "import test_sim_disasters as t; print(t.traces())"
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

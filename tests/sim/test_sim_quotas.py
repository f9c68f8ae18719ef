"""Quotas under faults: never exceeded at any moment, and used up in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.chaos.checkers.quotas import Sample, check_quota, check_used_up
from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.setup import setup_of
from resilient_ps.chaos.workloads.filling import RANKS, Filling
from resilient_ps.consistency import ASP, BSP, SSP, Consistency
from resilient_ps.guards import ALL_GUARDS, Guards

MODES: tuple[Consistency, ...] = (ASP(), BSP(), SSP(1))


def run(seed: int, *, guards: Guards = ALL_GUARDS) -> tuple[Outcome, Filling]:
    """No disasters: what was acknowledged may be gone after a rollback."""
    load = Filling(MODES[seed % len(MODES)])
    setup = setup_of(seed, store=False)
    return run_seed(seed, setup=setup, workload=lambda _: load, guards=guards), load


def told(outcome: Outcome) -> list[str]:
    return [f"{f.invariant}: {f.verdict.reasons}" for f in outcome.findings]


@pytest.mark.parametrize("seed", range(len(MODES)))
def test_a_quota_is_kept_and_used_up_whatever_dies(seed: int) -> None:
    outcome, load = run(seed)
    assert outcome.verdict == "true", told(outcome)
    assert outcome.faults > 0
    assert load.refused == set(range(RANKS))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 250))
def test_quotas_hold_in_many_runs(seed: int) -> None:
    outcome, _ = run(seed)
    assert outcome.verdict == "true", told(outcome)


def test_without_admission_the_checker_convicts() -> None:
    outcome, _ = run(0, guards=replace(ALL_GUARDS, quota_admission=False))
    assert outcome.verdict == "false"
    broken = [finding.invariant for finding in outcome.findings]
    assert "a quota is kept" in broken


def test_the_checker_sees_rows_allowances_and_waste() -> None:
    fine = Sample(0, {0: 4, 1: 5}, {0: 5, 1: 5})
    assert check_quota([fine], 10, 2).outcome == "true"
    assert check_quota([], 10, 2).outcome == "unknown"
    for wrong in (
        replace(fine, used={0: 6, 1: 5}),
        replace(fine, allowed={0: 5, 1: 6}),
        replace(fine, allowed={0: 3, 1: 5}),
    ):
        assert check_quota([fine, wrong], 10, 2).outcome == "false"
    assert check_quota([replace(fine, allowed={0: 50})], 10, 2).outcome == "true"  # half unknown
    assert check_used_up([fine], 10, 2).outcome == "true"
    assert check_used_up([fine], 11, 2).outcome == "false"

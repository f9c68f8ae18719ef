"""The bounds of BSP, SSP and ASP, judged from what workers saw. Stragglers come in every clock."""

from __future__ import annotations

import pytest
from sim_runs import MILLISECOND_NS, CountersRun

from resilient_ps.chaos.sim.faults import break_connections
from resilient_ps.consistency import ASP, BSP, SSP, Consistency
from resilient_ps.guards import Guards

MODES = [BSP(), SSP(0), SSP(1), SSP(3), ASP()]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_pull_sees_a_state_older_than_its_bound(seed: int, mode: Consistency) -> None:
    run = CountersRun(seed, mode)
    run.spawn_all()
    run.run()
    assert run.errors() == []
    assert run.staleness().outcome == "true", run.staleness()
    assert run.rows() == [run.clocks] * run.ranks


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_hold_while_connections_break(seed: int, mode: Consistency) -> None:
    run = CountersRun(seed, mode)
    until_ns = run.world.now_ns + 200 * MILLISECOND_NS
    break_connections(run.world, seed, every_ns=MILLISECOND_NS, until_ns=until_ns)
    run.spawn_all()
    run.run()
    assert run.errors() == []
    assert run.staleness().outcome == "true", run.staleness()
    assert run.rows() == [run.clocks] * run.ranks


def test_without_bound_asp_workers_run_further_ahead_than_ssp_allows() -> None:
    run = CountersRun(0, ASP(), clocks=12)
    run.spawn_all()
    run.run()
    run.mode = SSP(0)
    assert run.staleness().outcome == "false"


@pytest.mark.parametrize("mode", [BSP(), SSP(0), SSP(1)], ids=str)
def test_control_without_the_gate_stale_pulls_are_convicted(mode: Consistency) -> None:
    outcomes = set()
    for seed in range(3):
        run = CountersRun(seed, mode, Guards(staleness_gate=False), clocks=12)
        run.spawn_all()
        run.run()
        outcomes.add(run.staleness().outcome)
    assert "false" in outcomes


def test_control_without_the_barrier_early_updates_under_bsp_are_convicted() -> None:
    reasons: list[str] = []
    for seed in range(3):
        run = CountersRun(seed, BSP(), Guards(barrier=False))
        run.spawn_all()
        run.run()
        reasons += run.staleness().reasons
    assert any("must contain no more" in reason for reason in reasons)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_bounds_hold_for_many_seeds(mode: Consistency) -> None:
    for seed in range(100, 200):
        test_the_bounds_hold_while_connections_break(seed, mode)

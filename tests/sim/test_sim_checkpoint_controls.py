"""Each rule of checkpoints and rollbacks is needed: without it a cluster is convicted.

As in `test_sim_negative_controls`: the same run with the rule kept breaks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from checkpoint_scene import LIMIT_S, SECOND_NS, Scene, Step

from resilient_ps.chaos.checkers.published import check_published
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Fault, Schedule
from resilient_ps.chaos.sim.setup import LOSS_GRACE_S, Setup, with_store
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.transfers import PACE, Transfers
from resilient_ps.consistency import ASP
from resilient_ps.guards import ALL_GUARDS, Guards

SEEDS_TRIED = 30


@dataclass(frozen=True)
class Control:
    """A rule that is switched off, what goes wrong in the runs, and what is to be found broken."""

    name: str
    guards: Guards
    breaks: str
    schedule: Schedule = ()
    pace: Pace = PACE


CONTROLS = [
    Control(
        "cut overlay",
        Guards(cut_overlay=False),
        "a checkpoint is a consistent cut",
        pace=Pace(400_000_000),  # so that ranks push while images are being made
    ),
    Control("sweeping", Guards(sweep_unused_only=False), "nothing that is needed is deleted"),
    Control(
        "incarnation check",
        Guards(incarnation_check=False),
        "no worker fails",
        tuple(Fault(at_ms, "roll back") for at_ms in (6_000, 10_100, 14_300, 18_400)),
    ),
]


def judged(control: Control, seed: int, guards: Guards) -> Outcome:
    setup = with_store(Setup(), seed)
    assert setup.store is not None
    setup = replace(setup, store=replace(setup.store, loss_grace_s=LOSS_GRACE_S), disasters=1)
    return run_seed(
        seed,
        guards=guards,
        setup=setup,
        schedule=control.schedule,
        workload=lambda seed: Transfers(ASP(), pace=control.pace),
    )


@pytest.mark.no_cover  # many runs of the same lines
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_a_rule_a_cluster_is_convicted(control: Control) -> None:
    for seed in range(SEEDS_TRIED):
        if control.breaks in judged(control, seed, control.guards).broken:
            assert judged(control, seed, ALL_GUARDS).verdict == "true"
            return
    pytest.fail(f"{SEEDS_TRIED} seeds convict nobody")


def published_by_a_sleeper(guards: Guards) -> Verdict:
    """A coordinator stands still when its manifest is written, and publishes when it wakes up.

    By then its successor has given that checkpoint up and swept it away, or published and deleted
    it, and has made later ones.
    """
    scene = Scene(guards, Pace(SECOND_NS))
    sleeping: list[Process] = []

    def at(step: Step, process: Process | None) -> None:
        if step.when == "after" and "manifest" in step.what and process and not sleeping:
            sleeping.append(process)
            process.pause(8 * SECOND_NS)

    scene.at = at
    assert scene.world.wait_for(lambda: bool(sleeping), LIMIT_S)
    assert scene.world.wait_for(lambda: not sleeping[0].paused, LIMIT_S)
    scene.world.run_to(scene.world.now_ns + SECOND_NS)
    assert len(scene.archive.good()) >= 1
    assert len(scene.archive.published) >= 3
    return check_published(scene.archive.published)


def test_a_deposed_coordinator_publishes_nothing() -> None:
    assert published_by_a_sleeper(ALL_GUARDS).outcome == "true"
    convicted = published_by_a_sleeper(Guards(guarded_publishing=False))
    assert convicted.outcome == "false"
    assert any("is missing" in reason for reason in convicted.reasons), convicted

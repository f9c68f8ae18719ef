"""Whoever dies at whatever step of a checkpoint: the one before is usable, a later one succeeds.

A run without faults tells the steps: every object that is written or deleted, and everything that
etcd is told of checkpoints, from one publication to the end of what follows the next one. Then the
same run is made again for each step, and at that step the process that took it dies, or the
coordinator, or all servers at once, which have to restore then. The default run takes the first
step of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import pytest
from checkpoint_scene import LIMIT_S, SECOND_NS, SEED, Scene, Step, Victim

from resilient_ps.chaos.checkers.published import check_published, check_swept
from resilient_ps.chaos.sim.outcome import RunRecord
from resilient_ps.chaos.sim.process import Process


@cache
def calm_steps() -> tuple[Step, ...]:
    """The steps of a run in which nobody dies, up to the end of two more checkpoints."""
    scene = Scene()
    assert scene.world.wait_for(lambda: len(scene.archive.published) >= 3, LIMIT_S)
    scene.world.run_to(scene.world.now_ns + SECOND_NS // 4)
    return tuple(scene.steps)


def test_the_steps_are_those_of_whole_checkpoints() -> None:
    told = [step.what for step in calm_steps()]
    assert any("chunks" in what for what in told)
    assert any("index" in what for what in told)
    assert any("manifest" in what for what in told)
    assert any("delete" in what for what in told)
    assert any("put checkpoint" in what for what in told)
    assert any("put intent" in what for what in told)


def crash_at(step: Step, victim: Victim) -> None:
    """Make the run in which the victim dies at this step, and look at what remains."""
    scene, died = Scene(), []

    def at(now: Step, process: Process | None) -> None:
        if now == step and not died:
            died.append(now)
            scene.kill(victim, process)

    scene.at = at
    assert scene.world.wait_for(lambda: bool(died), LIMIT_S), (step, victim)
    archive = scene.archive
    known = archive.good()
    assert known, "no checkpoint is left"
    assert [archive.problem(record) for record in known] == [""] * len(known), (step, victim)
    newest, incarnation = known[-1].number, 1 + (victim == "all servers")
    succeeds = scene.world.wait_for(lambda: scene.later(newest, incarnation), LIMIT_S)
    assert succeeds, (step, victim)
    assert scene.cluster.incarnation == incarnation
    scene.load.stop()
    rest = scene.world.wait_for(lambda: scene.load.finished and scene.cluster.settled(), LIMIT_S)
    assert rest, (step, victim, scene.cluster.unsettled())
    run = RunRecord(scene.cluster, "safety", SEED, (), (), True, scene.world.now_ns)
    wrong = [finding for finding in scene.load.judge(run) if finding.verdict.outcome != "true"]
    assert not wrong, (step, victim, wrong)
    assert check_published(archive.published).outcome == "true", (step, victim)
    assert check_swept(archive.sweeps).outcome == "true", (step, victim)


def steps_of_each_kind() -> list[Step]:
    """The first step of each kind: whatever the numbers in the names of its objects."""
    first: dict[tuple[str, str], Step] = {}
    for step in calm_steps():
        first.setdefault((step.when, re.sub("[0-9]{4,}", "", step.what)), step)
    return list(first.values())


def crash_at_each(steps: Iterable[Step], victim: Victim) -> None:
    for step in steps:
        if victim != "the process" or not step.what.startswith("etcd"):
            crash_at(step, victim)


victims = pytest.mark.parametrize("victim", ["the process", "the coordinator", "all servers"])


@pytest.mark.no_cover  # many runs of the same lines
@victims
def test_a_crash_at_each_kind_of_step_leaves_a_usable_checkpoint_and_a_later_one_succeeds(
    victim: Victim,
) -> None:
    crash_at_each(steps_of_each_kind(), victim)


@pytest.mark.soak
@pytest.mark.timeout(300)
@victims
def test_a_crash_at_any_step_leaves_a_usable_checkpoint_and_a_later_one_succeeds(
    victim: Victim,
) -> None:
    crash_at_each(calm_steps(), victim)

"""Plays a scenario on a cluster of its own, and says what came of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.ending import versions
from resilient_ps.chaos.live.judging import judged, overall
from resilient_ps.chaos.live.onlooker import Onlooker
from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.live.scenarios.catalogue import scenario
from resilient_ps.chaos.live.scenarios.stage import DEADLINE_S, Stage, stage_plan
from resilient_ps.chaos.live.scene import Skipped
from resilient_ps.chaos.result import Counts, Judged, RunResult
from resilient_ps.client.connection import connect
from resilient_ps.errors import ResilientPsError


def play(plan: RunPlan, onlooker: Onlooker, *, keep: Path | None = None) -> RunResult:
    """The scenario that the plan names, on servers without what it says is to be switched off.

    Raises `BadInput` for what there is not, `Unavailable` when the cluster does not come up.
    """
    chosen = scenario(plan.scenario)
    began, begun_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    onlooker.phase("starting")
    with ChaosCluster(stage_plan(plan.unsafe_disable, keep)) as scene:
        with connect(scene.public_etcd, scene.cluster, deadline_s=DEADLINE_S) as client:
            stage = Stage(scene, client, onlooker.say)
            onlooker.phase(chosen.text)
            found: list[Judged] = []
            problems: list[str] = []
            try:
                found += [judged(name, said) for name, said in chosen.play(stage).items()]
            except (ResilientPsError, Skipped) as error:
                problems.append(f"the scenario could not be played: {error}")
        verdict, why = overall(found, problems)
        outcomes = [push.outcome for push in stage.history.operations("push")]
        return RunResult(
            seed=plan.seed,
            command=plan.command(),
            workload=f"scenario {chosen.name}",
            verdict=verdict,
            why=why,
            judged=tuple(found),
            faults=tuple(stage.struck),
            samples=(),
            reigns=(),
            outages=(),
            recovery=(),
            counts=Counts(
                acknowledged=outcomes.count("ok"),
                failed=outcomes.count("fail"),
                unknown=outcomes.count("unknown"),
                pulls=len(stage.history.operations("pull")),
            ),
            settings=plan.settings(),
            versions=versions(),
            logs={name: str(path) for name, path in scene.logs.items()},
            began=began,
            seconds=round(time.monotonic() - begun_s, 1),
            healed_s=round(stage.now_s, 2),
        )

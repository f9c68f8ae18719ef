"""Plans of runs: what repeats one, and what a report may hold of one."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import pytest

from resilient_ps.chaos.live.run_plan import RunPlan, plan_from
from resilient_ps.errors import BadInput

PLANS = (
    RunPlan(),
    RunPlan(seed=7, duration_s=12.5, faults=("kill", "lose-answer"), workload="transfer"),
    RunPlan(servers=3, workers=2, replicas=3, etcd=1, store="", consistency="ssp:3"),
    RunPlan(workload="script", script=("/x/my train.py", "--epochs", "3"), lease_ttl_s=5),
    RunPlan(liveness=True, store="s3://bucket/prefix"),
)


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_read_from_a_report_as_it_was(plan: RunPlan) -> None:
    assert plan_from(plan.settings(), "run.json.settings") == plan


@pytest.mark.parametrize("plan", PLANS)
def test_the_command_has_every_word_that_differs_from_the_default(plan: RunPlan) -> None:
    words = shlex.split(plan.command())
    assert words[:3] == ["resilient-ps", "chaos", "run"]
    told = dict(itertools.pairwise(words))
    assert told["--seed"] == str(plan.seed)
    assert told.get("--duration", "60s") == f"{plan.duration_s:g}s"
    assert told.get("--faults", "") == ",".join(plan.faults)
    assert told.get("--store", "seaweedfs") == (plan.store or "none")
    assert told.get("--consistency", "") == plan.consistency
    assert ("--liveness" in words) == plan.liveness
    if plan.script:
        assert tuple(shlex.split(told["--script"])) == plan.script
        assert "--workload" not in words
    else:
        assert told["--workload"] == plan.workload


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": "7"}, "settings.seed: a whole number"),
        ({"seed": -1}, "--seed -1"),
        ({"more": 1}, "there is no field 'more'"),
        ({"duration_s": 1}, "--duration 1: use 3 to"),
        ({"workload": "nope"}, "--workload: there is no 'nope'"),
        ({"faults": ["nope"]}, "no fault 'nope'"),
        ({"servers": 1000}, "--servers 1000"),
        ({"replicas": 0}, "--replicas 0"),
        ({"liveness": True, "servers": 2}, "--liveness"),
    ],
)
def test_what_a_report_may_not_hold_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        plan_from({**RunPlan().settings(), **change}, "settings")

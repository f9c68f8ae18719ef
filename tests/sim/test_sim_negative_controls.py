"""Each rule of the protocol is needed: without it a cluster is convicted, with it it is not.

A control is a cluster, or a worker, with one rule switched off, and faults that are aimed at that
rule (`directed`) or drawn at random. When this was written seeds 0 to 2 convicted all of them, or
the control says which one did; a change of the product may move that, so some more seeds are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import directed
import numpy as np
import pytest
import sabotage

from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Schedule
from resilient_ps.chaos.sim.setup import Setup, schedule_of
from resilient_ps.chaos.workloads.choice import draw_flavour
from resilient_ps.chaos.workloads.crew import Prepared
from resilient_ps.chaos.workloads.mixed import Mixed
from resilient_ps.guards import ALL_GUARDS, Guards

SEEDS_TRIED = 30

Schedules = Callable[[int], Schedule]


@dataclass(frozen=True)
class Control:
    """A rule that is broken by `guards`, or by workers."""

    name: str
    guards: Guards
    schedules: Schedules
    setup: Setup = field(default_factory=Setup)
    workers: Prepared | None = None
    honest: Prepared | None = None  # what workers do when the rule is kept
    first_seed: int = 0


def aimed(pattern: directed.Pattern, clocks: tuple[int, ...] = directed.CLOCKS) -> Schedules:
    return partial(directed.directed, pattern, clocks=clocks)


CONTROLS = [
    Control("deduplication", Guards(deduplication=False), schedule_of),
    Control("replicated ledger", Guards(replicated_ledger=False), schedule_of),
    Control("fencing", Guards(fencing=False), schedule_of),
    Control("lease check", Guards(lease_check=False), schedule_of),
    Control("members only", Guards(members_only=False), schedule_of),
    Control(
        "wait for backups",
        Guards(wait_for_backups=False),
        aimed(directed.die_before_backups_hold),
    ),
    Control(
        "repeat after commit",
        Guards(repeat_after_commit=False),
        aimed(directed.ask_again_before_backups_hold, directed.OTHER_CLOCKS),
    ),
    Control(
        "apply after commit",
        Guards(apply_after_commit=False),
        aimed(directed.vanish_when_one_of_two_backups_holds),
        setup=Setup(replicas=3, min_in_sync=2),
    ),
    Control(
        "log matching",
        Guards(log_matching=False),
        aimed(directed.vanish_when_one_of_two_backups_holds),
        setup=Setup(replicas=3),
        first_seed=20,
    ),
    Control("epoch check", Guards(epoch_check=False), aimed(directed.hold_entries_back)),
    Control("count before growth", Guards(count_before_growth=False), aimed(directed.grow_and_die)),
    Control(
        "position check",
        Guards(position_check=False),
        aimed(directed.depose_a_sleeping_primary),
        workers=sabotage.wander_and_forget,
        honest=sabotage.wander,
    ),
    Control(
        "tick after pushes",
        ALL_GUARDS,
        aimed(directed.tick_without_a_shard),
        workers=sabotage.tick_at_once,
    ),
]


def judged(control: Control, seed: int, *, broken: bool) -> Outcome:
    """The control's run, with its rule broken or kept."""
    workers = control.workers if broken else control.honest

    def workload(seed: int) -> Mixed:
        rng = np.random.Generator(np.random.PCG64([seed, 5]))
        return Mixed(draw_flavour(rng), workers)

    return run_seed(
        seed,
        guards=control.guards if broken else ALL_GUARDS,
        schedule=control.schedules(seed),
        setup=control.setup,
        workload=workload,
    )


def smallest(control: Control, seeds: range) -> tuple[int, tuple[str, ...]] | None:
    """The first of these seeds that convicts the control, and the promises that it broke.

    The same seed with the rule kept breaks nothing: so it is the rule that was missed.
    """
    for seed in seeds:
        outcome = judged(control, seed, broken=True)
        if outcome.verdict == "false" and judged(control, seed, broken=False).verdict != "false":
            return seed, outcome.broken
    return None


@pytest.mark.no_cover  # many runs of the same lines
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_a_rule_a_cluster_is_convicted(control: Control) -> None:
    seeds = range(control.first_seed, control.first_seed + SEEDS_TRIED)
    assert smallest(control, seeds) is not None


SETUPS = [Setup(), Setup(replicas=3), Setup(min_in_sync=2), Setup(replicas=3, min_in_sync=2)]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_with_the_rule_many_seeds_of_these_faults_break_nothing(
    control: Control, setup: Setup
) -> None:
    for seed in range(50):
        outcome = judged(replace(control, setup=setup), seed, broken=False)
        assert outcome.verdict != "false", (seed, outcome.findings)

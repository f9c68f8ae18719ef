"""Which cluster a seed runs, what is done in it, and what goes wrong.

Every fourth seed has an object store: servers make checkpoints, and the store has faults of its
own. In half of these there are disasters too, which no replica survives, so that the cluster has to
go back to a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from resilient_ps.chaos.sim.drawing import Shape, draw_schedule
from resilient_ps.chaos.sim.schedule import Schedule
from resilient_ps.checkpoints.settings import CheckpointSettings

STORE_EVERY = 4
"""One seed of so many has an object store, if nobody asks for another share."""
STORE_FAULTS = 3
LOSS_GRACE_S = 2.0
RANKS = (0, 1, 2)
TASKS_SHARE = 0.15  # of the seeds, if nobody asks for another workload
HOLDER_RECIPES = 2
_STREAM = 0x7A5C  # so that the choice is drawn from other numbers than the schedule

WorkloadName: TypeAlias = Literal["mixed", "training", "transfers", "tasks"]

CHECKPOINTS = CheckpointSettings(every_clocks=3, every_s=3.0, keep_last=2, cut_deadline_s=8.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """The cluster of a run. `store`: what servers are told of checkpoints; None: no object store.

    `workload`: None: as the seed decides, but no tasks.
    `disasters`: how many faults strike that no replica survives. `list_lag_s`: how much older what
    the object store's listings show is.
    """

    servers: int = 3
    shards: int = 4
    replicas: int = 2
    min_in_sync: int = 1
    lease_ttl_s: int = 2
    store: CheckpointSettings | None = None
    disasters: int = 0
    list_lag_s: int = 0
    workload: WorkloadName | None = None


def setup_of(
    seed: int, *, store: bool | None = None, workload: WorkloadName | None = None
) -> Setup:
    """Most seeds have two replicas, some three, or demand two in-sync members for a write.

    `store`: all of them have an object store, or none; None: see the module. `workload`: all of
    them have this one; None: as the seed decides.
    """
    drawn = np.random.Generator(np.random.PCG64((seed, _STREAM))).random()
    if workload is None and drawn < TASKS_SHARE:
        workload = "tasks"
    setup = {
        7: Setup(replicas=3),
        13: Setup(replicas=3, min_in_sync=2),
        17: Setup(min_in_sync=2),
    }.get(seed % 20, Setup())
    setup = replace(setup, workload=workload)
    if store is False or (store is None and seed % STORE_EVERY != STORE_EVERY - 1):
        return setup
    return with_store(setup, seed)


def with_store(setup: Setup, seed: int) -> Setup:
    """The same cluster with an object store, and with disasters in every second of such seeds."""
    number = seed // STORE_EVERY
    disasters = 1 + number // 2 % 2 if number % 2 else 0
    settings = replace(CHECKPOINTS, loss_grace_s=LOSS_GRACE_S) if disasters else CHECKPOINTS
    return replace(setup, store=settings, disasters=disasters, list_lag_s=number % 3 * 2)


def schedule_of(seed: int, setup: Setup | None = None) -> Schedule:
    """The faults of a seed."""
    setup = setup or setup_of(seed)
    servers = tuple(f"s{number + 1}" for number in range(setup.servers))
    shape = Shape(servers, setup.shards, RANKS, 1_000 * setup.lease_ttl_s)
    if setup.store is not None:
        shape = replace(shape, store_faults=STORE_FAULTS, disasters=setup.disasters)
    if setup.workload == "tasks":
        shape = replace(shape, holder_recipes=HOLDER_RECIPES)
    return draw_schedule(seed, shape)

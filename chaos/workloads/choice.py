"""Which workload a seed runs: the mode, how patient its workers are, and who visits."""

from __future__ import annotations

import numpy as np

from resilient_ps.chaos.sim.setup import Setup
from resilient_ps.chaos.sim.workload import Workload
from resilient_ps.chaos.workloads.crew import Prepared
from resilient_ps.chaos.workloads.guest import Visit
from resilient_ps.chaos.workloads.mixed import Flavour, Mixed
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.tasks import SURVIVOR_STEPS, SURVIVOR_TASK_NS, TaskLoad
from resilient_ps.chaos.workloads.training import Training
from resilient_ps.chaos.workloads.transfers import Transfers
from resilient_ps.consistency import ASP, BSP, SSP, Consistency

SECOND_NS = 10**9
DEADLINES_NS = (3 * SECOND_NS, 8 * SECOND_NS, 20 * SECOND_NS)
SURVIVOR_CLOCKS = 16  # more of them, and shorter, so that there are checkpoints to go back to
SURVIVOR_CLOCK_NS = 1_400_000_000
SURVIVOR_SPARSE_PUSHES = 4  # of a clock: there are more than enough of them
_STREAM = 0x10AD  # so that the choice is drawn from other numbers than the schedule


def workload_of(seed: int, setup: Setup) -> Workload:
    """The workload of a seed, on this cluster."""
    rng = np.random.Generator(np.random.PCG64((seed, _STREAM)))
    survives = setup.disasters > 0
    match setup.workload:
        case "tasks" if survives:
            return TaskLoad(steps=SURVIVOR_STEPS, task_ns=SURVIVOR_TASK_NS)
        case "tasks":
            return TaskLoad()
        case "training":
            return _training(None, survives=survives)
        case "transfers":
            return Transfers(_survivors_mode(rng))
        case "mixed":
            return Mixed(draw_flavour(rng))
        case None:
            return choose_survivor(seed) if survives else choose_workload(seed)


def choose_workload(seed: int, prepared: Prepared | None = None) -> Workload:
    """The workload of a seed. `prepared` is called with every worker before it begins."""
    rng = np.random.Generator(np.random.PCG64((seed, _STREAM)))
    if rng.random() < 0.15:
        return Training(prepared)
    return Mixed(draw_flavour(rng), prepared)


def choose_survivor(seed: int, prepared: Prepared | None = None) -> Workload:
    """The workload of a seed whose cluster may have to go back to a checkpoint."""
    rng = np.random.Generator(np.random.PCG64((seed, _STREAM)))
    if rng.random() < 0.3:
        return _training(prepared, survives=True)
    return Transfers(_survivors_mode(rng), prepared)


def _training(prepared: Prepared | None, *, survives: bool) -> Training:
    if survives:
        pace = Pace(SURVIVOR_CLOCK_NS)
        return Training(
            prepared, clocks=SURVIVOR_CLOCKS, pace=pace, sparse_pushes=SURVIVOR_SPARSE_PUSHES
        )
    return Training(prepared)


def _survivors_mode(rng: np.random.Generator) -> Consistency:
    modes: tuple[Consistency, ...] = (BSP(), SSP(0), SSP(2), ASP())
    return modes[int(rng.integers(len(modes)))]


def draw_flavour(rng: np.random.Generator) -> Flavour:
    """A seeded choice of what is mixed."""
    modes: tuple[Consistency, ...] = (BSP(), SSP(0), SSP(1), SSP(3), ASP(), ASP())
    mode = modes[int(rng.integers(len(modes)))]
    deadline_ns = DEADLINES_NS[int(rng.integers(len(DEADLINES_NS)))]
    visit = None
    if rng.random() < 0.3:
        joins_ns = int(rng.uniform(3, 9) * SECOND_NS)
        leaves_ns = joins_ns + int(rng.uniform(4, 10) * SECOND_NS)
        dies_ns = (joins_ns + leaves_ns) // 2 if rng.random() < 0.5 else 0
        visit = Visit(joins_ns, leaves_ns, dies_ns)
    return Flavour(mode, deadline_ns, visit=visit)

"""The shortest schedule that still breaks what a run broke: which of its faults matter."""

from __future__ import annotations

from collections.abc import Callable

from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.chaos.sim.schedule import Schedule

RUNS_MAX = 60


def minimise(
    failed: Outcome, again: Callable[[Schedule], Outcome], *, runs_max: int = RUNS_MAX
) -> Outcome:
    """The outcome of the shortest schedule found; `again` runs the same seed under another one.

    Faults are taken out in blocks, first halves of the schedule, at last single ones, as long as
    one of the same invariants is broken (delta debugging, Zeller and Hildebrandt 2002).
    """
    best, runs, blocks = failed, 0, 2
    while best.schedule and runs < runs_max:
        size = max(1, -(-len(best.schedule) // blocks))
        shorter = None
        for start in range(0, len(best.schedule), size):
            if runs >= runs_max:
                break
            rest = best.schedule[:start] + best.schedule[start + size :]
            outcome, runs = again(rest), runs + 1
            if set(outcome.broken) & set(failed.broken):
                shorter = outcome
                break
        if shorter is not None:
            best, blocks = shorter, max(2, blocks - 1)
        elif size == 1:
            break
        else:
            blocks *= 2
    return best

"""When a checkpoint is due without anybody asking for it.

`every_clocks`: when any job has gone so many clocks beyond the newest checkpoint. `every_s`: when
the newest one is so old. `auto`: as `every_s`, with the interval that loses least to checkpoints
and to failures together: sqrt(2 * cost * mean time between failures), as found by J. W. Young ("A
first order approximation to the optimum checkpoint interval", CACM 1974) and refined by J. T. Daly
(2006) for intervals that are not much longer than the cost, which the bounds here exclude. The cost
is how long the last checkpoints would have taken without rests (they took longer by the share of
the time that servers upload in), which is more than what they really cost, because training goes on
meanwhile: so the interval is rather too long than too short.

Nothing is due where nothing has moved since the newest checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.checkpoints.clocks import Span
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.coordinator.view import ClusterView

COSTS_KEPT = 5
FIRST_S = 60.0  # the first one under `auto`: to see what it costs
AUTO_LEAST_S, AUTO_MOST_S = 10.0, 6 * 3_600.0
COSTS_MOST = 0.2  # of the time: an interval is at least five times as long as a checkpoint takes
HOUR_S = 3_600.0
OLD_INTERVALS = 3  # a newest checkpoint that is older is a reason to worry

Chosen: TypeAlias = Literal["auto", "every_s", "none"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between two checkpoints, and who has chosen them; 0: none are made by time."""

    seconds: float
    chosen: Chosen
    cost_s: float | None = None


def interval(settings: CheckpointSettings, view: ClusterView) -> Interval:
    """The interval as of now. Under `auto` it follows what checkpoints cost."""
    cost_s = cost(view)
    if settings.auto:
        paid_s = None if cost_s is None else cost_s * settings.upload_share
        return Interval(auto_s(paid_s, settings.mtbf_h), "auto", cost_s)
    if settings.every_s:
        return Interval(settings.every_s, "every_s", cost_s)
    return Interval(0.0, "none", cost_s)


def cost(view: ClusterView) -> float | None:
    """Seconds that the last few checkpoints took (their mean); None before the first."""
    took = [
        float(intent.result["took_s"])
        for intent in view.intents
        if intent.kind == "cut"
        and intent.state == "done"
        and isinstance(intent.result.get("took_s"), int | float)
    ]
    last = took[-COSTS_KEPT:]
    return sum(last) / len(last) if last else None


def auto_s(cost_s: float | None, mtbf_h: float) -> float:
    """See the module."""
    if cost_s is None:
        return FIRST_S
    chosen = math.sqrt(2.0 * max(cost_s, 0.0) * mtbf_h * HOUR_S)
    return min(AUTO_MOST_S, max(AUTO_LEAST_S, cost_s / COSTS_MOST, chosen))


def has_moved(
    view: ClusterView, spans: Mapping[int, Span], newest: CheckpointRecord | None
) -> bool:
    """Has anything been ticked or pushed since this checkpoint?"""
    clocks = {} if newest is None else newest.clocks
    return any(
        job.job_id in spans and spans[job.job_id].held != clocks.get(job.name, 0)
        for job in view.jobs
    )


def clocks_due(
    every_clocks: int,
    view: ClusterView,
    spans: Mapping[int, Span],
    newest: CheckpointRecord | None,
) -> str:
    """Which job has gone far enough; "" if none has, or none is to."""
    clocks = {} if newest is None else newest.clocks
    for job in view.jobs if every_clocks else ():
        held = spans[job.job_id].held if job.job_id in spans else 0
        known = clocks.get(job.name, 0)
        if held - (known if known <= held else 0) >= every_clocks:  # else it has begun anew since
            return job.name
    return ""

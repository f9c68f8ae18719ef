"""The workload, second by second."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Protocol

from resilient_ps.chaos.faults.figures import percentile
from resilient_ps.chaos.live.workload import Progress
from resilient_ps.chaos.result import Sample

EVERY_S = 1.0


class Progressing(Protocol):
    """Whose progress is sampled."""

    def progress(self) -> Progress:
        """What has happened since the last time."""
        ...


@dataclass(slots=True)
class Sampling:
    """Samples so far. `clock_since_s`: by rank, since when its clock has been what it is."""

    workload: Progressing
    samples: list[Sample] = field(default_factory=list)
    clock_since_s: dict[int, float] = field(default_factory=dict)
    _next_s: float = EVERY_S

    def begin(self) -> None:
        """The run begins now: what was before is no part of it."""
        self.workload.progress()

    def look(self, at_s: float, checkpoints: int) -> None:
        """Take a sample if it is time for one."""
        if at_s < self._next_s:
            return
        self._next_s = max(self._next_s + EVERY_S, at_s + EVERY_S / 2)
        told = self.workload.progress()
        median_s, p99_s = math.nan, math.nan
        if told.latencies_s:
            median_s = statistics.median(told.latencies_s)
            p99_s = percentile(told.latencies_s, 99)
        before = self.samples[-1].clocks if self.samples else ()
        for rank, clock in enumerate(told.clocks):
            if rank >= len(before) or clock != before[rank]:
                self.clock_since_s[rank] = at_s
        sample = Sample(
            at_s=round(at_s, 2),
            pushes=told.pushes,
            pulls=told.pulls,
            latency_median_s=round(median_s, 5),
            latency_p99_s=round(p99_s, 5),
            clocks=told.clocks,
            checkpoints=checkpoints,
        )
        self.samples.append(sample)

    @property
    def last(self) -> Sample | None:
        """The latest."""
        return self.samples[-1] if self.samples else None

"""When the clocks of a workload are due, so that its work is spread over the time of a run."""

from __future__ import annotations

from dataclasses import dataclass

STAGGER_NS = 37_000_000  # ranks do not do everything at the same moment


@dataclass(frozen=True, slots=True)
class Pace:
    """A clock every `clock_ns`: who is behind goes on without waiting until it is abreast again."""

    clock_ns: int = 3_500_000_000

    def due_ns(self, rank: int, clock: int, part: float) -> int:
        """When this part (0: begin, 1: end) of the clock is due, from the start of the run."""
        return int((clock - 1 + part) * self.clock_ns) + rank * STAGGER_NS

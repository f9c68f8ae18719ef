"""What has come of the runs of `resilient-ps simulate` so far: counted, and at what rate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.chaos.sim.outcome import Outcome
from resilient_ps.cli.exits import EXIT_NEGATIVE

EXIT_UNKNOWN = 2


class Extent(NamedTuple):
    """How much happens in a run."""

    virtual_s: float
    faults: int
    acknowledged: int  # pushes

    def least(self, other: Extent) -> Extent:
        """The smaller one of each."""
        return Extent(
            min(self.virtual_s, other.virtual_s),
            min(self.faults, other.faults),
            min(self.acknowledged, other.acknowledged),
        )

    def __str__(self) -> str:
        return (
            f"{self.virtual_s:.1f} virtual s, {self.faults} faults, "
            f"{self.acknowledged} acknowledged pushes"
        )


@dataclass(slots=True)
class Tally:
    """What has come of the runs so far. `processes`: in which they are made."""

    begun_s: float
    runs_per_seed: int = 1
    processes: int = 1
    runs: int = 0
    held: int = 0
    violated: list[Outcome] = field(default_factory=list)
    unknown: list[Outcome] = field(default_factory=list)
    lost: int = 0  # runs in which a shard lost all its members, for good
    checkpoints: int = 0
    rollbacks: int = 0
    faults: int = 0
    acknowledged: int = 0
    virtual_s: float = 0.0
    least: Extent | None = None  # of each, of the runs that lost no shard: others end early
    ended_s: float = 0.0

    def take(self, outcome: Outcome) -> None:
        """Count one run."""
        self.runs += 1
        self.held += outcome.verdict == "true"
        self.lost += bool(outcome.lost_shards)
        self.checkpoints += outcome.checkpoints
        self.rollbacks += outcome.rollbacks
        self.faults += outcome.faults
        self.acknowledged += outcome.acknowledged
        self.virtual_s += outcome.virtual_s
        if not outcome.lost_shards:
            extent = Extent(outcome.virtual_s, outcome.faults, outcome.acknowledged)
            self.least = extent if self.least is None else self.least.least(extent)
        if outcome.verdict == "false":
            self.violated.append(outcome)
        elif outcome.verdict == "unknown":
            self.unknown.append(outcome)
        self.ended_s = time.monotonic()

    @property
    def exit_code(self) -> int:
        """How the command ends: see `simulate`."""
        if self.violated:
            return EXIT_NEGATIVE
        return EXIT_UNKNOWN if self.unknown else 0

    @property
    def seeds_per_s(self) -> float:
        """Seeds per second of real time, by all processes together."""
        return self.runs / self.runs_per_seed / max(self.ended_s - self.begun_s, 1e-9)

    @property
    def rate(self) -> str:
        """The same, for people."""
        text = f"{self.seeds_per_s:.1f} seeds/s"
        if self.runs_per_seed > 1:
            text += f" ({self.runs_per_seed} runs each)"
        if self.processes > 1:
            text += f", {self.seeds_per_s / self.processes:.1f} per process"
        return text

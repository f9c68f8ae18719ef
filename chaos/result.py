"""The result of a run on real processes, as plain data: what the report shows and `--json` writes.

Times are seconds of the run: 0 is when the workload had begun and the faults could begin.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from resilient_ps.chaos.faults.planned import Struck
from resilient_ps.chaos.records_of_json import MAY_BE_NAN, read_record
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import short

FORMAT = "resilient-ps chaos run"
VERSION = 1

RunVerdict: TypeAlias = Literal["held", "violated", "unknown"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a checker says: `outcome` is "true", "false" or "unknown"; its first reasons."""

    checker: str
    outcome: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The workload during the second that ended at `at_s`. Latencies of pushes; nan without any.

    `clocks`: by rank, the last one that was ticked. `checkpoints`: so many there are.
    """

    at_s: float
    pushes: int
    pulls: int
    latency_median_s: float = field(metadata=MAY_BE_NAN)
    latency_p99_s: float = field(metadata=MAY_BE_NAN)
    clocks: tuple[int, ...]
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class Reign:
    """A server led a shard in an epoch ("incarnation.counter"). `server` "": nobody did."""

    shard: int
    server: str
    epoch: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A shard acknowledged nothing from one moment to another. `fault`: the number of the planned
    fault that it is put down to; -1: none."""

    shard: int
    from_s: float
    to_s: float
    fault: int = -1


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outages of one kind of fault: of each fault, the longest of any shard (0: none)."""

    kind: str
    faults: int
    median_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """`unknown`: pushes without an outcome. `false_failovers`: of a shard whose primary's process
    was neither struck by a fault nor cut off. `copied_bytes`: of shards that were copied anew."""

    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    pulls: int = 0
    failovers: int = 0
    false_failovers: int = 0
    copied_bytes: int = 0
    checkpoints: int = 0
    rollbacks: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """All there is to say of one run."""

    seed: int
    command: str  # that repeats it
    workload: str
    verdict: RunVerdict
    why: str  # of "unknown": what could not be run or decided
    judged: tuple[Judged, ...]
    faults: tuple[Struck, ...]
    samples: tuple[Sample, ...]
    reigns: tuple[Reign, ...]
    outages: tuple[Outage, ...]
    recovery: tuple[Recovery, ...]
    counts: Counts
    settings: dict[str, Any]
    versions: dict[str, str]
    logs: dict[str, str]  # by process: its log, relative to the report's folder
    began: str  # wall clock, ISO 8601
    seconds: float  # of all: start, faults, healing, checks
    healed_s: float = 0.0  # when the last fault had been healed
    metrics: dict[str, float] = field(default_factory=dict)  # printed by the user's script

    def as_json(self) -> dict[str, Any]:
        """For files and programs. A latency of a second without pushes is null."""
        document: dict[str, Any] = _without_nan(asdict(self))
        return {"format": FORMAT, "version": VERSION, **document}


def result_from(document: Any, where: str) -> RunResult:
    """Read what `as_json` made. Raises `BadInput` naming `where`, and what is wrong there."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInput(f"{where}: this is no report of `resilient-ps chaos run`")
    if document.get("version") != VERSION:
        raise BadInput(
            f"{where}: a report of version {short(document.get('version'))}; this is version "
            f"{VERSION} of the format: use the resilient-ps that wrote it"
        )
    fields = {name: value for name, value in document.items() if name not in ("format", "version")}
    return read_record(RunResult, fields, where)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value

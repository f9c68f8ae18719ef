"""What a run that is over comes to: figures, recovery, counts, and what is needed to repeat it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from resilient_ps import __version__
from resilient_ps.chaos.faults.blame import false_failovers, put_down, recoveries
from resilient_ps.chaos.faults.leadership import Leadership
from resilient_ps.chaos.faults.planned import Struck
from resilient_ps.chaos.faults.silences import Notes, outages_of
from resilient_ps.chaos.live.judging import overall
from resilient_ps.chaos.result import Counts, Judged, Reign, RunResult, Sample
from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.errors import NotFound
from resilient_ps.storage.runtime.seaweedfs import find_weed

AFTER_TTL_S = 2.0
"""So long after a fault, and a lease time more, something may still be due to it."""
ASK_DEADLINE_S = 10.0


class Repeatable(Protocol):
    """What a result says of how it came about."""

    @property
    def seed(self) -> int: ...
    @property
    def lease_ttl_s(self) -> int: ...
    def command(self) -> str: ...
    def settings(self) -> dict[str, Any]: ...


class Measured(Protocol):
    """What a result says of the workload."""

    @property
    def name(self) -> str: ...
    def counts(self) -> tuple[int, int, int, int]:
        """Pushes acknowledged, failed, and of unknown outcome; pulls answered."""
        ...

    def metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over. Times are in seconds of the run, but `zero_s`, when it began."""

    plan: Repeatable
    judged: Sequence[Judged]
    problems: Sequence[str]
    faults: tuple[Struck, ...]
    samples: Sequence[Sample]
    notes: Mapping[int, Notes]
    leadership: Leadership
    zero_s: float
    healed_s: float
    end_s: float
    workload: Measured
    copied_bytes: int
    logs: dict[str, str]
    began: str
    seconds: float


def result_of(ended: Ended) -> RunResult:
    """The result."""
    plan = ended.plan
    after_s = plan.lease_ttl_s + AFTER_TTL_S
    reigns = _in_run(ended)
    silences = outages_of(ended.notes, 0.0, _last_answer(ended))
    outages = put_down(silences, ended.faults, reigns, after_s)
    verdict, why = overall(ended.judged, ended.problems)
    return RunResult(
        seed=plan.seed,
        command=plan.command(),
        workload=ended.workload.name,
        verdict=verdict,
        why=why,
        judged=tuple(ended.judged),
        faults=ended.faults,
        samples=tuple(ended.samples),
        reigns=reigns,
        outages=outages,
        recovery=recoveries(outages, ended.faults),
        counts=_counts(ended, after_s),
        settings=plan.settings(),
        versions=versions(),
        logs=ended.logs,
        began=ended.began,
        seconds=round(ended.seconds, 1),
        healed_s=round(ended.healed_s, 3),
        metrics=ended.workload.metrics(),
    )


def _last_answer(ended: Ended) -> float:
    """Probes end one after the other: until the last one of each shard, nothing is missing."""
    lasts = [notes.acked_s[-1] for notes in ended.notes.values() if notes.acked_s]
    return min(lasts, default=ended.end_s)


def _in_run(ended: Ended) -> tuple[Reign, ...]:
    zero_s = ended.zero_s
    shifted = [
        replace(
            reign,
            from_s=round(max(0.0, reign.from_s - zero_s), 3),
            to_s=round(reign.to_s - zero_s, 3),
        )
        for reign in ended.leadership.all_reigns(zero_s + ended.end_s)
    ]
    return tuple(reign for reign in shifted if reign.to_s > 0)


def _counts(ended: Ended, after_s: float) -> Counts:
    acknowledged, failed, unknown, pulls = ended.workload.counts()
    held = ended.leadership
    failovers = [f._replace(at_s=f.at_s - ended.zero_s) for f in held.failovers]
    failovers = [failover for failover in failovers if failover.at_s > 0]
    return Counts(
        acknowledged=acknowledged,
        failed=failed,
        unknown=unknown,
        pulls=pulls,
        failovers=len(failovers),
        false_failovers=len(false_failovers(failovers, ended.faults, after_s)),
        copied_bytes=ended.copied_bytes,
        checkpoints=len(held.checkpoints),
        rollbacks=max(0, len(set(held.incarnations)) - 1),
    )


def versions() -> dict[str, str]:
    """Of everything that a run depends on."""
    return {
        "resilient-ps": __version__,
        "python": platform.python_version(),
        "etcd": _etcd_version(),
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
        "seaweedfs": _seaweedfs_version(),
    }


def _etcd_version() -> str:
    binary = find_etcd()
    return _told_by(binary, "--version").removeprefix("etcd Version:").strip()


def _seaweedfs_version() -> str:
    try:
        return _told_by(find_weed(), "version").removeprefix("version").strip()
    except NotFound:
        return _told_by(None)


def _told_by(binary: str | None, *arguments: str) -> str:
    """The first line that a program prints."""
    if binary is None:
        return "not installed"
    try:
        told = subprocess.run(
            [binary, *arguments], capture_output=True, text=True, timeout=ASK_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return told.stdout.partition("\n")[0]

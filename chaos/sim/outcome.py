"""What a run was, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from resilient_ps.chaos.checkers.verdict import Outcome as Truth
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.schedule import Schedule

RunKind: TypeAlias = Literal["safety", "liveness"]


class Finding(NamedTuple):
    """What a checker says about one promise, named by `invariant`."""

    invariant: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that is over, for checkers.

    `lost_shards`: all in-sync members of these have died: nothing may be claimed of what they held.
    `healed`: all faults were ended, and the cluster has come to rest.
    """

    cluster: SimCluster
    kind: RunKind
    seed: int
    schedule: Schedule
    lost_shards: tuple[int, ...]
    healed: bool
    end_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed, as plain data."""

    seed: int
    kind: RunKind
    workload: str
    verdict: Truth
    findings: tuple[Finding, ...]  # those that are not "true"
    schedule: Schedule
    faults: int  # that were performed
    skipped: int  # that would have destroyed a shard, or found nothing to strike
    acknowledged: int  # pushes
    lost_shards: tuple[int, ...]
    virtual_s: float
    steps: int
    trace: str
    story: tuple[str, ...] = ()
    checkpoints: int = 0  # that were published
    rollbacks: int = 0  # of the whole cluster

    @property
    def broken(self) -> tuple[str, ...]:
        """The invariants that were broken."""
        return tuple(f.invariant for f in self.findings if f.verdict.outcome == "false")


def overall(findings: Iterable[Finding]) -> Truth:
    """`false` with any violation, else `unknown` with anything that could not be decided."""
    outcomes = [finding.verdict.outcome for finding in findings]
    if "false" in outcomes:
        return "false"
    return "unknown" if "unknown" in outcomes or not outcomes else "true"

"""Replicas of a shard are byte-identical: tables, deduplication, clocks, cursors, held pushes.

To be asked after quiescence: nothing is written any more, and every backup was told the commit
point. Then all in-sync replicas of a shard have applied the same lsn, and their digests are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilient_ps.chaos.checkers.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """An in-sync replica: what it has applied, and the digest of all its state."""

    shard: int
    server: str
    lsn: int
    digest: str


def check_replicas(states: Iterable[ReplicaState]) -> Verdict:
    """`false` when replicas differ at one lsn; `unknown` when some lag behind and none differ."""
    by_shard: dict[int, list[ReplicaState]] = {}
    for state in states:
        by_shard.setdefault(state.shard, []).append(state)
    violations: list[str] = []
    lagging: list[str] = []
    compared = 0
    for shard in sorted(by_shard):
        replicas = by_shard[shard]
        compared += len(replicas) - 1
        by_lsn: dict[int, list[ReplicaState]] = {}
        for state in replicas:
            by_lsn.setdefault(state.lsn, []).append(state)
        if len(by_lsn) > 1:
            told = ", ".join(f"{state.server} at lsn {state.lsn}" for state in replicas)
            lagging.append(f"the replicas of shard {shard} have not come to rest: {told}")
        for lsn, equals in by_lsn.items():
            if len({state.digest for state in equals}) > 1:
                told = ", ".join(f"{state.server} {state.digest}" for state in equals)
                violations.append(f"shard {shard} at lsn {lsn}: replicas differ: {told}")
    if lagging and not violations:
        return Verdict("unknown", tuple(lagging))
    return judge(violations, checked=compared, what="shards with two in-sync replicas")

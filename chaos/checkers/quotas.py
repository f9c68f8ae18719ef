"""Quotas: at no moment more is in a namespace than it may hold, nor given out to shards.

Workload: pushes create rows in a namespace with a quota of rows. At some moments a sample is taken
of the latest primary of each shard: what it holds, with what it holds back, and its allowance. A
shard without a primary is left out of the sample: then only what is used counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilient_ps.chaos.checkers.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Sample:
    """`used` and `allowed`: rows, by shard."""

    at_ns: int
    used: dict[int, int]
    allowed: dict[int, int]


def check_quota(samples: Iterable[Sample], rows_max: int, shards: int) -> Verdict:
    """The sums of every sample."""
    violations: list[str] = []
    checked = 0
    for sample in samples:
        checked += 1
        at = f"at {sample.at_ns / 1e9:.3f} s"
        used, allowed = sum(sample.used.values()), sum(sample.allowed.values())
        if used > rows_max:
            violations.append(f"{at} the namespace has {used} rows, its quota is {rows_max}")
        if len(sample.allowed) == shards and allowed > rows_max:
            violations.append(f"{at} shards may use {allowed} rows of {rows_max} ({sample})")
        for shard, rows in sample.used.items():
            if shard in sample.allowed and rows > sample.allowed[shard]:
                violations.append(
                    f"{at} shard {shard} has {rows} rows, it may have {sample.allowed[shard]}"
                )
    return judge(violations, checked=checked, what="samples")


def check_used_up(samples: Iterable[Sample], rows_max: int, rows_per_push: int) -> Verdict:
    """Who was refused in the end: was nearly all of the quota used? Less than a push is left."""
    used = max((sum(sample.used.values()) for sample in samples), default=0)
    wasted = rows_max - used >= rows_per_push
    text = f"a push of {rows_per_push} rows was refused, though {used} of {rows_max} were used"
    return judge([text] if wasted else [], checked=used, what="rows")

"""Progress while faults are never healed: every rank's clock and every shard go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient_ps.chaos.checkers.verdict import Verdict, judge

BEYOND_TTL_S = 10.0


@dataclass(slots=True)
class Liveness:
    """Within a lease time and ten seconds after the last fault, and again and again from then on,
    each rank must end a clock and each shard acknowledge something."""

    lease_ttl_s: float
    found: dict[str, str] = field(default_factory=dict)  # by who did not: how long
    checked: int = 0

    @property
    def within_s(self) -> float:
        """So long may anything stand still."""
        return self.lease_ttl_s + BEYOND_TTL_S

    def look(
        self,
        now_s: float,
        injected_s: float | None,
        answered_s: Mapping[int, float],
        ticked_s: Mapping[int, float],
    ) -> None:
        """`injected_s`: when the last fault was brought about; None: not yet. `answered_s`: by
        shard, when it was last; `ticked_s`: by rank, when it last ended a clock."""
        if injected_s is None:
            return
        self.checked += 1
        for what, times_s in (("shard", answered_s), ("rank", ticked_s)):
            for number, at_s in times_s.items():
                still_s = now_s - max(at_s, injected_s)
                if still_s > self.within_s:
                    self.found[f"{what} {number}"] = f"{still_s:.1f} s"

    def verdict(self) -> Verdict:
        """Unknown where there was no time to look."""
        reasons = [
            f"{who} made no progress for {how_long}, {self.within_s:g} s are allowed"
            for who, how_long in self.found.items()
        ]
        return judge(reasons, checked=self.checked, what="moments at which all faults were there")

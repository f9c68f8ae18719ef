"""How long shards were away, by kind of fault, and what is demanded of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from resilient_ps.chaos.faults.figures import percentile

KILL_MEDIAN_S = 0.8
KILL_LONGEST_BEYOND_TTL_S = 1.5
HAND_OVER_LONGEST_S = 0.3
ETCD_LONGEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Bar:
    """What is demanded of a kind of fault. None: nothing."""

    median_s: float | None = None
    longest_s: float | None = None
    wrongs: str = ""  # what must not happen at all

    def __str__(self) -> str:
        parts = [f"no {self.wrongs}"] if self.wrongs else []
        parts += [f"median < {self.median_s:g} s"] if self.median_s is not None else []
        parts += [f"longest < {self.longest_s:g} s"] if self.longest_s is not None else []
        return ", ".join(parts)


@dataclass(slots=True)
class Row:
    """What was measured of one kind of fault.

    `outages_s`: per fault, until the last of the shards concerned acknowledged a push again.
    `others_s`: per fault, the longest time without an acknowledgement on any other shard. `wrongs`:
    how often happened what `bar.wrongs` says.
    """

    kind: str
    bar: Bar
    outages_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)
    wrongs: int = 0

    def add(self, outage_s: float, others_s: float = 0.0, wrongs: int = 0) -> None:
        """One more fault."""
        self.outages_s.append(outage_s)
        self.others_s.append(others_s)
        self.wrongs += wrongs

    @property
    def holds(self) -> bool | None:
        """Is the bar reached? None: nothing was measured."""
        if not self.outages_s:
            return None
        bar = self.bar
        return (
            not self.wrongs
            and (bar.median_s is None or statistics.median(self.outages_s) < bar.median_s)
            and (bar.longest_s is None or max(self.outages_s) < bar.longest_s)
        )

    def as_json(self) -> dict[str, Any]:
        """For programs; seconds."""
        told: dict[str, Any] = {"kind": self.kind, "faults": len(self.outages_s)}
        if self.outages_s:
            told |= {
                "median_s": round(statistics.median(self.outages_s), 3),
                "p99_s": round(percentile(self.outages_s, 99), 3),
                "longest_s": round(max(self.outages_s), 3),
                "others_longest_s": round(max(self.others_s), 3),
            }
        if self.bar.wrongs:
            told[self.bar.wrongs.replace(" ", "_")] = self.wrongs
        return told | {"bar": str(self.bar), "holds": self.holds}


def rows_for(lease_ttl_s: int) -> dict[str, Row]:
    """The empty table, by a short name of each kind."""
    return {
        "kill": Row(
            "kill -9 of a primary",
            Bar(median_s=KILL_MEDIAN_S, longest_s=lease_ttl_s + KILL_LONGEST_BEYOND_TTL_S),
        ),
        "stop": Row("SIGTERM of a primary", Bar(longest_s=HAND_OVER_LONGEST_S)),
        "return": Row("a server returns, gets its shards", Bar(longest_s=HAND_OVER_LONGEST_S)),
        "etcd": Row("kill -9 of etcd's leader", Bar(longest_s=ETCD_LONGEST_S, wrongs="failovers")),
        "pause": Row("SIGSTOP of a primary for 3 TTL", Bar(wrongs="stale acceptances")),
    }

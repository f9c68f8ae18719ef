"""What a cluster holds on to is bounded by its size, not by how long it has run.

Counted are leases, keys and watches in etcd, timers and connections of processes, entries that a
replica's log retains, pulls that wait, and records of ranks. After hundreds of failovers each is
still below a limit that depends on servers, shards, replicas and ranks alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilient_ps.chaos.checkers.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """What a limit may depend on. `clients`: client processes that are connected; `holders`: those
    of them that are registered for tasks of a graph."""

    servers: int
    shards: int
    replicas: int
    ranks: int
    clients: int
    holders: int = 0

    def limits(self) -> dict[str, int]:
        """The most of each kind that a cluster at rest may hold, in all its servers together."""
        copies = self.shards * self.replicas
        return {
            "leases": 2 * self.servers + 2 * self.holders,  # a dead one's may not have ended yet
            "etcd keys": KEYS_MOST
            + 3 * self.servers
            + 3 * self.shards
            + 2 * self.ranks
            + self.holders,
            "timers": self.servers * (8 + self.shards),
            "connections": 2 * self.servers * (self.servers + self.clients),
            "log entries": copies * LOG_ENTRIES_MOST,
            "log epochs": copies * LOG_EPOCHS_MOST,
            "waiting pulls": self.shards * self.ranks * PULLS_PER_RANK,
            "ranks": copies * self.ranks,
        }


KEYS_MOST = 64  # of the cluster, its tables, jobs and intents
LOG_ENTRIES_MOST = 4_096  # that one replica's log retains for those that lag behind
LOG_EPOCHS_MOST = 4_096  # that it remembers, to compare itself with others
PULLS_PER_RANK = 8


def check_bounds(usage: Mapping[str, int], limits: Mapping[str, int]) -> Verdict:
    """`usage`: how many there are of each kind; kinds without a limit are not judged."""
    kinds = sorted(usage.keys() & limits.keys())
    violations = [
        f"{usage[kind]} {kind}, possible are {limits[kind]}"
        for kind in kinds
        if usage[kind] > limits[kind]
    ]
    return judge(violations, checked=len(kinds), what="counters")


def check_growth(early: Mapping[str, int], late: Mapping[str, int], *, slack: int = 0) -> Verdict:
    """Of no kind there is more after many failovers than after a few, but for `slack`."""
    kinds = sorted(early.keys() & late.keys())
    violations = [
        f"{kind} have grown from {early[kind]} to {late[kind]}"
        for kind in kinds
        if late[kind] > early[kind] + slack
    ]
    return judge(violations, checked=len(kinds), what="counters")

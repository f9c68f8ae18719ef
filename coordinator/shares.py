"""How much of the shards each server should hold: its fair share, and the bounds around it.

As primary, a server's share is its weight over the sum of weights. As replica it may not be: no
server holds a shard twice, and a zone holds a shard twice only when there are fewer zones than
replicas. So weights are followed as far as these limits let them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from resilient_ps.coordinator.ring import Ring

_ROUNDING = 1e-6  # float noise must not turn an exact 4.0 into a ceiling of 5
_BISECTIONS = 200
_KEPT = 8  # bounds that need not be found again: rings change seldom


class Bounds(NamedTuple):
    """How many shards a server may hold: `floor` and `ceiling` enclose its fair share."""

    floor: int
    ceiling: int
    cap: int  # with the load factor: beyond it, shards are moved away


@functools.lru_cache(_KEPT)
def primary_bounds(ring: Ring, shards: int, load_factor: float) -> Mapping[str, Bounds]:
    """Bounds on the number of shards whose primary a server is."""
    total = sum(member.weight for member in ring.members)
    return {
        member.server: _bounds(member.weight / total, shards, load_factor)
        for member in ring.members
    }


@functools.lru_cache(_KEPT)
def replica_bounds(
    ring: Ring, shards: int, replicas: int, load_factor: float
) -> Mapping[str, Bounds]:
    """Bounds on the number of shards that a server holds in any role.

    `replicas` is at most the number of servers.
    """
    zones: dict[str, dict[str, float]] = {zone: {} for zone in ring.zones}
    for member in ring.members:
        zones[member.zone][member.server] = member.weight
    crowded = len(zones) < replicas  # then every zone holds every shard, some more than once
    zone_shares = _proportional(
        {zone: sum(servers.values()) for zone, servers in zones.items()},
        replicas,
        least=1.0 if crowded else 0.0,
        most={zone: float(len(servers)) if crowded else 1.0 for zone, servers in zones.items()},
    )
    bounds: dict[str, Bounds] = {}
    for zone, servers in zones.items():
        most = dict.fromkeys(servers, 1.0)
        shares = _proportional(servers, zone_shares[zone], least=0.0, most=most)
        for server, share in shares.items():
            bounds[server] = _bounds(share, shards, load_factor)
    return bounds


def _bounds(share: float, shards: int, load_factor: float) -> Bounds:
    fair = share * shards
    cap = min(shards, math.ceil(load_factor * fair - _ROUNDING))
    return Bounds(math.floor(fair + _ROUNDING), math.ceil(fair - _ROUNDING), cap)


def _proportional(
    weights: Mapping[str, float], total: float, *, least: float, most: Mapping[str, float]
) -> dict[str, float]:
    """Divide `total` in proportion to `weights`, each part within `least` and `most`.

    Bisection on the factor of proportionality; `total` lies within the sums of the limits.
    """

    def parts(factor: float) -> dict[str, float]:
        return {
            name: min(most[name], max(least, factor * weight)) for name, weight in weights.items()
        }

    low, high = 0.0, max(most.values()) / min(weights.values())
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(parts(middle).values()) < total else (low, middle)
    return parts(high)

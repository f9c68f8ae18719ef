"""A schedule of faults on real processes, drawn from a seed.

The same seed and shape give the same schedule everywhere. A third of a schedule is dealt: seed
after seed goes on in one fixed order of all kinds, so that any run of neighbouring seeds has every
kind in it; the rest is drawn by the kinds' weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from resilient_ps.chaos.faults.kinds import KINDS, Kind, Need
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.errors import BadInput

EVERY_S = 2.2
"""There is about one fault in so many seconds."""
ACTIVE_MOST = 4
DEALT_SHARE = 1 / 3
FIRST_S = 0.5
LAST_S = 1.0  # before the end: all have been healed by then
SHORTEST_S = 3.0  # of a run
LONGEST_S = 24 * 3600.0
TRIES = 20  # to find a moment at which few faults are active
RETURN_S = 4.0
"""So long after a fault its process may not be what it was before."""
ON_PROCESSES = frozenset({"kill", "pause", "stop", "membership"})
"""Groups of faults of which a process can bear one at a time."""
TWO_SERVERS = frozenset({"partition", "one-way"})
HOW_BITS = 30
_DEAL = (20_011, 5)  # of the order in which kinds are dealt
_STREAM = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is to strike, and how long there is time. `kinds`: those that are possible."""

    kinds: tuple[Kind, ...]
    servers: tuple[str, ...]
    workers: tuple[str, ...]
    etcd: tuple[str, ...]
    shards: int
    lease_ttl_s: float
    duration_s: float


def possible(kinds: Iterable[Kind], has: Collection[Need], servers: int) -> tuple[Kind, ...]:
    """Those of which everything is there that they need."""
    found = [kind for kind in kinds if kind.needs <= set(has)]
    return tuple(k for k in found if servers >= 2 or k.name not in TWO_SERVERS)


def draw_schedule(seed: int, shape: Shape) -> tuple[Planned, ...]:
    """The faults of a seed, in the order of time; all have been healed before the run's end.

    Targets are names, or roles that are looked up when the time comes: `partition` and `one-way`
    have two servers (the first one does not hear the second), `worker-server` a worker and a
    server, `primary:3` is whoever leads shard 3; what strikes all has none.
    """
    if not SHORTEST_S <= shape.duration_s <= LONGEST_S:
        raise BadInput(f"a run of {shape.duration_s:g} s: use {SHORTEST_S:g} s to {LONGEST_S:g} s")
    if not shape.kinds:
        return ()
    rng = np.random.Generator(np.random.PCG64([seed, _STREAM]))
    kinds = _draw_kinds(seed, rng, shape)
    drawn: list[Planned] = []
    for kind in kinds:
        lasts_s = _draw_duration(kind, rng, shape)
        target = _draw_target(kind, rng, shape)
        at_s = _draw_moment(Planned(0, 0.0, kind.name, target, lasts_s), rng, shape, drawn)
        how = int(rng.integers(1 << HOW_BITS))
        drawn.append(Planned(0, at_s, kind.name, target, lasts_s, how))
    ordered = sorted(drawn, key=lambda planned: planned.at_s)
    return tuple(
        Planned(number, p.at_s, p.kind, p.target, p.lasts_s, p.how)
        for number, p in enumerate(ordered)
    )


def _draw_kinds(seed: int, rng: np.random.Generator, shape: Shape) -> list[Kind]:
    kinds = sorted(shape.kinds, key=lambda kind: kind.name)
    count = max(1, round(shape.duration_s / EVERY_S))
    dealt = max(1, round(count * DEALT_SHARE))
    order = np.random.Generator(np.random.PCG64(_DEAL)).permutation(len(kinds)).tolist()
    hand = [kinds[order[(seed * dealt + card) % len(kinds)]] for card in range(dealt)]
    weights = np.array([kind.weight for kind in kinds], float)
    rest = rng.choice(len(kinds), count - dealt, p=weights / weights.sum())
    return [*hand, *(kinds[index] for index in rest.tolist())]


def _draw_duration(kind: Kind, rng: np.random.Generator, shape: Shape) -> float:
    """Short ones and long ones alike often: uniform in the logarithm."""
    unit_s = shape.lease_ttl_s if kind.in_ttls else 1.0
    low, high = np.log([bound * unit_s for bound in kind.lasts_s])
    most_s = shape.duration_s - FIRST_S - LAST_S
    return round(min(float(np.exp(rng.uniform(low, high))), most_s), 2)


def _draw_moment(
    planned: Planned, rng: np.random.Generator, shape: Shape, drawn: list[Planned]
) -> float:
    """When it begins: if it can be, where few others are active, and none on its process."""
    last_s = max(FIRST_S, shape.duration_s - LAST_S - planned.lasts_s)
    best_s, fewest = FIRST_S, len(drawn) + ACTIVE_MOST + 1
    for _ in range(TRIES):
        at_s = round(float(rng.uniform(FIRST_S, last_s)), 2)
        active = [p for p in drawn if _overlap(p, at_s, at_s + planned.lasts_s)]
        count = len(active)
        if any(
            _are_rivals(planned, p)
            for p in drawn
            if _overlap(p, at_s, at_s + planned.lasts_s, RETURN_S)
        ):
            count += ACTIVE_MOST
        if count < ACTIVE_MOST:
            return at_s
        if count < fewest:
            best_s, fewest = at_s, count
    return best_s


def _overlap(planned: Planned, from_s: float, to_s: float, margin_s: float = 0.0) -> bool:
    return planned.at_s < to_s + margin_s and from_s < planned.at_s + planned.lasts_s + margin_s


def _are_rivals(one: Planned, other: Planned) -> bool:
    """Do both need the same process for themselves?"""
    groups = {KINDS[one.kind].group, KINDS[other.kind].group}
    return groups <= ON_PROCESSES and bool(set(one.target) & set(other.target))


def _draw_target(kind: Kind, rng: np.random.Generator, shape: Shape) -> tuple[str, ...]:
    def one_of(names: tuple[str, ...]) -> str:
        return names[int(rng.integers(len(names)))]

    if kind.name in TWO_SERVERS:
        first, second = rng.choice(len(shape.servers), 2, replace=False).tolist()
        return shape.servers[first], shape.servers[second]
    if kind.name == "worker-server":
        return one_of(shape.workers), one_of(shape.servers)
    match kind.targets[0]:
        case "server":
            return (one_of(shape.servers),)
        case "worker":
            return (one_of(shape.workers),)
        case "etcd":
            return (one_of(shape.etcd),)
        case "primary" | "shard":
            return (f"primary:{int(rng.integers(shape.shards))}",)
        case "all":
            return ()
        case role:
            return (role,)


def permanent_faults(seed: int, shape: Shape, lasts_s: float) -> tuple[Planned, ...]:
    """What is never healed while a run of `--liveness` lasts; a majority stays well.

    A server is dead, then so is a member of etcd, and then another server hears no other one. In
    this order: a shard that the dead one and the deaf one held is left with the deaf one, which
    serves; the other way round, the dead one would have been its last copy.
    """
    if len(shape.servers) < 3:
        raise BadInput(
            f"--servers {len(shape.servers)}: --liveness takes one away and makes one deaf; use at "
            "least 3"
        )
    rng = np.random.Generator(np.random.PCG64([seed, _STREAM, 1]))
    deaf, dead = rng.choice(len(shape.servers), 2, replace=False).tolist()
    wanted: list[tuple[float, str, tuple[str, ...]]]
    wanted = [(0.0, "kill-server", (shape.servers[dead],))]
    if len(shape.etcd) >= 3:
        member = shape.etcd[int(rng.integers(len(shape.etcd)))]
        wanted.append((shape.lease_ttl_s, "kill-etcd", (member,)))
    later_s = 2 * shape.lease_ttl_s
    others = [name for index, name in enumerate(shape.servers) if index != deaf]
    wanted += [(later_s, "one-way", (shape.servers[deaf], other)) for other in others]
    return tuple(
        Planned(number, at_s, kind, target, lasts_s - at_s)
        for number, (at_s, kind, target) in enumerate(wanted)
    )

"""Which servers hold which shard: consistent hashing with bounded loads.

Every shard goes to the first server in its ring order that is not full (Mirrokni, Thorup,
Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018, arXiv 1608.01350). With a few
shards per server the hash alone spreads badly and the paper's bound of `load_factor` times the
fair share is coarse, so two things are added:

* shards fill every server up to its fair share, rounded down, before any server takes more;
* a placement starts from the `current` one and keeps what it can: a shard moves only when its
  server is gone or beyond `load_factor`, or when a server has less than its fair share. A server
  that joins or leaves a cluster of N then moves about 1/N of the shards.

The result depends on the arguments alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from resilient_ps.coordinator.ring import Ring, stable_hash
from resilient_ps.coordinator.shares import Bounds, primary_bounds, replica_bounds
from resilient_ps.errors import BadInput

MAX_SHARDS = 1024
MAX_REPLICAS = 16

Placement = tuple[tuple[str, ...], ...]
"""For each shard its servers; the first one is to be the primary."""


def place(
    ring: Ring,
    shards: int,
    replicas: int,
    *,
    load_factor: float = 1.25,
    current: Placement | None = None,
) -> Placement:
    """Place `shards` (1..1024) shards with `replicas` (1..16) copies each.

    Each shard gets `replicas` distinct servers (all of them, if there are fewer), in distinct
    zones as `Ring.owners` says. No server is primary of more than ceil(`load_factor` * its fair
    share) shards, nor holds more than that of its share of all copies; only where zones and
    primaries leave no other way, the second bound gives way, by the least number that suffices.
    `load_factor` is at least 1; 1 keeps all servers within one shard of their fair share.
    `current` (one entry per shard) may name servers that are no longer on the ring.
    """
    _check(shards, replicas, load_factor, current)
    replicas = min(replicas, len(ring.members))
    held = current or ((),) * shards
    primaries = _place_primaries(ring, held, primary_bounds(ring, shards, load_factor))
    copies = _Copies(ring, primaries, held, replicas)
    copies.settle(replica_bounds(ring, shards, replicas, load_factor))
    return tuple(tuple(servers) for servers in copies.servers)


def moved_primaries(old: Placement, new: Placement) -> int:
    """Number of shards whose primary differs."""
    return sum(before[:1] != after[:1] for before, after in zip(old, new, strict=True))


def moved_copies(old: Placement, new: Placement) -> int:
    """Number of copies of shards in `new` on servers that do not hold the shard in `old`."""
    return sum(len(set(after) - set(before)) for before, after in zip(old, new, strict=True))


def _place_primaries(ring: Ring, held: Placement, bounds: Mapping[str, Bounds]) -> list[str]:
    load = dict.fromkeys(bounds, 0)
    primaries = [""] * len(held)

    def put(shard: int, candidates: Iterable[str], limits: dict[str, int]) -> None:
        for server in candidates:
            if server in ring and load[server] < limits[server]:
                primaries[shard] = server
                load[server] += 1
                return

    caps = _limits(bounds, "cap")
    for shard, servers in enumerate(held):
        put(shard, servers[:1], caps)
    for level in ("floor", "ceiling"):
        limits = _limits(bounds, level)
        for shard, servers in enumerate(held):
            if not primaries[shard]:  # promoting a backup costs less than copying the shard
                put(shard, itertools.chain(servers[1:], ring.walk(shard)), limits)
    _fill_up(primaries, held, load, bounds)
    return primaries


def _fill_up(
    primaries: list[str], held: Placement, load: dict[str, int], bounds: Mapping[str, Bounds]
) -> None:
    """Give servers below their floor shards of those that are furthest above theirs."""
    for poor in sorted(bounds):
        while load[poor] < bounds[poor].floor:
            rich = max(sorted(bounds), key=lambda server: load[server] - bounds[server].floor)
            mine = [shard for shard, server in enumerate(primaries) if server == rich]
            shard = min(mine, key=lambda s: (poor not in held[s], _affinity(poor, s)))
            primaries[shard] = poor
            load[rich] -= 1
            load[poor] += 1


class _Copies:
    """The servers of each shard while they are being chosen; the primaries stay first."""

    def __init__(
        self, ring: Ring, primaries: Sequence[str], held: Placement, replicas: int
    ) -> None:
        self.servers = [[primary] for primary in primaries]
        self._ring = ring
        self._held = held
        self._replicas = replicas
        self._load = {member.server: 0 for member in ring.members}
        for primary in primaries:
            self._load[primary] += 1

    def settle(self, bounds: Mapping[str, Bounds]) -> None:
        caps = _limits(bounds, "cap")
        self._keep(caps)
        for level in ("floor", "ceiling", "cap"):
            self._fill(_limits(bounds, level))
        while self._unfilled():
            self._swap_in(caps)
            if self._unfilled():
                caps = {server: cap + 1 for server, cap in caps.items()}
                self._fill(caps)
        self._fill_up(bounds)
        self._order_as_held()

    def _unfilled(self) -> list[int]:
        return [s for s, servers in enumerate(self.servers) if len(servers) < self._replicas]

    def _fits(self, server: str, others: Sequence[str]) -> bool:
        """May `server` join `others`? A zone is used again only when all zones are in use."""
        used = {self._ring.zone(other) for other in others}
        return server not in others and (
            self._ring.zone(server) not in used or len(used) == len(self._ring.zones)
        )

    def _add(self, shard: int, candidates: Iterable[str], limits: dict[str, int]) -> None:
        for server in candidates:
            if len(self.servers[shard]) == self._replicas:
                return
            if (
                server in self._ring
                and self._load[server] < limits[server]
                and self._fits(server, self.servers[shard])
            ):
                self.servers[shard].append(server)
                self._load[server] += 1

    def _keep(self, caps: dict[str, int]) -> None:
        for shard, servers in enumerate(self._held):
            # Twice: a second server of a zone fits only when the other zones have theirs.
            self._add(shard, (*servers, *servers), caps)

    def _fill(self, limits: dict[str, int]) -> None:
        for shard in self._unfilled():
            count = -1
            while count < len(self.servers[shard]) < self._replicas:
                count = len(self.servers[shard])
                self._add(shard, self._ring.walk(shard), limits)

    def _swap_in(self, caps: dict[str, int]) -> None:
        """Make room where the servers with room left do not fit: move another shard's copy."""
        for shard in self._unfilled():
            while len(self.servers[shard]) < self._replicas and self._swap_one(shard, caps):
                pass

    def _swap_one(self, shard: int, caps: dict[str, int]) -> bool:
        free = [server for server in sorted(caps) if self._load[server] < caps[server]]
        for other, position, server in self._backups():
            if not self._fits(server, self.servers[shard]):
                continue
            rest = [s for s in self.servers[other] if s != server]
            for substitute in free:
                if substitute != server and self._fits(substitute, rest):
                    self.servers[other][position] = substitute
                    self.servers[shard].append(server)
                    self._load[substitute] += 1
                    return True
        return False

    def _backups(self) -> Iterator[tuple[int, int, str]]:
        for shard, servers in enumerate(self.servers):
            for position in range(1, len(servers)):
                yield shard, position, servers[position]

    def _fill_up(self, bounds: Mapping[str, Bounds]) -> None:
        """Give servers below their floor copies from those above their ceiling, or floor."""
        for poor in sorted(bounds):
            while self._load[poor] < bounds[poor].floor and self._take_one(poor, bounds):
                pass

    def _take_one(self, poor: str, bounds: Mapping[str, Bounds]) -> bool:
        surplus = {server: self._load[server] - bounds[server].floor for server in bounds}
        choices = [
            (-surplus[server], _affinity(poor, shard), shard, position)
            for shard, position, server in self._backups()
            if surplus[server] > 0
            and self._fits(poor, [s for s in self.servers[shard] if s != server])
        ]
        if not choices:
            return False
        *_, shard, position = min(choices)
        self._load[self.servers[shard][position]] -= 1
        self._load[poor] += 1
        self.servers[shard][position] = poor
        return True

    def _order_as_held(self) -> None:
        """Backups that stay keep their order, so that placing again changes nothing."""
        for servers, held in zip(self.servers, self._held, strict=True):
            rank = {server: i for i, server in enumerate(held)}
            servers[1:] = sorted(servers[1:], key=lambda s: rank.get(s, len(rank)))


def _limits(bounds: Mapping[str, Bounds], level: str) -> dict[str, int]:
    return {server: getattr(bound, level) for server, bound in bounds.items()}


def _affinity(server: str, shard: int) -> int:
    """Rendezvous hashing: which shards a server likes to take from others."""
    return stable_hash(f"take/{server}/{shard}")


def _check(shards: int, replicas: int, load_factor: float, current: Placement | None) -> None:
    if not 1 <= shards <= MAX_SHARDS:
        raise BadInput(f"shards={shards}: choose 1 to {MAX_SHARDS}")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadInput(f"replicas={replicas}: choose 1 to {MAX_REPLICAS}")
    if not (math.isfinite(load_factor) and load_factor >= 1.0):
        raise BadInput(f"load_factor={load_factor}: it must be a number of at least 1")
    if current is not None and len(current) != shards:
        raise BadInput(
            f"the current placement has {len(current)} shards, not {shards}: the number of "
            "shards is fixed when a cluster is created"
        )

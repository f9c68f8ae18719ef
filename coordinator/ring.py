"""The consistent-hash ring: which servers a shard prefers, in which order.

Each server owns tokens (virtual nodes) on a ring of 64-bit hashes, in proportion to its weight. A
shard lies on the ring too and prefers the servers in the order in which their tokens follow it.
The order depends on the names alone, so that all processes agree on it without talking, and a
server that comes or goes leaves the order of the others as it was.

Consistent hashing: Karger et al., "Consistent Hashing and Random Trees", STOC 1997. How many shards
a server may hold, and which ones it gets in the end, is decided in `placement`.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from resilient_ps.errors import BadInput

MAX_MEMBERS = 1024
MAX_VNODES = 1024
MAX_TOKENS = 1 << 20
MAX_WEIGHT = 1000.0
MIN_WEIGHT = 0.001
RINGS_KEPT = 8  # that need not be made again


class RingMember(NamedTuple):
    """A server on the ring.

    `weight` (0.001..1000) is its share relative to the others; `zone` names what fails together
    (a rack, a data centre). Servers without a zone are all in one.
    """

    server: str
    weight: float = 1.0
    zone: str = ""


class Ring:
    """Servers and their tokens. Immutable; the order of `members` does not matter.

    `vnodes` (1..1024): tokens of a server of weight 1; every server has at least one. Raises
    BadInput for no or too many members, a name given twice, or weights out of range.
    """

    def __init__(self, members: tuple[RingMember, ...], vnodes: int = 64) -> None:
        _check(members, vnodes)
        self.members = tuple(sorted(members))
        self.vnodes = vnodes
        self.zones = tuple(sorted({member.zone for member in members}))
        self._zones = {member.server: member.zone for member in self.members}
        tokens = sorted(
            (stable_hash(f"token/{member.server}/{i}"), member.server)
            for member in self.members
            for i in range(_token_count(member, vnodes))
        )
        self._hashes = [token for token, _ in tokens]
        self._servers = [server for _, server in tokens]

    def __contains__(self, server: object) -> bool:
        return server in self._zones

    def zone(self, server: str) -> str:
        return self._zones[server]

    def walk(self, shard: int) -> Iterator[str]:
        """All servers, each once, in the order in which `shard` prefers them."""
        start = bisect.bisect_left(self._hashes, stable_hash(f"shard/{shard}"))
        seen: set[str] = set()
        for step in range(len(self._servers)):
            server = self._servers[(start + step) % len(self._servers)]
            if server not in seen:
                seen.add(server)
                yield server
                if len(seen) == len(self.members):
                    return

    def owners(self, shard: int, replicas: int) -> tuple[str, ...]:
        """The first `replicas` distinct servers that `shard` prefers, in distinct zones.

        With fewer zones than `replicas`, one server of each zone comes first, then the next
        servers of any zone. With fewer servers than `replicas`, all of them.
        """
        if replicas < 1:
            raise BadInput(f"replicas={replicas}: a shard needs at least 1 replica")
        order = tuple(self.walk(shard))
        used: dict[str, str] = {}  # zone -> its first server
        for server in order:
            if len(used) < replicas:
                used.setdefault(self.zone(server), server)
        first = tuple(used.values())
        rest = (server for server in order if server not in first)
        return first + tuple(itertools.islice(rest, replicas - len(first)))


@functools.lru_cache(RINGS_KEPT)
def ring_of(members: tuple[RingMember, ...], vnodes: int) -> Ring:
    """`Ring(members, vnodes)`: who plans asks for the same one again and again."""
    return Ring(members, vnodes)


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, version and machine (unlike `hash`)."""
    return xxhash.xxh3_64_intdigest(text.encode())


def _token_count(member: RingMember, vnodes: int) -> int:
    return max(1, round(vnodes * member.weight))


def _check(members: tuple[RingMember, ...], vnodes: int) -> None:
    if not 1 <= vnodes <= MAX_VNODES:
        raise BadInput(f"vnodes={vnodes}: choose 1 to {MAX_VNODES}")
    if not 1 <= len(members) <= MAX_MEMBERS:
        raise BadInput(f"a ring of {len(members)} servers: it needs 1 to {MAX_MEMBERS}")
    names: set[str] = set()
    for member in members:
        if not member.server:
            raise BadInput("a server without a name on the ring: give each server a name")
        if member.server in names:
            raise BadInput(f"server {member.server!r} is on the ring twice: rename one of them")
        names.add(member.server)
        if not (math.isfinite(member.weight) and MIN_WEIGHT <= member.weight <= MAX_WEIGHT):
            raise BadInput(
                f"server {member.server!r} has weight {member.weight}: choose {MIN_WEIGHT} to "
                f"{MAX_WEIGHT:g}, or take the server off the ring to give it nothing"
            )
    tokens = sum(_token_count(member, vnodes) for member in members)
    if tokens > MAX_TOKENS:
        raise BadInput(
            f"{tokens} tokens on the ring, at most {MAX_TOKENS}: use smaller weights or vnodes"
        )

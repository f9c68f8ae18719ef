"""Routings for tests: servers s1 and s2, shards dealt out in turn."""

from __future__ import annotations

from resilient_ps.ids import Epoch
from resilient_ps.routing import Address, Owner, Routing


def routing(owners: str = "s1 s2 s1 s2", *, alive: str = "s1 s2", incarnation: int = 1) -> Routing:
    """`owners`: a server's name for each shard, `-` for nobody."""
    table = tuple(
        Owner("" if name == "-" else name, process(name), Epoch(1, 1)) for name in owners.split()
    )
    servers = {
        name: Address("127.0.0.1", 7000, "", "here", process(name)) for name in alive.split()
    }
    return Routing(incarnation, table, servers)


def process(name: str) -> int:
    """The process of a server of this name."""
    return 0 if name == "-" else 100 + int(name[1:])

"""Who serves which shard, and where: the routing table, built from the records in etcd.

Keys go to shards by a stable hash (`resilient_ps.hashing`, `resilient_ps.tables.partition`); shards
to servers by their records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import ClusterConfig, ServerRecord, ShardRecord
from resilient_ps.errors import BadInput
from resilient_ps.ids import NO_EPOCH, Epoch
from resilient_ps.messages import PartAnswer, Status

PEER_PREFIX = "server:"


class Owner(NamedTuple):
    """The primary of a shard; `server` is "" where there is none yet."""

    server: str
    process: int
    epoch: Epoch


NOBODY = Owner("", 0, NO_EPOCH)


class Address(NamedTuple):
    """Where a server listens. `unix_path` is of use on `hostname` only."""

    host: str
    port: int
    unix_path: str
    hostname: str
    process: int


@dataclass(frozen=True)
class Routing:
    """A snapshot of the shards' owners and the servers' addresses."""

    incarnation: int
    owners: tuple[Owner, ...]
    servers: dict[str, Address] = field(default_factory=dict)

    @property
    def shards(self) -> int:
        """Number of shards of the cluster."""
        return len(self.owners)

    def same_cluster(self, other: Routing) -> bool:
        """Is it a routing of the same incarnation of the cluster?"""
        return (self.incarnation, self.shards) == (other.incarnation, other.shards)

    @cached_property
    def peers(self) -> tuple[str | None, ...]:
        """By shard: the peer to send its parts to, or None while nobody serves it."""
        return tuple(self._peer(owner) for owner in self.owners)

    def _peer(self, owner: Owner) -> str | None:
        address = self.servers.get(owner.server)
        if address is None or address.process != owner.process:
            return None
        return PEER_PREFIX + owner.server

    @cached_property
    def only_peer(self) -> str | None:
        """The peer that serves all shards, if there is one."""
        first = self.peers[0] if self.peers else None
        return first if all(peer == first for peer in self.peers) else None

    def peer(self, shard: int) -> str | None:
        """The peer of one shard: see `peers`."""
        return self.peers[shard]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All shards, those of one server one behind the other."""
        return tuple(sorted(range(self.shards), key=lambda shard: (self.owners[shard], shard)))

    @cached_property
    def rank_of_shard(self) -> NDArray[np.int32]:
        """For each shard its place in `order`."""
        ranks = np.empty(self.shards, np.int32)
        ranks[list(self.order)] = np.arange(self.shards, dtype=np.int32)
        return ranks

    def redirected(self, answer: PartAnswer) -> Routing | None:
        """This routing with the primary that a `NOT_OWNER` answer names, if that is news."""
        if answer.status is not Status.NOT_OWNER or not 0 <= answer.shard < self.shards:
            return None
        known = self.owners[answer.shard]
        if not answer.value or answer.at.epoch <= known.epoch:
            return None
        named = [name for name, at in self.servers.items() if at.process == answer.value]
        if not named:
            return None
        owners = list(self.owners)
        owners[answer.shard] = Owner(named[0], answer.value, answer.at.epoch)
        return replace(self, owners=tuple(owners))

    def describe(self, shard: int) -> str:
        """For error texts: who serves the shard, and whether that process is alive."""
        owner = self.owners[shard]
        if not owner.server:
            return f"shard {shard} has no primary yet"
        address = self.servers.get(owner.server)
        at = f"epoch {owner.epoch.incarnation}.{owner.epoch.counter}"
        if address is None:
            return f"shard {shard} ({at}): its primary {owner.server} is gone"
        if address.process != owner.process:
            return f"shard {shard} ({at}): its primary {owner.server} was restarted, empty"
        return f"shard {shard} ({at}) on {owner.server} at {address.host}:{address.port}"


def routing_from(items: Iterable[KeyValue], keys: ClusterKeys) -> Routing | None:
    """Build the routing from everything below a cluster's prefix; None without a configuration.

    Raises `BadInput` naming the etcd key whose value cannot be read.
    """
    config: ClusterConfig | None = None
    shards: list[ShardRecord] = []
    servers: list[ServerRecord] = []
    for item in items:
        located = keys.locate(item.key)
        kind = None if located is None else located.kind
        if kind == "config":
            config = ClusterConfig.from_bytes(item.value, item.key)
        elif kind == "server":
            servers.append(ServerRecord.from_bytes(item.value, item.key))
        elif kind == "shard":
            shards.append(ShardRecord.from_bytes(item.value, item.key))
    return None if config is None else routing_of(config, shards, servers)


def routing_of(
    config: ClusterConfig, shards: Iterable[ShardRecord], servers: Iterable[ServerRecord]
) -> Routing:
    """Build the routing from the records themselves: those of another incarnation are void."""
    owners = {
        record.shard: Owner(record.primary, record.primary_process, record.epoch)
        for record in shards
        if record.epoch.incarnation == config.incarnation
    }
    table = tuple(owners.get(shard, NOBODY) for shard in range(config.shards))
    return Routing(config.incarnation, table, {s.server: address_of(s) for s in servers})


def refreshed(items: Iterable[KeyValue], keys: ClusterKeys) -> Routing | None:
    """As `routing_from`, for who has a routing already: None also when something is unreadable."""
    try:
        return routing_from(items, keys)
    except BadInput:
        return None


def address_of(server: ServerRecord) -> Address:
    """The address in a server's record."""
    return Address(server.host, server.port, server.unix_path, server.hostname, server.process)

"""The server that a replica lives on: what all its replicas share, kept up to date by the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KvCall
from resilient_ps.coordinator.records import Member
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Exit, Log
from resilient_ps.messages import AppendPart, Copy
from resilient_ps.replication.claims import Claim
from resilient_ps.shard import Reply, Shard

REPLICA_REF = 1_000
"""Calls to etcd of replicas have references from here on, each another one."""
PENDING_BYTES_MAX = 256 << 20
"""What may wait for backups, of all shards of a server together."""
COPIES_MAX = 1
"""State copies that one server sends, and that one takes in, at the same time."""


class ToServer(NamedTuple):
    """A part for the replica of a shard on another server."""

    server: str
    message: AppendPart | Copy


Out: TypeAlias = Reply | ToServer | KvCall | Log | Exit


@dataclass(slots=True)
class Home:
    """One server process, as its replicas need it."""

    me: Member
    keys: ClusterKeys
    shards: int
    draw: DrawBits
    guards: Guards = ALL_GUARDS
    member_timeout_ns: int = 5 * 10**9  # an in-sync member that owes answers for longer is left out
    copy_bytes_per_s: int = 256 << 20
    overlay_bytes_max: int = 0  # of the image of a shard; 0: in proportion to the shard
    min_in_sync: int = 1
    incarnation: int = 1  # of the cluster
    restores: bool = False  # shards of this incarnation begin with what a checkpoint holds
    to_load: set[int] = field(default_factory=set)  # shards that wait for it
    retired: dict[int, Shard] = field(default_factory=dict)  # those of before, until they load
    lease: int = 0  # 0: we are no registered member of the cluster at the moment
    leases: Mapping[Member, int] = field(default_factory=dict)  # of the registered servers
    refused: set[Member] = field(default_factory=set)  # nobody listens where they did
    primaries: set[int] = field(default_factory=set)  # shards that we lead
    leaving: frozenset[Member] = frozenset()  # registered servers that are about to end
    stopping: bool = False
    sending: set[int] = field(default_factory=set)  # shards of which we send a copy
    to_send: set[int] = field(default_factory=set)  # shards whose copies wait for room
    copied_bytes: int = 0  # of rows, in all copies that were sent so far
    copied: int = 0  # copies that have been sent to their ends
    taking: dict[int, int] = field(default_factory=dict)  # copies taken in: shard -> heard of (ns)
    calls: dict[int, tuple[int, Claim]] = field(default_factory=dict)  # by reference: whose, what
    _refs: Iterator[int] = field(default_factory=lambda: count(REPLICA_REF))

    def ask(self, shard: int, claim: Claim) -> KvCall:
        """The call to etcd for a claim; its answer is for this shard's replica."""
        ref = next(self._refs)  # replicas may be at work at the same time
        self.calls[ref] = shard, claim
        return KvCall(ref, claim.txn, claim.nonce)

    def may_take(self, shard: int, now_ns: int) -> bool:
        """Is there room for a copy of this shard? Copies whose source is silent take none."""
        heard = [at_ns for number, at_ns in self.taking.items() if number != shard]
        return sum(now_ns - at_ns <= self.member_timeout_ns for at_ns in heard) < COPIES_MAX

    def new_shard(self, number: int) -> Shard:
        """A shard without an entry."""
        return self.housed(Shard(number, self.shards, self.guards))

    def housed(self, shard: Shard) -> Shard:
        """This shard, which knows from now on on which server it is."""
        shard.server, shard.overlay_bytes_max = self.me.server, self.overlay_bytes_max
        return shard

    def begin(self, incarnation: int) -> None:
        """The cluster has another incarnation: nothing of what was under way counts any more."""
        self.incarnation = incarnation
        under_way = (self.to_load, self.primaries, self.sending, self.to_send, self.taking)
        for held in (*under_way, self.calls, self.retired):
            held.clear()

    @property
    def pending_bytes_max(self) -> int:
        """What may wait for the backups of one shard."""
        return PENDING_BYTES_MAX // max(1, len(self.primaries))

    def present(self, server: str) -> Member | None:
        """The registered process of this name."""
        for member in self.leases:
            if member.server == server:
                return member
        return None

    def staying(self, server: str) -> Member | None:
        """The registered process of this name, unless it is about to end."""
        member = self.present(server)
        return None if member in self.leaving else member

    def nonce(self) -> str:
        """Random text, by which a transaction of ours is recognised."""
        return f"{self.draw(64):016x}"

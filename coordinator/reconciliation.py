"""Brings the ring and the shards' desired servers to where they are to be, in etcd.

Theory of operation. It keeps nothing but timers: it looks at the view, and makes the transaction
that is missing; when that has changed the view, the next one. So a successor goes on where its
predecessor died. In this order:

* the ring: servers that registered are on it, those that are drained or have been gone for the
  grace time are not (whoever is gone for so long loses the mark of a drain, too);
* shards without a record of the present incarnation of the cluster get their first one, once
  enough servers are there;
* shards that are to be elsewhere: `desired` is changed step by step (see `rebalancing`), which
  each shard's primary brings about.

A transaction compares the coordinator's key, the configuration, and all that it replaces or relies
on; so it fails where the view was old, and is made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilient_ps.coordinator.grace import Grace
from resilient_ps.coordinator.kv import Compare, Delete, Op, Put, Txn, absent
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.rebalancing import first_records, next_desired, next_ring
from resilient_ps.coordinator.records import ClusterConfig, RingRecord, ShardRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect, Log, SetTimer

PLACE_REF, RING_REF, DESIRED_REF = 22, 25, 26
TIMER = "coordinator/rebalancing"
PAUSE_NS = 20_000_000  # between two plans: they take a while, and changes come in swarms;
PAUSE_PER_SHARD_NS = 200_000  # and longer where there are many shards
SECOND_NS = 10**9
OPS_PER_TXN = 100  # compares, and puts
GONE_AT_ONCE = 40


class Reconciliation:
    """See the module. `grace_ns`: how long a server may be gone before others take its place."""

    def __init__(self, view: ClusterView, mandate: Mandate, draw: DrawBits, grace_ns: int) -> None:
        self._view = view
        self._mandate = mandate
        self._draw = draw
        self._grace = Grace(grace_ns)
        self._ring_at = self._settled_at = -1  # the view's layout when nothing was left to be done
        self._planned_ns = -SECOND_NS
        self._placing = False  # more first records are to follow, at once: nothing is served yet
        self._complaint = ""

    def drop(self) -> None:
        """We are not the coordinator (any more). If we are again, all grace times begin anew."""
        self._grace.drop()
        self._ring_at = self._settled_at = -1
        self._placing = False

    def advance(self, now_ns: int) -> list[Effect]:
        """Do what is missing."""
        view, config = self._view, self._view.config
        assert config is not None
        if view.ring is None and len(view.servers) < config.initial_servers:
            return []
        try:
            return self._ring(now_ns) or self._shards(config, now_ns)
        except BadInput as error:  # weights, names or zones that are too much for a record
            return self._complain(str(error))

    def _complain(self, error: str) -> list[Effect]:
        if error == self._complaint:
            return []
        self._complaint = error
        what = {"error": error, "remedy": "start servers with smaller weights, or shorter zones"}
        return [Log("error", "the ring cannot be changed", what)]

    # -- the ring

    def _ring(self, now_ns: int) -> list[Effect]:
        view, keys = self._view, self._view.keys
        if self._ring_at == view.layout:
            next_ns = self._grace.next_ns()
            if next_ns is None or now_ns < next_ns:
                return []
        ring, drains, processes = view.ring, view.drains, view.processes
        on_ring = [] if ring is None else [member.server for member in ring.members]
        self._grace.look([*on_ring, *drains], processes, now_ns)
        gone = self._grace.over(now_ns)[:GONE_AT_ONCE]
        changed = next_ring(ring, view.servers, drains, gone)
        forgotten = [keys.drain(name) for name in gone if name in drains]
        ops: list[Op] = [Delete(key) for key in forgotten]
        guards = [self._view.as_seen(key) for key in forgotten]
        guards += [absent(keys.server(name)) for name in gone]
        if changed is not None:
            ops.append(Put(keys.ring, changed.to_bytes()))
            guards.append(self._view.as_seen(keys.ring))
        if not ops:
            self._ring_at = view.layout
            return []
        sent = self._mandate.ask(RING_REF, self._mandate.order(*ops, guards=tuple(guards)))
        told = [] if changed is None or not sent else [_ring_log(ring, changed)]
        return [*told, *sent]

    # -- shards

    def _shards(self, config: ClusterConfig, now_ns: int) -> list[Effect]:
        view, ring = self._view, self._view.ring
        if ring is None or self._settled_at == view.layout:
            return []
        if self._mandate.busy(PLACE_REF) or self._mandate.busy(DESIRED_REF):
            return []
        next_ns = self._planned_ns + PAUSE_NS + PAUSE_PER_SHARD_NS * config.shards
        if now_ns < next_ns and not self._placing:
            return [SetTimer(TIMER, next_ns)]
        self._planned_ns = now_ns
        nonce = f"{self._draw(64):016x}"
        new = first_records(config, ring, view.shards, view.processes, nonce)
        self._placing = False
        if new:
            txn, left = self._put_new(new)
            self._placing = left > 0
            return self._mandate.ask(PLACE_REF, txn, nonce.encode())
        changed = next_desired(config, ring, view.shards, view.processes)
        if not changed:
            self._settled_at = view.layout
            return []
        changed = changed[: OPS_PER_TXN - 2]
        puts, guards = self._puts(changed)
        txn = self._mandate.order(*puts, guards=(*guards, self._view.as_seen(view.keys.config)))
        what = {"shards": len(changed), "ring_version": ring.version}
        return [Log("info", "shards are to move", what), *self._mandate.ask(DESIRED_REF, txn)]

    def _put_new(self, records: Sequence[ShardRecord]) -> tuple[Txn, int]:
        """First records: as many as fit with guards that their members are the living processes,
        and how many are left."""
        keys, servers = self._view.keys, set[str]()
        fitting: list[ShardRecord] = []
        void: list[bytes] = []  # leader keys of an earlier incarnation, whose shards begin anew
        for record in records:
            needed = servers.union(member.server for member in record.in_sync)
            leader = keys.leader(record.shard)
            led = [leader] if leader in self._view.items else []
            if len(fitting) + len(void) + len(led) + len(needed) + 2 >= OPS_PER_TXN:
                break
            servers, void = needed, [*void, *led]
            fitting.append(record)
        ops, guards = self._puts(fitting)
        ops += [Delete(key) for key in void]
        guards += [self._view.as_seen(key) for key in void]
        guards += [self._view.as_seen(keys.server(name)) for name in sorted(servers)]
        txn = self._mandate.order(*ops, guards=(*guards, self._view.as_seen(keys.config)))
        return txn, len(records) - len(fitting)

    def _puts(self, records: Sequence[ShardRecord]) -> tuple[list[Op], list[Compare]]:
        keys = [self._view.keys.shard(record.shard) for record in records]
        puts: list[Op] = [
            Put(key, record.to_bytes()) for key, record in zip(keys, records, strict=True)
        ]
        return puts, [self._view.as_seen(key) for key in keys]


def _ring_log(old: RingRecord | None, new: RingRecord) -> Log:
    before = {m.server for m in old.members} if old is not None else set()
    after = {m.server for m in new.members}
    what = {
        "version": new.version,
        "servers": len(after),
        "joined": ", ".join(sorted(after - before)),
        "left": ", ".join(sorted(before - after)),
    }
    return Log("info", "ring changes", what)

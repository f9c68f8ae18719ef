"""A model of etcd's key-value store in memory: the same answers, revisions, leases and watches.

A pure machine with virtual time: whoever owns it says what time it is (`now_ns`, monotonic). The
simulator runs it as its coordination store, and the embedded coordination process serves it over
the network. It passes the same contract tests as real etcd. What it does not do: reads of past
revisions, nested transactions, users, more than one member.

Invariants
* one-revision: `_history[i].revision == _history[0].revision + i`, and the last one is `revision`
* replay: applying `_history` to the state at `compacted` gives `_keys`
* attached: a key's `lease` is 0 or in `_leases`, and then the key is in that lease's keys
* sorted: `_order` holds exactly the keys of `_keys`, ascending
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import overload

from resilient_ps.coordinator.kv import (
    Answer,
    Compare,
    Delete,
    Event,
    KeyValue,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseRevoked,
    LeaseTtl,
    Op,
    OpResult,
    Put,
    Read,
    ReadResult,
    Request,
    Txn,
    TxnResult,
    WatchBatch,
)
from resilient_ps.errors import BadInput, NotFound, Unavailable

NS_PER_S = 1_000_000_000
MAX_HISTORY_EVENTS = 100_000
MAX_STORED_BYTES = 256 * 1024 * 1024
MAX_LEASES = 100_000
MAX_WATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """A watch is over: it needed revisions below `compact_revision`, which are gone."""

    compact_revision: int


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A lease's remaining and granted seconds, and its keys in order."""

    remaining_s: int
    granted_s: int
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    deadline_ns: int
    keys: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class _Watch:
    prefix: bytes
    next_revision: int


class MemoryKv:
    """The store. `first_lease` is the number of the first lease granted, `min_ttl_s` the least TTL
    (etcd: 1.5 election timeouts, rounded up). Beyond `max_history_events` the older half of the
    history is compacted; beyond `max_stored_bytes` puts raise `Unavailable`."""

    def __init__(
        self,
        *,
        cluster_id: int = 1,
        first_lease: int = 1,
        min_ttl_s: int = 1,
        max_history_events: int = MAX_HISTORY_EVENTS,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self.cluster_id = cluster_id
        self.revision = 1
        self.compacted = 0
        self._min_ttl_s = min_ttl_s
        self._max_history_events = max_history_events
        self._max_stored_bytes = max_stored_bytes
        self._keys: dict[bytes, KeyValue] = {}
        self._order: list[bytes] = []
        self._stored_bytes = 0
        self._history: list[WatchBatch] = []
        self._history_events = 0
        self._leases: dict[int, _Lease] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap of (deadline_ns, lease), some outdated
        self._next_lease = first_lease
        self._watches: dict[int, _Watch] = {}
        self._next_watch = 1

    @property
    def stored_bytes(self) -> int:
        """Bytes of all keys and values that exist now."""
        return self._stored_bytes

    @property
    def lease_count(self) -> int:
        """How many leases there are."""
        return len(self._leases)

    # --- requests ------------------------------------------------------------------------------

    @overload
    def apply(self, request: Txn, now_ns: int) -> TxnResult: ...
    @overload
    def apply(self, request: Read, now_ns: int) -> ReadResult: ...
    @overload
    def apply(self, request: LeaseGrant, now_ns: int) -> Leased: ...
    @overload
    def apply(self, request: LeaseRefresh, now_ns: int) -> LeaseTtl: ...
    @overload
    def apply(self, request: LeaseRevoke, now_ns: int) -> LeaseRevoked: ...
    def apply(self, request: Request, now_ns: int) -> Answer:
        """Expires leases that are due, then performs the request. A request that raises
        (`NotFound`: a lease that does not exist; `Unavailable`: full) has changed nothing."""
        self.expire(now_ns)
        if isinstance(request, Txn):
            return self._txn(request)
        if isinstance(request, Read):
            return self._read(request, self.revision)
        if isinstance(request, LeaseGrant):
            return self.grant(request.ttl_s, now_ns)
        if isinstance(request, LeaseRefresh):
            return self._refresh(request.lease, now_ns)
        return self._revoke(request.lease)

    def grant(self, ttl_s: int, now_ns: int, *, lease: int = 0) -> Leased:
        """Grants a lease; `lease` asks for that number, and `BadInput` says that it is taken."""
        if lease in self._leases:
            raise BadInput(f"lease {lease} already exists: ask for another number")
        if len(self._leases) >= MAX_LEASES:
            raise Unavailable(f"{MAX_LEASES} leases exist, the most allowed: revoke some")
        if not lease:
            lease = self._free_lease()
        granted = _Lease(max(ttl_s, self._min_ttl_s), 0)
        self._leases[lease] = granted
        self._extend(lease, granted, now_ns)
        return Leased(lease, granted.ttl_s)

    def lease_status(self, lease: int, now_ns: int) -> LeaseStatus | None:
        """None when there is no such lease."""
        self.expire(now_ns)
        found = self._leases.get(lease)
        if found is None:
            return None
        remaining_s = (found.deadline_ns - now_ns) // NS_PER_S
        return LeaseStatus(remaining_s, found.ttl_s, tuple(sorted(found.keys)))

    def lease_deadline_ns(self, lease: int) -> int:
        """When the lease ends if it is not refreshed; 0 when there is no such lease."""
        found = self._leases.get(lease)
        return 0 if found is None else found.deadline_ns

    # --- time ----------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> None:
        """Ends every lease whose deadline has come; each with keys makes one revision."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, lease = heappop(self._deadlines)
            found = self._leases.get(lease)
            if found is not None and found.deadline_ns == deadline_ns:
                self._revoke(lease)

    def renew_leases(self, now_ns: int) -> None:
        """Gives every lease its whole TTL again, as a new leader of etcd does: also those that
        would have ended while there was none."""
        for lease in sorted(self._leases):
            self._extend(lease, self._leases[lease], now_ns)

    def next_expiry_ns(self) -> int | None:
        """When `expire` will next have something to do (or earlier), None without leases."""
        return self._deadlines[0][0] if self._deadlines else None

    def compact(self, revision: int) -> None:
        """Forgets history below `revision`. `BadInput` if it is compacted already or in the
        future."""
        if revision <= self.compacted:
            raise BadInput(f"revision {revision} is compacted already (up to {self.compacted})")
        if revision > self.revision:
            raise BadInput(f"revision {revision} is in the future (now {self.revision})")
        dropped = bisect_left(self._history, revision, key=lambda batch: batch.revision)
        self._history_events -= sum(len(batch.events) for batch in self._history[:dropped])
        del self._history[:dropped]
        self.compacted = revision

    # --- watches -------------------------------------------------------------------------------

    def watch(self, prefix: bytes, from_revision: int) -> int:
        """Opens a watch from a revision (0: from the next one); returns its number."""
        if len(self._watches) >= MAX_WATCHES:
            raise Unavailable(f"{MAX_WATCHES} watches are open, the most allowed: close some")
        number = self._next_watch
        self._next_watch += 1
        self._watches[number] = _Watch(prefix, from_revision or self.revision + 1)
        return number

    def unwatch(self, watch: int) -> None:
        self._watches.pop(watch, None)

    def poll(self, watch: int) -> tuple[WatchBatch, ...] | Compacted:
        """What happened since the last poll. After `Compacted` the watch does not exist any more;
        polling a watch that does not exist gives nothing."""
        found = self._watches.get(watch)
        if found is None:
            return ()
        if found.next_revision < self.compacted:
            del self._watches[watch]
            return Compacted(self.compacted)
        first = bisect_left(self._history, found.next_revision, key=lambda batch: batch.revision)
        found.next_revision = max(found.next_revision, self.revision + 1)
        batches = (_under(found.prefix, batch) for batch in self._history[first:])
        return tuple(batch for batch in batches if batch.events)

    # --- transactions --------------------------------------------------------------------------

    def _txn(self, txn: Txn) -> TxnResult:
        succeeded = all(self._holds(compare) for compare in txn.compares)
        branch = txn.success if succeeded else txn.failure
        self._check_branch(branch)
        events: list[Event] = []
        results = tuple(self._perform(op, events) for op in branch)
        self._commit(events)
        return TxnResult(succeeded, self.revision, results)

    def _holds(self, compare: Compare) -> bool:
        found = self._keys.get(compare.key)
        if found is None and compare.target == "value":
            return False  # etcd: a missing key has no value to compare, not even an empty one
        actual = 0 if found is None else _field(found, compare)
        # The vocabulary guarantees that both are bytes or both int.
        left, right = actual, compare.operand
        if compare.op == "=":
            return left == right
        if compare.op == "!=":
            return left != right
        return left < right if compare.op == "<" else left > right  # type: ignore[operator]

    def _check_branch(self, branch: tuple[Op, ...]) -> None:
        puts = [op for op in branch if isinstance(op, Put)]
        for op in puts:
            if op.lease and op.lease not in self._leases:
                raise NotFound(f"put of {op.key!r}: lease {op.lease} does not exist; grant it anew")
        added_bytes = sum(len(op.key) + len(op.value) for op in puts)
        if puts and self._stored_bytes + added_bytes > self._max_stored_bytes:
            raise Unavailable(
                f"the store is full ({self._stored_bytes} of {self._max_stored_bytes} bytes): "
                "delete keys"
            )

    def _perform(self, op: Op, events: list[Event]) -> OpResult:
        if isinstance(op, Put):
            self._put(op, events)
            return None
        if isinstance(op, Delete):
            doomed = self._matching(op)
            for key in doomed:
                self._remove(key, events)
            return len(doomed)
        return self._read(op, self.revision + bool(events))

    def _read(self, read: Read, revision: int) -> ReadResult:
        keys = self._matching(read)
        if read.limit:
            keys = keys[: read.limit]
        return ReadResult(tuple([self._keys[key] for key in keys]), revision)

    def _put(self, op: Put, events: list[Event]) -> None:
        old = self._keys.get(op.key)
        revision = self.revision + 1
        if old is None:
            insort(self._order, op.key)
            new = KeyValue(op.key, op.value, revision, revision, 1, op.lease)
        else:
            self._forget(old)
            new = KeyValue(
                op.key, op.value, old.create_revision, revision, old.version + 1, op.lease
            )
        if op.lease:
            self._leases[op.lease].keys.add(op.key)
        self._stored_bytes += len(new.key) + len(new.value)
        self._keys[op.key] = new
        events.append(Event("put", new))

    def _remove(self, key: bytes, events: list[Event]) -> None:
        old = self._keys.pop(key)
        self._forget(old)
        del self._order[bisect_left(self._order, key)]
        events.append(Event("delete", KeyValue(key, b"", 0, self.revision + 1, 0)))

    def _forget(self, old: KeyValue) -> None:
        self._stored_bytes -= len(old.key) + len(old.value)
        if old.lease in self._leases:
            self._leases[old.lease].keys.discard(old.key)

    def _matching(self, op: Read | Delete) -> list[bytes]:
        if not op.prefix:
            return [op.key] if op.key in self._keys else []
        order, prefix = self._order, op.key  # what begins alike stands together
        first = bisect_left(order, prefix)
        end = bisect_left(order, 1, first, key=lambda key: not key.startswith(prefix))
        return order[first:end]

    def _commit(self, events: list[Event]) -> None:
        if not events:
            return
        self.revision += 1
        self._history.append(WatchBatch(self.revision, tuple(events)))
        self._history_events += len(events)
        if self._history_events > self._max_history_events:
            self.compact(self._history[len(self._history) // 2].revision)

    # --- leases --------------------------------------------------------------------------------

    def _refresh(self, lease: int, now_ns: int) -> LeaseTtl:
        found = self._leases.get(lease)
        if found is None:
            return LeaseTtl(lease, 0)
        self._extend(lease, found, now_ns)
        return LeaseTtl(lease, found.ttl_s)

    def _revoke(self, lease: int) -> LeaseRevoked:
        found = self._leases.pop(lease, None)
        if found is None:
            raise NotFound(f"lease {lease} does not exist: it has expired or was revoked")
        events: list[Event] = []
        for key in sorted(found.keys):
            self._remove(key, events)
        self._commit(events)
        return LeaseRevoked(lease)

    def _extend(self, lease: int, found: _Lease, now_ns: int) -> None:
        found.deadline_ns = now_ns + found.ttl_s * NS_PER_S
        heappush(self._deadlines, (found.deadline_ns, lease))
        if len(self._deadlines) > 2 * len(self._leases) + 64:
            self._deadlines = sorted((kept.deadline_ns, n) for n, kept in self._leases.items())

    def _free_lease(self) -> int:
        while self._next_lease in self._leases:
            self._next_lease += 1
        self._next_lease += 1
        return self._next_lease - 1


def _field(found: KeyValue, compare: Compare) -> bytes | int:
    if compare.target == "value":
        return found.value
    if compare.target == "version":
        return found.version
    if compare.target == "create":
        return found.create_revision
    return found.mod_revision if compare.target == "mod" else found.lease


def _under(prefix: bytes, batch: WatchBatch) -> WatchBatch:
    events = tuple([event for event in batch.events if event.item.key.startswith(prefix)])
    return batch if len(events) == len(batch.events) else replace(batch, events=events)

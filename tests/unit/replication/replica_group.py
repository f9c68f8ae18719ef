"""Replicas of one shard, connected by hand: the test decides the order of everything.

Nothing moves by itself. Between two servers there is a queue of parts in each direction; calls to
etcd wait until the test performs them; what etcd holds is seen by a server when the test says so.
`settle` moves everything until nothing is left, for the stretches in which order does not matter.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from resilient_ps.consistency import ASP, JobSpec
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    KeyValue,
    KvAnswered,
    KvCall,
    KvFailed,
    LeaseRefresh,
    LeaseRevoke,
    Put,
    Read,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.errors import DeadlineExceeded, NotFound, ResilientPsError
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import Epoch, WorkerId
from resilient_ps.machine import Exit, Log
from resilient_ps.messages import AppendedPart, AppendPart, Command, Copy, Kind, PartAnswer, Status
from resilient_ps.replication.applying import apply_all
from resilient_ps.replication.claims import Claim, Known
from resilient_ps.replication.home import Home, Out, ToServer
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.replica import Replica
from resilient_ps.shard import Reply, Shard
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.waiting import Origin

KEYS = ClusterKeys("c")
MS = 1_000_000
SECOND_NS = 1_000 * MS
TTL_S = 5
ME = WorkerId(1, 0, 1)
STEPS_MAX = 10_000

Told = AppendPart | Copy | AppendedPart


@dataclass
class Side:
    """One server process, with its replica of the shard."""

    home: Home
    replica: Replica
    calls: deque[tuple[KvCall, Claim]] = field(default_factory=deque)
    logs: list[str] = field(default_factory=list)
    exit: Exit | None = None

    @property
    def leading(self) -> Leading:
        assert self.replica.leading is not None, self.replica.status()
        return self.replica.leading

    @property
    def shard(self) -> Shard:
        assert self.replica.shard is not None, self.replica.status()
        return self.replica.shard


class Group:
    """Servers a, b, ... of whom the `in_sync` ones hold shard 0 from the first."""

    def __init__(
        self,
        *names: str,
        in_sync: str | None = None,
        desired: str | None = None,
        min_in_sync: int = 1,
        guards: Guards = ALL_GUARDS,
    ) -> None:
        self.kv = MemoryKv()
        self.now_ns = SECOND_NS
        self.config = self._put(KEYS.config, b"config")
        self.sides: dict[str, Side] = {}
        self.parts: dict[tuple[str, str], deque[Told]] = {}
        self.replies: dict[int, PartAnswer] = {}
        self._servers_changed = False  # since the last `tend`
        self._requests = itertools.count(1)
        self._processes = itertools.count(1)
        self._min_in_sync, self._guards = min_in_sync, guards
        for name in names:
            self.start(name)
        members = tuple(self.sides[name].home.me for name in (in_sync or "".join(names)))
        wanted = tuple(desired or "".join(names))
        record = ShardRecord(0, Epoch(1, 0), "", 0, members, wanted, 1, "first")
        self._put(KEYS.shard(0), record.to_bytes())

    def _put(self, key: bytes, value: bytes) -> int:
        return self.kv.apply(Txn((), (Put(key, value),)), self.now_ns).revision

    # -- processes and leases

    def start(self, name: str) -> Side:
        """A new process of this name, registered, and known to all."""
        me = Member(name, next(self._processes))
        nonces = itertools.count(me.process << 32)
        home = Home(me, KEYS, 1, lambda bits: next(nonces), self._guards)
        home.min_in_sync = self._min_in_sync
        side = self.sides[name] = Side(home, Replica(0, home))
        self.register(name)
        for other in self.sides:
            self.parts[name, other] = deque()
            self.parts[other, name] = deque()
        return side

    def register(self, name: str) -> None:
        """Give a server a (new) lease."""
        self.sides[name].home.lease = self.kv.grant(TTL_S, self.now_ns).lease
        self._tell_leases()

    def _tell_leases(self) -> None:
        self._servers_changed = True
        leases = {s.home.me: s.home.lease for s in self.sides.values() if s.home.lease}
        for side in self.sides.values():
            side.home.leases = leases

    def expire(self, name: str) -> None:
        """The lease of a server ends, and everybody knows; it does so too."""
        lease = self.sides[name].home.lease
        self.kv.apply(LeaseRevoke(lease), self.now_ns)
        self.sides[name].home.lease = 0
        self._tell_leases()

    def kill(self, name: str) -> Side:
        """A process ends: nothing of it is delivered any more. Its lease goes on."""
        side = self.sides.pop(name)
        for pair in [pair for pair in self.parts if name in pair]:
            del self.parts[pair]
        return side

    def bury(self, side: Side) -> None:
        """The lease of a killed process ends, if it has not yet."""
        with suppress(NotFound):
            self.kv.apply(LeaseRevoke(side.home.lease), self.now_ns)
        self._tell_leases()

    # -- etcd

    @property
    def record(self) -> ShardRecord:
        item = self._item(KEYS.shard(0))
        assert item is not None
        return ShardRecord.from_bytes(item.value, item.key)

    def _item(self, key: bytes) -> KeyValue | None:
        items = self.kv.apply(Read(key), self.now_ns).items
        return items[0] if items else None

    def known(self) -> Known:
        """What etcd holds at the moment: to be seen now, or later."""
        item, leader = self._item(KEYS.shard(0)), self._item(KEYS.leader(0))
        assert item is not None
        at = (0, 0) if leader is None else (leader.mod_revision, leader.lease)
        return Known(self.record, item.mod_revision, *at, self.config, item.version)

    def see(self, name: str, known: Known | None = None) -> None:
        """A server's watch brings it what etcd holds (or held)."""
        side = self.sides[name]
        self._perform(name, side.replica.on_known(known or self.known(), self.now_ns))

    def wish(self, desired: str) -> None:
        """The coordinator changes where the shard is to be."""
        self._put(KEYS.shard(0), replace(self.record, desired=tuple(desired)).to_bytes())

    def call(self, name: str, *, lost: bool = False, late: bool = False) -> TxnResult | None:
        """etcd performs a server's oldest call. `lost`: no answer comes; `late`: nor is it done."""
        side = self.sides[name]
        call, claim = side.calls.popleft()
        del side.home.calls[call.ref]
        result: TxnResult | None = None
        event: KvAnswered | KvFailed
        try:
            assert isinstance(call.request, Txn)
            if not late:
                result = self.kv.apply(call.request, self.now_ns)
            event = KvAnswered(call.ref, result) if result else _unknown(call.ref)
        except ResilientPsError as error:
            event = KvFailed(call.ref, error, unknown=False)
        if lost:
            event = _unknown(call.ref)
        self._perform(name, side.replica.on_kv(claim, event, self.now_ns))
        return result

    def claims(self, name: str) -> list[Claim]:
        """What a server has asked etcd for, and not been answered."""
        return [claim for _, claim in self.sides[name].calls]

    # -- the network

    def _perform(self, name: str, outs: Sequence[Out]) -> None:
        side = self.sides[name]
        for out in outs:
            match out:
                case Reply(origin, answer):
                    self.replies[origin.request] = answer
                case ToServer(server, message):
                    if (name, server) in self.parts:
                        self.parts[name, server].append(message)
                case KvCall(ref):
                    side.calls.append((out, side.home.calls[ref][1]))
                case Exit():
                    side.exit = out
                case Log(_, event):
                    side.logs.append(event)

    def deliver(self, source: str, target: str, count: int = 1) -> list[Told]:
        """The next parts from one server to another arrive; what was delivered."""
        queue = self.parts[source, target]
        delivered = [queue.popleft() for _ in range(count)]
        for part in delivered:
            self.bring(source, target, part)
        return delivered

    def bring(self, source: str, target: str, part: Told) -> None:
        """This part arrives, in whatever order."""
        side, sender = self.sides[target], self.sides[source].home.me
        if isinstance(part, AppendedPart):
            self._perform(target, side.replica.on_appended(sender, part, self.now_ns))
            return
        if isinstance(part, Copy):
            answer, outs = side.replica.on_copy(part, self.now_ns)
        else:
            answer, outs = _append(side.replica, part)
        self._perform(target, outs)
        if answer is not None:
            self.parts[target, source].append(answer)

    def cut(self, source: str, target: str) -> None:
        """The connection that `source` has made breaks: what was under way is lost, both ways."""
        self.parts[source, target].clear()
        answers = self.parts[target, source]
        kept = [part for part in answers if not isinstance(part, AppendedPart)]
        answers.clear()
        answers.extend(kept)
        self.sides[source].replica.on_lost(target, self.now_ns)

    # -- time and quiescence

    def timers(self, *names: str, after_ns: int = 100 * MS) -> None:
        """Time goes by, leases are renewed, and the replicas' timers fire."""
        self.now_ns += after_ns
        for side in self.sides.values():
            if side.home.lease:
                self.kv.apply(LeaseRefresh(side.home.lease), self.now_ns)
        for name in names or sorted(self.sides):
            if name in self.sides:
                self._perform(name, self.sides[name].replica.on_timer(self.now_ns))

    def tend(self) -> None:
        """As a server does: let time bring forward what is not at rest, and all when servers came
        or went."""
        names = [
            name
            for name, side in sorted(self.sides.items())
            if self._servers_changed or not side.replica.at_rest
        ]
        self._servers_changed = False
        self.timers(*(names or ["nobody"]))

    def settle(self) -> None:
        """Deliver, perform and show everything, until nothing moves. No time goes by."""
        for _ in range(STEPS_MAX):
            if not self._step():
                return
        raise AssertionError("it does not come to rest")

    def _step(self) -> bool:
        for name in sorted(self.sides):
            if self.sides[name].calls:
                self.call(name)
                return True
        for pair, queue in sorted(self.parts.items()):
            if queue:
                self.deliver(*pair)
                return True
        known = self.known()
        for name in sorted(self.sides):
            if self.sides[name].replica.known != known:
                self.see(name, known)
                if self.sides[name].replica.known == known:
                    return True
        return False

    def run(self, seconds: float) -> None:
        """Let time go by in steps of the timer, everything settled in between."""
        for _ in range(int(seconds * 10)):
            self.settle()
            self.tend()
        self.settle()

    # -- asking

    def write(self, name: str, command: Command) -> int:
        """A client's write at this server; the number under which `replies` has the answer."""
        request = next(self._requests)
        leading = self.sides[name].replica.serving
        assert leading is not None, f"{name} does not serve"
        self._perform(name, leading.write(command, Origin("client:1", request), self.now_ns))
        return request

    def push(self, name: str, n: int) -> int:
        """Push number n of the only rank: it adds 1 to key n."""
        keys, values = np.array([n], np.uint64), np.ones(1, np.int64)
        fields: dict[str, Any] = {"clock": 1, "n": n, "prev": n - 1, "table": 1}
        return self.write(name, Command(Kind.PUSH, ME, keys=keys, values=values, **fields))

    def serves(self, name: str) -> bool:
        """Is a server the primary, and may answer?"""
        return self.sides[name].replica.serving is not None

    def role(self, name: str) -> str:
        """Which part a server's replica plays."""
        return self.sides[name].replica.role

    def status(self, request: int) -> Status | None:
        """What became of a write; None: nothing yet."""
        answer = self.replies.get(request)
        return None if answer is None else answer.status

    def pushed(self, name: str) -> list[int]:
        """The pushes that a replica has applied; one that was applied twice is there twice."""
        keys = np.arange(1, 200, dtype=np.uint64)
        counts = self.sides[name].shard.tables[1].pull(keys)
        return [
            int(key) for key, count in zip(keys, counts.ravel(), strict=True) for _ in range(count)
        ]

    def alike(self) -> bool:
        """Do all replicas hold the same, applied?"""
        return len({side.shard.digest() for side in self.sides.values()}) == 1


def _unknown(ref: int) -> KvFailed:
    return KvFailed(ref, DeadlineExceeded("no answer"), unknown=True)


def openings() -> Iterator[Command]:
    """A table, a job and its rank."""
    text = SparseSpec("sums", 1, "int64", Sum()).to_json().encode()
    yield Command(Kind.OPEN_TABLE, table=1, text=text)
    text = JobSpec(1, "job", 1, ASP()).to_json().encode()
    yield Command(Kind.OPEN_JOB, WorkerId(1, 0, 0), text=text)
    yield Command(Kind.FENCE, ME)


def led(*names: str, **options: Any) -> Group:
    """A group whose first server serves, with a table, a job and a rank: lsn 4 on all."""
    group = Group(*names, **options)
    group.see(names[0])
    group.settle()
    for command in openings():
        group.write(names[0], command)
    group.settle()
    group.timers()
    group.settle()
    assert group.serves(names[0])
    assert {side.replica.log.applied for side in group.sides.values() if side.replica.shard} == {4}
    return group


def _append(replica: Replica, part: AppendPart) -> tuple[AppendedPart | None, list[Out]]:
    """Entries of a primary are held, and what is due is applied, as a server does it."""
    answer, outs = replica.hold_plainly(part), []
    if answer is None:
        answer, outs = replica.hold(part)
    due = replica.due(part, answer)
    if due is not None:
        apply_all([due])
    return answer, outs

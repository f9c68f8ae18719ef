"""A holder of tasks in a world: it registers in etcd, asks for tasks, and takes their lanes over.

A program is a generator as that of any worker (`worker`), with some more operations:

    yield Register()                     # the holder's key is in etcd, under its lease
    told = yield Inquire(ask)            # a `TaskTold` of an elected coordinator, whoever it is
    settled = yield Take(granted)        # the lane is taken over on all shards
    yield Anew(ready)                    # after a rollback: in the incarnation that there is now
    yield Tell(step)                     # to shards, outside of any task
    yield Leave()                        # nothing more is wanted

What is asked and told are the production's values (`coordinator.task_asks`), and so is the session.
A lease that was lost is drawn again under the same name, as the production's holder does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from resilient_ps.chaos.sim.worker import LOOK_NS, Program, SimWorker
from resilient_ps.chaos.sim.world import SECOND_NS, World
from resilient_ps.consistency import JobSpec
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Compare,
    KeyValue,
    KvAnswered,
    KvCall,
    KvFailed,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseTtl,
    Put,
    Read,
    ReadResult,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.task_asks import Granted, TaskAsk, TaskTold
from resilient_ps.coordinator.task_records import HolderRecord
from resilient_ps.ids import READER, WorkerId
from resilient_ps.machine import Event, MessageArrived, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import Ask, Told
from resilient_ps.routing import PEER_PREFIX, Address, Routing, routing_from
from resilient_ps.session import Resolved
from resilient_ps.takeover import Settled, Step

LEASE_TTL_S = 2
BEAT_NS = SECOND_NS // 2
AGAIN_NS = 150_000_000
ANSWER_NS = 2 * SECOND_NS  # how much longer than it may wait an answer may take

LEASE_REF, KEY_REF, BEAT_REF, FIND_REF, LEAVE_REF = 101, 102, 103, 104, 105
_REFS = frozenset({LEASE_REF, KEY_REF, BEAT_REF, FIND_REF, LEAVE_REF})
LEASE_TIMER, ASK_TIMER = "holder/lease", "holder/ask"


class Register(NamedTuple):
    """Be known as a holder; where there is no such graph, that is tried again and again."""


class Inquire(NamedTuple):
    """Ask the coordinator. The result is a `TaskTold` that says `elected`."""

    ask: TaskAsk


class Take(NamedTuple):
    """Take the lane of a granted task over. The result is `Settled`."""

    granted: Granted


class Anew(NamedTuple):
    """Begin in another incarnation of the cluster, with no task in hand: where `ready` says."""

    ready: Callable[[], Routing | None]


class Leave(NamedTuple):
    """Give the lease back."""


class Tell(NamedTuple):
    """A request to shards that is no task's write."""

    step: Step


Doing: TypeAlias = Generator[Any, Any, Any]
"""What a program, or a part of one, does: operations of workers, and those above."""


class SimHolder(SimWorker):
    """A process that does the tasks of one graph, whose job is `job`."""

    def __init__(
        self, world: World, routing: Routing, name: str, program: Program, job: JobSpec, host: str
    ) -> None:
        super().__init__(world, routing, name, program, host=host)
        self._of = job
        self._keys = ClusterKeys(world.cluster)
        self._lease = 0
        self._left = False
        self._registering: int | None = None  # the operation that waits for it
        self._question: tuple[int, TaskAsk] | None = None  # the operation, and what it asks
        self._asked = 0  # number of the last question
        self._peer = ""  # whom it went to; "": whoever is elected has to be found
        self._servers: dict[str, Address] = {}  # as etcd said when the coordinator was looked for

    @property
    def name(self) -> str:
        """Under which it is registered."""
        return self.process.name

    def begin(self) -> None:
        """Run the program."""
        self._next(None)

    def address_of(self, peer: str) -> Address | None:
        """Where a server listens: what is known of its latest process."""
        name = peer.removeprefix(PEER_PREFIX)
        known = [a for a in (self._servers.get(name), super().address_of(peer)) if a is not None]
        return max(known, key=lambda address: address.process, default=None)

    # -- operations

    def _begin(self, operation: Any) -> list[Any]:
        match operation:
            case Register():
                self._registering = self._begun()
                return [KvCall(LEASE_REF, LeaseGrant(LEASE_TTL_S))]
            case Inquire(ask):
                self._question = (self._begun(), ask)
                return self._ask()
            case Take(granted):
                return self._take(granted)
            case Anew(ready):
                self._begin_anew(self._begun(), ready)
                return []
            case Leave():
                lease, self._lease, self._left = self._lease, 0, True
                return [KvCall(LEAVE_REF, LeaseRevoke(lease)), Resolved(self._begun())]
            case Tell(step):
                now_ns = self.process.now_ns
                return list(self.session.broadcast(self._begun(), step, now_ns))
            case _:
                return super()._begin(operation)

    def _on_resolved(self, effect: Any) -> None:
        """What is said of an operation that was given up does not matter: the next one is told."""
        assert isinstance(effect, Resolved)
        if effect.op not in self._open:
            return
        if isinstance(effect.value, TaskTold | Settled):
            self._open.discard(effect.op)
            self._next(effect.value)
        else:
            super()._on_resolved(effect)

    def _take(self, granted: Granted) -> list[Any]:
        worker = WorkerId(self._of.job, granted.rank, granted.token)
        return list(self.session.take(self._begun(), self._of, worker, self.process.now_ns))

    def _begin_anew(self, op: int, ready: Callable[[], Routing | None]) -> None:
        routing = ready()
        if routing is None:
            self._after(LOOK_NS, partial(self._begin_anew, op, ready))
            return
        self.incarnation = routing.incarnation
        now_ns = self.process.now_ns
        self.process.perform(list(self.session.resume(op, routing, READER, now_ns, self._of)))

    # -- events

    def handle(self, event: Event, now_ns: int) -> list[Any]:
        """What is for the holder, and all else for the session."""
        match event:
            case KvAnswered(ref, result) if ref in _REFS:
                return self._on_kv(ref, result)
            case KvFailed(ref) if ref in _REFS:
                return self._on_kv(ref, None)
            case TimerFired(name) if name == LEASE_TIMER and self._left:
                return []
            case TimerFired(name) if name == LEASE_TIMER:
                refresh = LeaseRefresh(self._lease) if self._lease else LeaseGrant(LEASE_TTL_S)
                return [KvCall(BEAT_REF if self._lease else LEASE_REF, refresh)]
            case TimerFired(name) if name == ASK_TIMER:
                return self._find()
            case MessageArrived(peer, Told() as told):
                return self._on_told(told) if peer == self._peer else []
            case PeerLost(peer) if peer == self._peer:
                return [*self._look_again(), *super().handle(event, now_ns)]
            case _:
                return super().handle(event, now_ns)

    def _on_kv(self, ref: int, result: Any) -> list[Any]:
        """`result` None: the call has failed, or its outcome is not known."""
        if self._left:
            return []
        match result:
            case Leased(lease) if ref == LEASE_REF:
                self._lease = lease
                return [KvCall(KEY_REF, self._entry(lease))]
            case TxnResult(True) if ref == KEY_REF:
                return [self._timer(LEASE_TIMER, BEAT_NS), *self._registered()]
            case LeaseTtl(_, ttl_s) if ref == BEAT_REF and ttl_s:
                return [self._timer(LEASE_TIMER, BEAT_NS)]
            case ReadResult(items) if ref == FIND_REF:
                return self._on_found(items)
            case _ if ref == FIND_REF:
                return [self._timer(ASK_TIMER, AGAIN_NS)]
            case LeaseTtl() | TxnResult():  # the lease is lost, or there is no such graph
                self._lease = 0
                return [self._timer(LEASE_TIMER, AGAIN_NS), *self._registered()]
            case _:  # of a lease that may have been lost, the next beat is told
                self._lease = self._lease if ref == BEAT_REF else 0
                return [self._timer(LEASE_TIMER, AGAIN_NS)]

    def _entry(self, lease: int) -> Txn:
        keys, graph = self._keys, self._of.name
        record = HolderRecord(self.process.host, self.process.number)
        there = Compare(keys.graph(graph), "version", ">", 0)
        return Txn((there,), (Put(keys.holder(graph, self.name), record.to_bytes(), lease),))

    def _registered(self) -> list[Any]:
        op, self._registering = self._registering, None
        return [] if op is None else [Resolved(op)]

    def _timer(self, name: str, ns: int) -> SetTimer:
        return SetTimer(name, self.process.now_ns + ns)

    # -- questions

    def _ask(self) -> list[Any]:
        """Put the question, to whoever is believed to be elected."""
        if self._question is None:
            return []
        if not self._peer:
            return self._find()
        self._asked += 1
        ask = self._question[1]
        patience_ns = int(ask.wait_s * SECOND_NS) + ANSWER_NS
        question = Ask(self._asked, json.dumps(ask.to_json()))
        return [Send(self._peer, question), self._timer(ASK_TIMER, patience_ns)]

    def _find(self) -> list[Any]:
        if self._question is None:
            return []
        self._peer = ""
        return [KvCall(FIND_REF, Read(self._keys.prefix, prefix=True))]

    def _on_found(self, items: tuple[KeyValue, ...]) -> list[Any]:
        routing = routing_from(items, self._keys)
        elected = [item.value for item in items if item.key == self._keys.coordinator_leader]
        if routing is not None:
            self._servers = routing.servers
        if routing is None or not elected:
            return self._look_again()
        self._peer = PEER_PREFIX + str(json.loads(elected[0])["server"])
        return self._ask()

    def _look_again(self) -> list[Any]:
        self._peer = ""
        return [self._timer(ASK_TIMER, AGAIN_NS)]

    def _on_told(self, told: Told) -> list[Any]:
        if self._question is None or told.request != self._asked:
            return []
        answer = TaskTold.from_json(json.loads(told.body))
        if not answer.elected:
            return self._look_again()
        (op, _), self._question = self._question, None
        return [Resolved(op, answer)]

"""A node with etcd's model behind it, and somebody who asks it."""

from __future__ import annotations

from typing import Any

from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvWatch,
    Put,
    Txn,
)
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.coordinator.records import Member, ServerRecord, ShardRecord
from resilient_ps.errors import ResilientPsError, Unavailable
from resilient_ps.ids import NOWHERE, Epoch, Position
from resilient_ps.machine import (
    Log,
    MessageArrived,
    Send,
    SetTimer,
    Started,
    TimerFired,
)
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Hello,
    Kind,
    Part,
    Request,
    Status,
)
from resilient_ps.node import NodeSettings, build_node, one_by_one
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

KEYS = ClusterKeys("c")
SECOND_NS = 10**9
LEASE_S = 4 * 0.95  # of a TTL of 4 s, as clocks may differ in rate
CLIENT = "client:1"
RECORD = ServerRecord("s1", 77, "127.0.0.1", 7000, "", "", 1.0, 0, "0.1", 1, "host")


class Served:
    """A node with etcd's model behind it; all effects are performed at once."""

    def __init__(self, wishes: ClusterWishes | None = None) -> None:
        self.model = MemoryKv()
        self.now_ns = SECOND_NS
        self.together: list[int] = []  # how many tasks were run in parallel, each time
        settings = NodeSettings("c", RECORD, 4, wishes or ClusterWishes())
        self.node = build_node(settings, lambda bits: 5, self._in_parallel)
        self.sent: list[Send] = []
        self.logs: list[Log] = []
        self.others: list[Any] = []
        self.timers: dict[str, int] = {}
        self.watch: int | None = None
        self.etcd_answers = True

    def handle(self, event: Any) -> None:
        effects: list[Any] = [*self.node.handle(event, self.now_ns), *self._changes()]
        while effects:
            effect = effects.pop(0)
            match effect:
                case KvCall(ref, request) if self.etcd_answers:
                    effects += self.node.handle(self._ask(ref, request), self.now_ns)
                case KvCall(ref):
                    failed = KvFailed(ref, Unavailable("no etcd"), unknown=True)
                    effects += self.node.handle(failed, self.now_ns)
                case KvWatch(_, prefix, revision):
                    self.watch = self.model.watch(prefix, revision)
                case Send():
                    self.sent.append(effect)
                case Log():
                    self.logs.append(effect)
                case SetTimer(name, at_ns):
                    self.timers[name] = at_ns
                case _:
                    self.others.append(effect)
            effects += self._changes()

    def _in_parallel(self, tasks: Any) -> Any:
        self.together.append(len(tasks))
        return one_by_one(tasks)

    def _ask(self, ref: int, request: Any) -> KvAnswered | KvFailed:
        try:
            return KvAnswered(ref, self.model.apply(request, self.now_ns))
        except ResilientPsError as error:
            return KvFailed(ref, error, unknown=False)

    def _changes(self) -> list[Any]:
        if self.watch is None:
            return []
        batches = self.model.poll(self.watch)
        assert not isinstance(batches, Compacted)
        return [
            effect
            for batch in batches
            for effect in self.node.handle(KvChanged(31, batch), self.now_ns)
        ]

    def put(self, key: bytes, value: bytes, lease: int = 0) -> None:
        """A change in etcd that the node sees."""
        self.model.apply(Txn((), (Put(key, value, lease),)), self.now_ns)
        self.handle(TimerFired("nothing"))

    def says(self, message: Any, peer: str = CLIENT) -> list[Any]:
        """What the node answers to a message: messages to that peer, and drops."""
        self.sent.clear()
        self.others.clear()
        self.handle(MessageArrived(peer, message))
        return [send.message for send in self.sent if send.peer == peer] + self.others


def serving(*, greeted: bool = True) -> Served:
    """A server that has set up its own cluster, and a client that has said hello."""
    served = Served()
    served.handle(Started())
    assert numbers(served) == [0, 1, 2, 3]
    if greeted:
        served.says(Hello(PROTOCOL, "c", "a test"))
    return served


def numbers(served: Served) -> list[int]:
    """The shards that the node is primary of."""
    return [shard.number for shard in served.node.served()]


def elsewhere(shard: int, epoch: int = 2, process: int = 88, server: str = "s2") -> bytes:
    """The record of a shard that another process holds alone."""
    member = Member(server, process)
    record = ShardRecord(shard, Epoch(1, epoch), *member, (member,), (server,), 1, "n")
    return record.to_bytes()


def ask(served: Served, kind: Kind, *shards: int, seen: Position = NOWHERE, **more: Any) -> Answer:
    """The answer to a request without keys, by all these shards."""
    parts = tuple(Part(shard, seen) for shard in shards)
    (answer,) = served.says(Request(kind, 9, parts, **{"incarnation": 1, **more}))
    assert isinstance(answer, Answer)
    return answer


def statuses(answer: Answer) -> list[Status]:
    return [part.status for part in answer.parts]


def open_table(served: Served, *shards: int) -> Answer:
    text = SparseSpec("t", 1, "int64", Sum()).to_json().encode()
    return ask(served, Kind.OPEN_TABLE, *shards, table=1, text=text)

"""Controllers that share one store, for tests that perform their transactions step by step."""

from __future__ import annotations

from typing import Any

from resilient_ps.coordinator.controller import ClusterWishes, Controller
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, KvAnswered, KvCall, Put, Read, Txn, TxnResult
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import (
    ClusterConfig,
    DrainRecord,
    IntentRecord,
    JobRecord,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import Epoch, Position
from resilient_ps.machine import Log, MessageArrived, Send
from resilient_ps.messages import Answer, Kind, PartAnswer, Request, Status

KEYS = ClusterKeys("c")
SECOND_NS = 10**9
JOB = JobRecord(1, "j", "bsp", 2, "running")


class Etcd:
    """One store, and controllers that look at it."""

    def __init__(self) -> None:
        self.model = MemoryKv()

    def put(self, key: bytes, value: bytes) -> None:
        self.model.apply(Txn((), (Put(key, value),)), 0)

    def delete(self, key: bytes) -> None:
        self.model.apply(Txn((), (Delete(key),)), 0)

    def get(self, key: bytes) -> bytes | None:
        items = self.model.apply(Read(key), 0).items
        return items[0].value if items else None

    def server(self, name: str) -> None:
        process = 100 + int(name[1:])
        record = ServerRecord(name, process, "127.0.0.1", 7000, "", "", 1.0, 5, "0.1", 1, "host")
        self.put(KEYS.server(name), record.to_bytes())

    def configure(self, shards: int = 2, servers: int = 1, replicas: int = 1) -> None:
        config = ClusterConfig("0123456789abcdef", 1, shards, servers, replicas, 1, 64, "s1")
        self.put(KEYS.config, config.to_bytes())

    def drain(self, name: str) -> None:
        self.put(KEYS.drain(name), DrainRecord(name, "a test").to_bytes())

    def ring(self) -> RingRecord | None:
        value = self.get(KEYS.ring)
        return None if value is None else RingRecord.from_bytes(value, KEYS.ring)

    def members(self) -> list[str]:
        """The servers on the ring."""
        ring = self.ring()
        return [] if ring is None else [member.server for member in ring.members]

    def shard(self, number: int) -> ShardRecord:
        value = self.get(KEYS.shard(number))
        assert value is not None
        return ShardRecord.from_bytes(value, KEYS.shard(number))

    def place(self, shards: int = 2) -> None:
        for number in range(shards):
            leader = Member("s1", 101)
            record = ShardRecord(number, Epoch(1, 1), *leader, (leader,), ("s1",), 1, "n")
            self.put(KEYS.shard(number), record.to_bytes())

    def intent(self, number: int, kind: str, rank: int, incarnation: int = 4) -> None:
        record = IntentRecord(number, kind, "j", rank, incarnation, "open")  # type: ignore[arg-type]
        self.put(KEYS.intent(number), record.to_bytes())

    def intent_record(self, number: int) -> IntentRecord:
        value = self.get(KEYS.intent(number))
        assert value is not None
        return IntentRecord.from_bytes(value, b"")


class Candidate:
    """A controller; transactions are performed only when told to."""

    def __init__(self, etcd: Etcd, name: str = "s1", wishes: ClusterWishes | None = None) -> None:
        self.etcd = etcd
        self.view = ClusterView(KEYS)
        process = 100 + int(name[1:])
        self.lease = etcd.model.grant(1000, 0).lease
        wishes = wishes or ClusterWishes()
        self.controller = Controller(self.view, name, process, wishes, lambda bits: process)
        self.effects: list[Any] = []
        self.lsn = 0
        self.now_ns = 0

    def see(self) -> None:
        """Read everything."""
        result = self.etcd.model.apply(Read(KEYS.prefix, prefix=True), 0)
        self.view.load(result.items, result.revision)

    def look(self) -> list[Any]:
        self.see()
        self.now_ns += SECOND_NS
        self.effects = self.controller.look(self.lease, self.now_ns)
        return self.effects

    def perform(self) -> list[bool]:
        """Perform the transactions asked for: did they succeed?"""
        done = []
        for call in [e for e in self.effects if isinstance(e, KvCall)]:
            result = self.etcd.model.apply(call.request, 0)
            assert isinstance(result, TxnResult)
            done.append(result.succeeded)
            self.effects = self.controller.handle(KvAnswered(call.ref, result), self.now_ns)
        return done

    def settle(self) -> None:
        """Look and perform until nothing is missing."""
        for _ in range(50):
            if not any(isinstance(effect, KvCall) for effect in self.look()):
                return
            self.perform()
        raise AssertionError("the controller never comes to rest")

    def logs(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, Log)]

    def requests(self) -> list[Request]:
        messages = [e.message for e in self.effects if isinstance(e, Send)]
        return [message for message in messages if isinstance(message, Request)]

    def answer(self, status: Status = Status.OK, value: int = 0, text: bytes = b"") -> list[Any]:
        """All shards answer the only request under way."""
        (request,) = self.requests()
        return self.answer_to(request, status, value, text)

    def answer_to(
        self, request: Request, status: Status = Status.OK, value: int = 0, text: bytes = b""
    ) -> list[Any]:
        self.lsn += 1
        at = Position(Epoch(1, 1), self.lsn)
        held = int(request.kind is Kind.FENCE)  # so that a redo follows
        parts = tuple(
            PartAnswer(p.shard, status, at, value, count=held, text=text) for p in request.parts
        )
        answer = Answer(request.request, parts)
        self.effects = self.controller.handle(MessageArrived("server:s1", answer), self.now_ns)
        return self.effects


def elected(*, shards: int = 2) -> Candidate:
    """The coordinator of a cluster that is placed, with a job."""
    etcd = Etcd()
    etcd.server("s1")
    etcd.configure(shards)
    etcd.place(shards)
    etcd.put(KEYS.job("j"), JOB.to_bytes())
    candidate = Candidate(etcd)
    candidate.settle()
    assert candidate.controller.elected
    return candidate

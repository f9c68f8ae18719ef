"""The coordinator's desk for tasks: `Granting` on a store in memory, with holders before it.

Transactions, their answers and the watch go through when the test says so, or all at once (`run`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from candidates import KEYS, Etcd

from resilient_ps.coordinator.granting import TASKS_REF, Granting
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import (
    MAX_TXN_OPS,
    KvAnswered,
    KvCall,
    KvFailed,
    Put,
    Read,
    Txn,
    TxnResult,
    WatchBatch,
)
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import (
    ClusterConfig,
    JobRecord,
    RestoreRecord,
)
from resilient_ps.coordinator.task_asks import FailedTask, Granted, TaskAsk, TaskTold
from resilient_ps.coordinator.task_records import (
    BUCKET_LANES,
    GraphRecord,
    HolderRecord,
    LanesRecord,
    LaneState,
    buckets_of,
)
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import Unavailable
from resilient_ps.machine import Log, Send, SetTimer
from resilient_ps.messages import Told

SECOND_NS = 10**9
JOB_ID = 3


class Desk:
    """One coordinator, or candidate; several may share one store."""

    def __init__(self, graph: Graph | None = None, etcd: Etcd | None = None, name: str = "s1"):
        self.etcd = etcd or Etcd()
        if etcd is None:
            self.etcd.configure()
        self.view = ClusterView(KEYS)
        self.now_ns = SECOND_NS
        self.calls: list[KvCall] = []
        self.answers: dict[int, TaskTold] = {}
        self.logs: list[Log] = []
        self.timer_ns = 0
        self.txns = 0
        self._requests = 0
        self._watch = self.etcd.model.watch(KEYS.prefix, 0)
        found = self.etcd.model.apply(Read(KEYS.prefix, prefix=True), 0)
        self.view.load(found.items, found.revision)
        self.mandate = Mandate(self.view, name, 100 + int(name[1:]))
        self.mandate.lease = self.etcd.model.grant(1_000, 0).lease
        self.granting = Granting(self.view, self.mandate)
        self.elect()
        if graph is not None:
            self.create(graph)
            self.run()

    # -- etcd

    def elect(self) -> None:
        """Win the election."""
        self.etcd.delete(KEYS.coordinator_leader)
        self.poll()
        (call,) = self.mandate.campaign()
        assert isinstance(call, KvCall)
        self.etcd.model.apply(call.request, 0)
        self.mandate.answered(call.ref)
        self.poll()
        assert self.mandate.elected

    def create(self, graph: Graph, job_id: int = JOB_ID) -> None:
        """What the client writes."""
        job = JobRecord(job_id, graph.name, "tasks", graph.lanes_total, "running")
        self.etcd.put(KEYS.job(graph.name), job.to_bytes())
        record = GraphRecord(job_id, graph.to_json())
        self.etcd.put(KEYS.graph(graph.name), record.to_bytes())

    def register(self, *holders: str, graph: str = "g") -> None:
        for holder in holders:
            self.etcd.put(KEYS.holder(graph, holder), HolderRecord("box", 1).to_bytes())

    def kill(self, holder: str, graph: str = "g") -> None:
        """Its lease ends."""
        self.etcd.delete(KEYS.holder(graph, holder))

    def roll_back(self, clocks: dict[str, Any], *, registered: bool = True) -> None:
        """To a checkpoint in which jobs, by number, were at these clocks."""
        value = self.etcd.get(KEYS.config)
        assert value is not None
        config = ClusterConfig.from_bytes(value, KEYS.config)
        incarnation = config.incarnation + 1
        fields = json.loads(value) | {"incarnation": incarnation}
        restore = RestoreRecord(
            incarnation, "1-1-abcd", "m", 1, "0" * 64, clocks, "a test", 0, registered
        )
        self.etcd.model.apply(
            Txn(
                (),
                (
                    Put(KEYS.config, json.dumps(fields).encode()),
                    Put(KEYS.restore, restore.to_bytes()),
                ),
            ),
            0,
        )

    def record(self, graph: str = "g") -> GraphRecord:
        value = self.etcd.get(KEYS.graph(graph))
        assert value is not None
        return GraphRecord.from_bytes(value, KEYS.graph(graph))

    def job(self, graph: str = "g") -> JobRecord:
        value = self.etcd.get(KEYS.job(graph))
        assert value is not None
        return JobRecord.from_bytes(value, KEYS.job(graph))

    def lanes(self, graph: str = "g") -> list[LaneState]:
        """As etcd has them."""
        found: list[LaneState] = []
        for bucket in range(buckets_of(self.record(graph).graph)):
            value = self.etcd.get(KEYS.lanes(graph, bucket))
            assert value is not None
            assert len(found) == bucket * BUCKET_LANES
            found += LanesRecord.from_bytes(value, KEYS.lanes(graph, bucket)).lanes
        return found

    # -- step by step

    def take(self, effects: list[Any]) -> None:
        """What the machine wants."""
        for effect in effects:
            match effect:
                case KvCall():
                    assert effect.ref == TASKS_REF
                    self.calls.append(effect)
                case Send(_, Told(request, body)):
                    assert request not in self.answers, "answered twice"
                    self.answers[request] = TaskTold.from_json(json.loads(body))
                case SetTimer(_, at_ns):
                    self.timer_ns = at_ns
                case Log():
                    self.logs.append(effect)
                case _:
                    raise AssertionError(effect)

    def poll(self) -> None:
        """The watch brings what it has."""
        batches = self.etcd.model.poll(self._watch)
        assert isinstance(batches, tuple)
        for batch in batches:
            assert isinstance(batch, WatchBatch)
            self.view.apply(batch)

    def look(self) -> None:
        """The watch brings what it has, and the coordinator looks."""
        self.poll()
        if self.mandate.elected:
            self.take(self.granting.advance(self.now_ns))
        else:
            self.take(self.granting.drop())

    def write(self) -> TxnResult:
        """Perform the transaction under way; it is not answered yet."""
        (call,) = self.calls
        assert isinstance(call.request, Txn)
        assert max(len(call.request.compares), len(call.request.success)) <= MAX_TXN_OPS
        self.txns += 1
        result = self.etcd.model.apply(call.request, 0)
        assert isinstance(result, TxnResult)
        return result

    def answer(self, result: TxnResult | None) -> None:
        """Answer it; None: nobody knows what became of it."""
        (call,) = self.calls
        self.calls = []
        event: KvAnswered | KvFailed
        if result is None:
            event = KvFailed(call.ref, Unavailable("no answer"), unknown=True)
        else:
            event = KvAnswered(call.ref, result)
        self.take(self.granting.answered(event, self.now_ns))

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is under way."""
        self.look()
        while self.calls and not until():
            self.answer(self.write())
            self.look()

    def wait(self, seconds: float) -> None:
        """Time passes; whatever is to be done then is done."""
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while self.now_ns < self.timer_ns <= end_ns:
            self.now_ns = self.timer_ns
            self.run()
        self.now_ns = end_ns
        self.run()

    # -- holders

    def put(
        self,
        holder: str,
        *,
        done: Granted | None = None,
        failed: tuple[Granted, str] | None = None,
        namespaces: tuple[str, ...] | None = None,
        wait_s: float = 10,
        graph: str = "g",
        peer: str = "",
        incarnation: int = 1,
    ) -> int:
        """A holder's question, which is not looked at further."""
        self._requests += 1
        report = None if failed is None else FailedTask(*failed)
        ask = TaskAsk(graph, holder, namespaces, wait_s, done, report, incarnation)
        fields = json.loads(json.dumps(ask.to_json()))["task"]
        peer = peer or f"client:{holder}"
        self.take(self.granting.ask(peer, self._requests, fields, self.now_ns))
        return self._requests

    def ask(self, holder: str, **fields: Any) -> TaskTold | None:
        """A holder's question, and all that it brings about; None: not answered yet."""
        request = self.put(holder, **fields)
        self.run()
        return self.answers.get(request)

    def granted(self, holder: str, **fields: Any) -> Granted:
        """The same, where it is to be a task."""
        told = self.ask(holder, **fields)
        assert told is not None, "it waits"
        assert told.grant is not None, told
        return told.grant

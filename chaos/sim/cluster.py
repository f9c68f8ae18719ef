"""A cluster in a world: nodes built by the production builder, and workers as generators.

A worker program is a generator that yields operations and gets their results:

    def program(worker):
        rows = yield Pull(table, keys)
        yield Push(table, keys, grads)
        yield Tick({"row": 3})

It runs on the production session. A killed worker's rank is taken over by spawning it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from resilient_ps.chaos.sim.world import SECOND_NS, Process, World
from resilient_ps.consistency import JobSpec, consistency_name
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Put, Read, Txn
from resilient_ps.coordinator.records import (
    IntentRecord,
    JobRecord,
    ServerRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.errors import ResilientPsError
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import WorkerId
from resilient_ps.machine import Event
from resilient_ps.messages import Kind
from resilient_ps.node import Node, NodeSettings, build_node
from resilient_ps.routing import Routing, routing_from
from resilient_ps.session import Resolved, Session
from resilient_ps.split import (
    SparsePull,
    TableHandle,
    split_dense,
    split_sparse_pull,
    split_sparse_push,
)
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.takeover import Step


@dataclass(frozen=True, slots=True)
class Pull:
    """Rows of a sparse table, or the whole of a dense one (`keys` None)."""

    table: TableHandle
    keys: Any = None


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients for rows of a sparse table, or for a dense one (`keys` None)."""

    table: TableHandle
    keys: Any
    grads: Any


@dataclass(frozen=True, slots=True)
class Tune:
    """A new learning rate."""

    table: TableHandle
    rate: float


@dataclass(frozen=True, slots=True)
class Tick:
    """End the clock."""

    cursor: bytes = b""


@dataclass(frozen=True, slots=True)
class Wait:
    """Compute for a while."""

    ns: int


@dataclass(frozen=True, slots=True)
class Together:
    """Operations that are begun at once, in this order. The result is that of the last pull."""

    operations: tuple[Any, ...]


Operation: TypeAlias = Pull | Push | Tune | Tick | Wait | Together
Program: TypeAlias = Callable[["SimWorker"], Generator[Operation, Any, None]]


class SimWorker:
    """A worker process: the production session, driven by a program."""

    def __init__(self, world: World, routing: Routing, name: str, program: Program) -> None:
        self.world = world
        self.session = Session(world.cluster, routing)
        self.process = world.add(Process(world, name, self, self.session.calls.places))
        self.process.other = self._on_resolved
        self.finished = False
        self.error: ResilientPsError | None = None
        self._program = program
        self._running: Generator[Operation, Any, None] | None = None
        self._ops = 0
        self._finish: list[tuple[SparsePull | None, Any]] = []
        self._left = 0

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return self.session.worker.rank

    @property
    def clock(self) -> int:
        """The open clock."""
        return self.session.clock

    def handle(self, event: Event, now_ns: int) -> list[Any]:
        """Everything goes to the session."""
        return list(self.session.handle(event, now_ns))

    def start(self, job: JobSpec, rank: int, incarnation: int) -> None:
        """Take the rank over, then run the program."""
        worker = WorkerId(job.job, rank, incarnation)
        self._left = 1
        self.process.perform(list(self.session.open_worker(0, job, worker, self.world.now_ns)))

    def read(self) -> None:
        """Run the program as a client that is no worker."""
        self._next(None)

    def broadcast(self, step: Step) -> None:
        """A request that is no worker's write."""
        self._left = 1
        self.process.perform(list(self.session.broadcast(0, step, self.world.now_ns)))

    def _on_resolved(self, effect: Any) -> None:
        assert isinstance(effect, Resolved)
        if effect.error is not None:
            self.error, self.finished = effect.error, True
            return
        self._left -= 1
        if self._left:
            return
        result = None
        for split, result in self._finish:
            if split is not None:
                split.finish(result)
        self._finish = []
        self._next(result)

    def _next(self, result: Any) -> None:
        if self._running is None:
            self._running = self._program(self)
            result = None
        try:
            operation = self._running.send(result)
        except StopIteration:
            self.finished = True
            return
        self.process.perform(self._begin(operation))

    def _begin(self, operation: Operation) -> list[Any]:
        now_ns, session, op = self.world.now_ns, self.session, 0
        effects: list[Any] = []
        self._left += 1
        match operation:
            case Wait(ns):
                self.world.after(
                    ns, lambda: None if self.process.killed else self._on_resolved(Resolved(0))
                )
            case Together(operations):
                self._left -= 1  # each counts itself
                for each in operations:
                    effects += self._begin(each)
            case Tick(cursor):
                effects += session.tick(op, cursor, now_ns)
            case Tune(table, rate):
                effects += session.tune(op, table.number, rate, now_ns)
            case Pull(table, keys) if isinstance(table.spec, SparseSpec):
                pull = split_sparse_pull(session.routing, keys, table.spec)
                rows = np.empty((len(keys), table.spec.dim), table.spec.dtype)
                self._finish.append((pull, rows))
                split = pull.split
                effects += session.pull(op, table.number, split, now_ns, wait_ns=600 * SECOND_NS)
            case Push(table, keys, grads) if isinstance(table.spec, SparseSpec):
                split = split_sparse_push(session.routing, keys, grads)
                effects += session.push(op, table.number, split, now_ns)
            case Pull(table) | Push(table):
                effects += self._begin_dense(operation, table, now_ns)
        return effects

    def _begin_dense(self, operation: Pull | Push, table: TableHandle, now_ns: int) -> list[Any]:
        spec, session = table.spec, self.session
        assert isinstance(spec, DenseSpec)
        layout = DenseLayout(spec, session.routing.shards)
        pull = isinstance(operation, Pull)
        array = np.empty(spec.shape, spec.dtype) if isinstance(operation, Pull) else operation.grads
        splits = list(split_dense(session.routing, layout, array.reshape(-1), pull=pull))
        self._left += len(splits) - 1
        if pull:
            self._finish.append((None, array))
        effects: list[Any] = []
        for split in splits:
            if pull:
                effects += session.pull(0, table.number, split, now_ns, wait_ns=600 * SECOND_NS)
            else:
                effects += session.push(0, table.number, split, now_ns)
        return effects


def _idle(worker: SimWorker) -> Generator[Operation, Any, None]:
    return
    yield  # a program needs a yield to be a generator


class SimCluster:
    """Servers, tables, jobs and workers in one world."""

    def __init__(
        self, seed: int, *, servers: int = 2, shards: int = 4, guards: Guards = ALL_GUARDS
    ) -> None:
        self.world = World(seed)
        self.keys = ClusterKeys(self.world.cluster)
        self.nodes: list[Node] = []
        self.workers: list[SimWorker] = []
        self._spawned = 0
        self._intents = 0
        for index in range(servers):
            self._add_server(f"s{index + 1}", ClusterWishes(servers, shards), guards)
        if not self.world.run_until(self._placed):
            raise AssertionError("the cluster did not come up")

    def _add_server(self, name: str, wishes: ClusterWishes, guards: Guards) -> None:
        process = (1 << 40) + len(self.nodes)
        record = ServerRecord(name, process, "127.0.0.1", 7000, "", "", 1.0, 0, "sim", 0, "sim")
        settings = NodeSettings(self.world.cluster, record, 2, wishes, guards)
        node = build_node(settings, self.world.draw_bits)
        self.nodes.append(node)
        self.world.add(Process(self.world, name, node), serves_as=name)

    def add_spare(self, name: str) -> Process:
        """One more server, which serves no shard, and is the coordinator when this returns."""
        self._add_server(name, ClusterWishes(), ALL_GUARDS)
        node, process = self.nodes[-1], self.world.processes[name]
        key = self.keys.coordinator_leader

        def elected() -> bool:
            held = self.world.kv.apply(Read(key), self.world.now_ns).items
            if held and not node.controller.elected and f'"{name}"'.encode() not in held[0].value:
                self.world.kv.apply(Txn((), (Delete(key),)), self.world.now_ns)
            return node.controller.elected

        assert self.world.run_until(elected), "the spare server was not elected"
        return process

    def _placed(self) -> bool:
        routing = self.routing()
        served = sum(len(node.shards) for node in self.nodes)
        return routing is not None and served == routing.shards

    def routing(self) -> Routing | None:
        """The routing as etcd has it now."""
        result = self.world.kv.apply(Read(self.keys.prefix, prefix=True), self.world.now_ns)
        return routing_from(result.items, self.keys)

    def create_table(self, number: int, spec: SparseSpec | DenseSpec) -> TableHandle:
        """Make a table known to all shards."""
        client = self._client("creator", _idle)
        text = spec.to_json().encode()
        shards = client.session.routing.order
        step = Step(Kind.OPEN_TABLE, shards, client.session.worker, table=number, text=text)
        client.broadcast(step)
        assert self.world.run_until(lambda: client.finished), "the table was not created"
        assert client.error is None, client.error
        return TableHandle(number, spec)

    def spawn(self, job: JobSpec, rank: int, incarnation: int, program: Program) -> SimWorker:
        """Start a worker process."""
        worker = self._client(f"worker-{rank}", program)
        worker.start(job, rank, incarnation)
        self.workers.append(worker)
        return worker

    def _client(self, name: str, program: Program) -> SimWorker:
        routing = self.routing()
        assert routing is not None
        self._spawned += 1
        return SimWorker(self.world, routing, f"{name}-{self._spawned}", program)

    def register(self, job: JobSpec) -> None:
        """Write the job's record to etcd, where the coordinator looks for it."""
        mode = consistency_name(job.consistency)
        record = JobRecord(job.job, job.name, mode, job.ranks, "running")
        self.put(self.keys.job(job.name), record.to_bytes())

    def propose(self, kind: Literal["join", "leave"], job: JobSpec, rank: int) -> int:
        """Write an intent to etcd, as clients do; returns its number."""
        self._intents += 1
        incarnation = 0
        if kind == "leave":
            incarnation = self.draw_incarnation(job, rank)
        record = IntentRecord(self._intents, kind, job.name, rank, incarnation, "open")
        self.put(self.keys.intent(self._intents), record.to_bytes())
        return self._intents

    def intent(self, number: int) -> IntentRecord:
        """An intent as it stands in etcd."""
        key = self.keys.intent(number)
        (item,) = self.world.kv.apply(Read(key), self.world.now_ns).items
        return IntentRecord.from_bytes(item.value, key)

    def draw_incarnation(self, job: JobSpec, rank: int) -> int:
        """The number of a new process of this rank."""
        key = self.keys.rank(job.name, rank)
        items = self.world.kv.apply(Read(key), self.world.now_ns).items
        number = read_counter(items[0].value if items else None, key) + 1
        self.put(key, counter_bytes(number))
        return number

    def put(self, key: bytes, value: bytes) -> None:
        """Write to etcd, as a client would."""
        self.world.kv.apply(Txn((), (Put(key, value),)), self.world.now_ns)

    def read(self, table: TableHandle, keys: Any = None) -> Any:
        """What a client that is no worker pulls."""
        found: list[Any] = []

        def program(worker: SimWorker) -> Generator[Operation, Any, None]:
            found.append((yield Pull(table, keys)))

        client = self._client("reader", program)
        client.read()
        assert self.run([client]), "the table cannot be read"
        assert client.error is None, client.error
        return found[0]

    def run(self, workers: list[SimWorker], limit_s: float = 600.0) -> bool:
        """Run until these workers are done; False when time is over."""
        done = lambda: all(worker.finished or worker.process.killed for worker in workers)  # noqa: E731
        return self.world.run_until(done, limit_s)

    def digests(self, table: int) -> list[str]:
        """The table's digest on every shard, in the order of shards."""
        by_shard = {n: s for node in self.nodes for n, s in node.shards.items()}
        return [by_shard[number].tables[table].digest() for number in sorted(by_shard)]

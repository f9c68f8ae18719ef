"""A worker in a world: the production session, driven by a program that is a generator.

    def program(worker):
        rows = yield Pull(table, keys)
        yield Push(table, keys, grads)
        yield Tick({"row": 3})

The program yields operations and gets their results, or is thrown their errors, which end the
worker if it does not catch them. An operation that is not over in time (`Within`) is abandoned, and
the program is thrown the production `DeadlineExceeded`. After `RolledBack` it may go on with
`Resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.world import SECOND_NS, World
from resilient_ps.consistency import JobSpec
from resilient_ps.errors import DeadlineExceeded, ResilientPsError, RolledBack
from resilient_ps.ids import WorkerId
from resilient_ps.machine import Event
from resilient_ps.messages import Kind
from resilient_ps.routing import PEER_PREFIX, Address, Routing
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

PULL_WAIT_NS = 600 * SECOND_NS
LOOK_NS = SECOND_NS // 10


class Pull(NamedTuple):
    """Rows of a sparse table, or the whole of a dense one (`keys` None)."""

    table: TableHandle
    keys: Any = None


class Push(NamedTuple):
    """Gradients for rows of a sparse table, or for a dense one (`keys` None)."""

    table: TableHandle
    keys: Any
    grads: Any


class Tune(NamedTuple):
    """A new learning rate."""

    table: TableHandle
    rate: float


class Tick(NamedTuple):
    """End the clock."""

    cursor: bytes = b""


class Wait(NamedTuple):
    """Compute for a while."""

    ns: int


class Together(NamedTuple):
    """Operations that are begun at once, in this order. The result is that of the last pull."""

    operations: tuple[Operation, ...]


class Within(NamedTuple):
    """An operation that is abandoned when it is not over after so long, by the worker's clock.

    A push or tick that is abandoned stays, and is still delivered: its outcome is unknown.
    """

    operation: Operation
    ns: int


class Announce(NamedTuple):
    """Make tables known to all shards, as a worker does that opens them."""

    tables: tuple[TableHandle, ...]


class Resume(NamedTuple):
    """Go on after a rollback, once `ready` says where and as which incarnation of the rank."""

    ready: Callable[[], tuple[Routing, int] | None]


Operation: TypeAlias = Pull | Push | Tune | Tick | Wait | Together | Within | Announce | Resume
Program: TypeAlias = Callable[["SimWorker"], Generator[Operation, Any, None]]


class SimWorker:
    """A worker process. `host`: where it runs, for faults of the network."""

    def __init__(
        self, world: World, routing: Routing, name: str, program: Program, *, host: str = ""
    ) -> None:
        self.world = world
        self.session = Session(world.cluster, routing)
        self.process = world.add(
            Process(
                world, name, self, self.session.calls.places, host=host, clock=world.draw_clock()
            )
        )
        self.process.other = self._on_resolved
        self.incarnation = routing.incarnation  # of the cluster: in which it is, until it resumes
        self.finished = False
        self.error: ResilientPsError | None = None
        self._program = program
        self._running: Generator[Operation, Any, None] | None = None
        self._last_op = 0
        self._open: set[int] = set()  # numbers of the present operation's parts
        self._finish: list[tuple[SparsePull | None, Any]] = []

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return self.session.worker.rank

    @property
    def clock(self) -> int:
        """The open clock."""
        return self.session.clock

    @property
    def cursor(self) -> bytes:
        """What the last tick of the rank said."""
        return self.session.cursor

    @property
    def killed(self) -> bool:
        """Is the process dead?"""
        return self.process.killed

    def handle(self, event: Event, now_ns: int) -> list[Any]:
        """Everything goes to the session."""
        return self.session.handle(event, now_ns)

    def address_of(self, peer: str) -> Address | None:
        """Where a server listens, as far as the session knows."""
        return self.session.servers.get(peer.removeprefix(PEER_PREFIX))

    def start(self, job: JobSpec, rank: int, incarnation: int) -> None:
        """Take the rank over, then run the program."""
        worker = WorkerId(job.job, rank, incarnation)
        op, now_ns = self._begun(), self.process.now_ns
        self.process.perform(self.session.open_worker(op, job, worker, now_ns))

    def read(self) -> None:
        """Run the program as a client that is no worker."""
        self._next(None)

    def broadcast(self, step: Step) -> None:
        """A request that is no worker's write."""
        op = self._begun()
        self.process.perform(self.session.broadcast(op, step, self.process.now_ns))

    # -- one operation after the other

    def _begun(self) -> int:
        self._last_op += 1
        self._open.add(self._last_op)
        return self._last_op

    def _on_resolved(self, effect: Any) -> None:
        assert isinstance(effect, Resolved)
        if self.finished:
            return
        late = isinstance(effect.error, DeadlineExceeded | RolledBack)  # also for what is forgotten
        if effect.error is not None and (effect.op in self._open or not late):
            self._fail(effect.error)
            return
        if effect.op not in self._open:
            return  # it was abandoned
        self._open.discard(effect.op)
        if self._open:
            return
        result = None
        for split, result in self._finish:
            if split is not None:
                split.finish(result)
        self._finish = []
        self._next(result)

    def _fail(self, error: ResilientPsError) -> None:
        """The present operation has failed; what else it was made of is not waited for."""
        self._open.clear()
        self._finish = []
        running = self._running
        if running is None:
            self.error, self.finished = error, True
        else:
            self._go_on(lambda: running.throw(error))

    def _next(self, result: Any) -> None:
        if self._running is None:
            self._running = self._program(self)
            result = None
        running = self._running
        self._go_on(lambda: running.send(result))

    def _go_on(self, advance: Callable[[], Operation]) -> None:
        try:
            operation = advance()
        except StopIteration:
            self.finished = True
            return
        except ResilientPsError as error:  # the program did not catch what it was thrown
            self.error, self.finished = error, True
            return
        self.process.perform(self._begin(operation))

    def _give_up(self, ops: tuple[int, ...]) -> None:
        """The operation is late: abandon what is left of it, and tell the program."""
        late = [op for op in ops if op in self._open]
        if not late or self.finished:
            return
        self._open.clear()
        self._finish = []
        effects: list[Any] = []
        error: ResilientPsError = DeadlineExceeded("not over in time")
        for op in late:
            effects += self.session.abandon(op, self.process.now_ns)
        for effect in effects:
            if isinstance(effect, Resolved) and effect.error is not None:
                error = effect.error
        self.process.perform([e for e in effects if not isinstance(e, Resolved)])
        running = self._running
        assert running is not None
        self._go_on(lambda: running.throw(error))

    def _begin(self, operation: Operation) -> list[Any]:
        now_ns, session = self.process.now_ns, self.session
        match operation:
            case Within(inner, ns):
                return self._begin_within(inner, ns)
            case Together(operations):
                return [effect for each in operations for effect in self._begin(each)]
            case Wait(ns):
                self._after(ns, partial(self._on_resolved, Resolved(self._begun())))
                return []
            case Announce(tables):
                return [effect for table in tables for effect in self._announce(table)]
            case Resume(ready):
                self._resume(self._begun(), ready)
                return []
            case Tick(cursor):
                return session.tick(self._begun(), cursor, now_ns)
            case Tune(table, rate):
                return session.tune(self._begun(), table.number, rate, now_ns)
            case Pull(table, keys) if isinstance(table.spec, SparseSpec):
                pull = split_sparse_pull(session.routing, keys, table.spec)
                self._finish.append((pull, np.empty((len(keys), table.spec.dim), table.spec.dtype)))
                op, split = self._begun(), pull.split
                return session.pull(op, table.number, split, now_ns, wait_ns=PULL_WAIT_NS)
            case Push(table, keys, grads) if isinstance(table.spec, SparseSpec):
                split = split_sparse_push(session.routing, keys, grads)
                return session.push(self._begun(), table.number, split, now_ns)
            case Pull(table) | Push(table):
                return self._begin_dense(operation, table, now_ns)

    def _resume(self, op: int, ready: Callable[[], tuple[Routing, int] | None]) -> None:
        found = ready()
        if found is None:
            self._after(LOOK_NS, partial(self._resume, op, ready))
            return
        routing, number = found
        self.incarnation = routing.incarnation
        worker = self.session.worker._replace(incarnation=number)
        self.process.perform(self.session.resume(op, routing, worker, self.process.now_ns))

    def _announce(self, table: TableHandle) -> list[Any]:
        session, text = self.session, table.spec.to_json().encode()
        order, me = session.routing.order, session.worker
        step = Step(Kind.OPEN_TABLE, order, me, table=table.number, text=text)
        return session.broadcast(self._begun(), step, self.process.now_ns)

    def _begin_within(self, operation: Operation, ns: int) -> list[Any]:
        first = self._last_op + 1
        effects = self._begin(operation)
        ops = tuple(range(first, self._last_op + 1))
        self._after(ns, partial(self._give_up, ops))
        return effects

    def _after(self, ns: int, action: Callable[[], None]) -> None:
        """When so long has passed on the worker's clock, inside the process."""
        at_ns = self.process.clock.world(self.process.now_ns + ns)
        self.world.at(at_ns, partial(self.process.run, action))

    def _begin_dense(self, operation: Pull | Push, table: TableHandle, now_ns: int) -> list[Any]:
        spec, session = table.spec, self.session
        assert isinstance(spec, DenseSpec)
        layout = DenseLayout(spec, session.routing.shards)
        pull = isinstance(operation, Pull)
        array = np.empty(spec.shape, spec.dtype) if isinstance(operation, Pull) else operation.grads
        splits = list(split_dense(session.routing, layout, array.reshape(-1), pull=pull))
        if pull:
            self._finish.append((None, array))
        effects: list[Any] = []
        for split in splits:
            op = self._begun()
            if pull:
                effects += session.pull(op, table.number, split, now_ns, wait_ns=PULL_WAIT_NS)
            else:
                effects += session.push(op, table.number, split, now_ns)
        return effects

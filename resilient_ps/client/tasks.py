"""Tasks of a graph: a process asks for one, does it, and asks for the next.

A lane of a graph is a rank of the job of the same name, its steps are clocks, and whoever does a
task is its *holder*. The coordinator grants a lane's next step to one holder at a time, once all
that it depends on is done. What a task pushes is applied when the task ends, all of it or nothing:
a task whose holder dies is granted to another one, which does it from the beginning. From then on
what the first one writes is refused, however late it comes.

There is no thread for requests: what is under way moves on inside the caller's next call. The
holder's lease has one (see `holding`).
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.graphs import open_graph
from resilient_ps.client.holding import Holding
from resilient_ps.client.open_tables import OpenTables
from resilient_ps.client.opening import broadcast, encode_cursor
from resilient_ps.client.resuming import PATIENCE_S, PAUSE_S, say
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.client.task_desk import TaskDesk
from resilient_ps.client.waiting import wait_for_cluster
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.task_asks import Granted
from resilient_ps.errors import (
    BadInput,
    Fenced,
    FixTheCall,
    Reopen,
    RetryLater,
    RolledBack,
    Unavailable,
)
from resilient_ps.ids import READER, WorkerId
from resilient_ps.messages import Kind
from resilient_ps.runtime.driver import Driver, deadline_after
from resilient_ps.tables.spec import TableSpec
from resilient_ps.takeover import Settled, Step


@dataclass(frozen=True, slots=True)
class Task:
    """Step `step` (from 1) of lane `n` (from 0) of a namespace.

    `rank` numbers the lane in its graph, `token` the times that lanes were given to holders.
    `cursor` is what the lane's last step that gave one ended with; None: no one did.
    """

    namespace: str
    n: int
    step: int
    rank: int
    token: int
    cursor: Any = None

    def __str__(self) -> str:
        return f"{self.namespace}[{self.n}] at step {self.step}"


class Tasks(OpenTables):
    """The tasks of a graph that this process is to do, one at a time. Use it in a `with`.

        with client.tasks(graph) as tasks:
            table = tasks.sparse_table("weights", dim=1, optimiser=ps.Sum())
            for task in tasks:
                table.push(...)  # counts once, when the task ends: when the next is asked for

    The loop ends when all tasks of the graph are done, whoever did them. In its body, `Fenced` says
    that the task is another process's by now, and `RolledBack` that the cluster went back to a
    checkpoint: `continue` after both. `run` does that by itself.

    A task sees all that its predecessors have pushed, and what it has pushed itself only when it
    has ended. That is dropped when the `with` is left before, and another process does the task
    again. An exception that leaves the `with` ends the graph, unless time may mend it: all holders
    are told (`TaskFailed`).
    """

    def __init__(
        self,
        driver: Driver,
        catalogue: Catalogue,
        graph: Graph,
        namespaces: Collection[str] | None,
        call_s: float,
        deadline_s: float,
        lease_ttl_s: int,
    ) -> None:
        super().__init__(driver, catalogue, call_s)
        selected = _checked(graph, namespaces)
        self._graph = graph
        self._patience_s = deadline_s
        self._incarnation = driver.session.routing.incarnation
        self._holding = Holding(catalogue.kv, catalogue.keys, graph.name, lease_ttl_s)
        self._desk = TaskDesk(catalogue, graph, self.holder, selected, self._incarnation)
        self._job = open_graph(catalogue, graph)
        self._task: Task | None = None  # in hand
        self._tick: int | None = None  # it has been ticked, but not all shards have said so
        self._closed = False
        self.resumed = 0  # how often: see `resume`
        self._rest()
        self._holding.start(call_s)
        weakref.finalize(self, self._holding.ask_to_stop)  # where nobody closes this

    # -- what it is

    @property
    def graph(self) -> Graph:
        """The graph whose tasks these are."""
        return self._graph

    @property
    def holder(self) -> str:
        """The name under which the coordinator knows this process."""
        return self._holding.name

    @property
    def in_hand(self) -> Task | None:
        """The task that is being done."""
        return self._task

    @property
    def incarnation(self) -> int:
        """Of the cluster, in which this process works: it grows when the cluster goes back."""
        return self._incarnation

    # -- one task after the other

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        task = self.next()
        if task is None:
            raise StopIteration
        return task

    def next(self, deadline_s: float | None = None) -> Task | None:
        """End the task in hand, and wait for the next one; None when the graph is done.

        Where the task in hand was granted to another process meanwhile, or undone by a rollback,
        that is said on stderr, and the next one is taken. Raises `DeadlineExceeded` naming what it
        waited for (call it again), `TaskFailed` where a task of the graph failed, `NotFound` where
        the graph was removed, and what shards and etcd refuse. `deadline_s`: by default that of
        `Client.tasks`.
        """
        until_s = time.monotonic() + (self._patience_s if deadline_s is None else deadline_s)
        if self._closed:
            raise FixTheCall(f"the tasks of {self._what} were closed: open them anew")
        while True:
            try:
                self.finish()
                return self._take_one(until_s)
            except RolledBack as error:
                self._resume_loudly(error)
            except Fenced as error:
                self._drop(error)

    def finish(self, cursor: Any = None) -> None:
        """End the task in hand, if there is one, without asking for another.

        All its pushes are acknowledged, then they are applied and the step is closed on all shards.
        `cursor`: any JSON value of at most 4 KiB, which the lane's next step finds. None keeps the
        last one. Raises `Fenced`, `RolledBack`, and `DeadlineExceeded` naming the shards that it
        waited for (call it again).
        """
        if self._task is None:
            return
        driver, task = self._driver, self._task
        with driver.lock:
            if driver.session.broken is not None:
                raise driver.session.broken
            if self._tick is None:
                raw = driver.session.cursor if cursor is None else encode_cursor(cursor)
                self._tick = driver.next_op()
                driver.perform(driver.session.tick(self._tick, raw, time.monotonic_ns()))
            self._settle()
            driver.take(self._tick)
        self._desk.done = Granted(task.rank, task.step, task.token)
        self._rest()

    def run(self, work: Callable[[Task], None]) -> int:
        """Do tasks with `work` until the graph is done; how many this process has ended.

        A task that another process was granted meanwhile is dropped; after a rollback the work goes
        on from the checkpoint. An error of `work` that another try would not mend ends the graph:
        all holders are told (`TaskFailed`), and it is raised here. Errors that time may mend
        (`RetryLater`) are raised too, but the task goes to another holder.
        """
        ended = 0
        while (task := self.next()) is not None:
            try:
                work(task)
                self.finish()
                ended += 1
            except RolledBack as error:
                self._resume_loudly(error)
            except Fenced as error:
                self._drop(error)
            except Exception as error:
                if self._is_ours(error):
                    raise
                self._drop(error)
        return ended

    def _settle(self) -> None:
        """Wait until everything is acknowledged."""
        driver, until_ns = self._driver, deadline_after(self._deadline_s)
        while driver.session.unsettled and driver.session.broken is None:
            if not driver.serve(until_ns):
                raise driver.session.why_unsettled()
        if driver.session.broken is not None:
            raise driver.session.broken

    def _take_one(self, until_s: float) -> Task | None:
        while True:
            grant = self._desk.ask_until(until_s)
            if grant is None:
                self._close_job()
                return None
            settled = self._take_over(WorkerId(self._job.job, grant.rank, grant.token))
            if settled.ticked >= grant.step:  # who had it has ended it, and not come to say so
                self._desk.done = grant
                self._rest()
                continue
            lane = self._graph.lane(grant.rank)
            if settled.ticked < grant.step - 1:
                self._wait_for_rollback(f"{lane.namespace}[{lane.n}]", grant, settled, until_s)
                continue
            cursor = json.loads(settled.cursor) if settled.cursor else None
            self._task = Task(lane.namespace, lane.n, grant.step, grant.rank, grant.token, cursor)
            return self._task

    def _wait_for_rollback(self, lane: str, grant: Granted, at: Settled, until_s: float) -> None:
        """The coordinator has not heard yet of what the cluster went back to."""
        self._rest()
        text = (
            f"{self._what}: {lane} was granted for step {grant.step}, but shards are behind step "
            f"{at.ticked}"
        )
        if time.monotonic() >= until_s:
            raise Unavailable(text)
        say(f"{text}: asking again")
        time.sleep(PAUSE_S)

    def _take_over(self, worker: WorkerId) -> Settled:
        driver = self._driver
        with driver.lock:
            op = driver.next_op()
            driver.perform(driver.session.take(op, self._job, worker, time.monotonic_ns()))
            outcome = driver.wait(op, deadline_after(self._deadline_s))
        if outcome.error is not None:
            raise outcome.error
        settled: Settled = outcome.value
        return settled

    def _rest(self) -> None:
        """No task is in hand: nothing can be pushed, nor pulled, before the next one."""
        self._task, self._tick = None, None
        if not isinstance(self._driver.session.broken, RolledBack):
            self._driver.session.broken = FixTheCall(
                f"{self._what}: no task is in hand. Take one with next(), or in a "
                "`for task in tasks` loop, and use tables in its body"
            )

    def _drop(self, error: Exception) -> None:
        say(f"{self._what}: {self._task or 'a task'} is dropped: {error}")
        self._rest()

    def _is_ours(self, error: Exception) -> bool:
        """The work has failed: end the graph, unless time may mend it, or the task was not ours."""
        task, self._task = self._task, None
        if task is None or isinstance(error, RetryLater | Reopen):
            return True
        self._rest()
        granted = Granted(task.rank, task.step, task.token)
        return self._desk.report_failure(granted, f"{type(error).__name__}: {error}")

    def _close_job(self) -> None:
        """The graph is done: its tables may be another job's."""
        order, job = self._driver.session.routing.order, self._job.job
        broadcast(self._driver, Step(Kind.CLOSE_JOB, order, WorkerId(job, 0, 0)), self._deadline_s)

    # -- after a rollback

    def resume(self) -> None:
        """Go on after `RolledBack`, in the state that the cluster went back to.

        The task in hand is dropped; `next` gives one behind the checkpoint. Waits until the shards
        are there. Raises `Unavailable` or `DeadlineExceeded` when they are not by the deadline
        (call it again), `NotFound` where the graph was removed. Where nothing was rolled back it
        does nothing.
        """
        driver, catalogue = self._driver, self._catalogue
        with driver.lock:
            told = isinstance(driver.session.broken, RolledBack)
            if not told and catalogue.incarnation() <= self._incarnation:
                return
            routing = wait_for_cluster(
                catalogue.kv, catalogue.keys.cluster, self._deadline_s, after=self._incarnation
            )
            op, now_ns = driver.next_op(), time.monotonic_ns()
            driver.perform(driver.session.resume(op, routing, READER, now_ns))
            driver.take(op)
            self._desk.done = None
            self._rest()
            self._job = open_graph(catalogue, self._graph)
            self._open_tables_again()
            self._incarnation = self._desk.incarnation = routing.incarnation
            self.resumed += 1

    def _open(self, spec: TableSpec) -> SparseTable | DenseTable:
        while True:
            try:
                return super()._open(spec)
            except RolledBack as error:
                if self._task is not None:
                    raise
                self._resume_loudly(error)  # nothing is lost by that

    def _resume_loudly(self, error: RolledBack) -> None:
        dropped = "" if self._task is None else f" {self._task} is dropped."
        say(f"{self._what}: {error}. Resuming.{dropped}")
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.resume()
                break
            except (RetryLater, RolledBack) as late:
                if time.monotonic() >= until_s:
                    raise
                say(f"{self._what}: cannot resume yet: {late}")
                time.sleep(PAUSE_S)
        say(f"{self._what}: resumed, in incarnation {self._incarnation} of the cluster")

    # -- the end

    def close(self) -> None:
        """Say what is done, and give back what is not: it is granted to others, from its begin."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._tick is not None and self._driver.session.broken is None:
                self.finish()
            self._desk.report()
        finally:
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if error is None:
            self.close()
        elif not self._closed:
            self._closed = True
            try:
                if isinstance(error, Exception):
                    self._is_ours(error)
            finally:
                self._let_go()
        return False

    def _let_go(self) -> None:
        self._holding.stop()
        self._desk.close()
        self._driver.close()

    @property
    def _what(self) -> str:
        return f"graph {self._graph.name!r}"


def _checked(graph: Graph, namespaces: Collection[str] | None) -> tuple[str, ...] | None:
    """Raises `BadInput` for what is no namespace of the graph."""
    known = [space.name for space in graph.namespaces]
    if namespaces is None:
        return None
    if isinstance(namespaces, str) or not namespaces:
        raise BadInput(f"namespaces={namespaces!r}: a list of names, or None for all")
    for name in namespaces:
        if name not in known:
            raise BadInput(
                f"graph {graph.name!r} has no namespace {name!r}; it has {', '.join(known[:10])}"
            )
    return tuple(dict.fromkeys(namespaces))

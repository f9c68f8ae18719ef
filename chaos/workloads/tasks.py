"""A graph of tasks, done by three holders that come and go: see `task_bodies` for what it is.

Holders ask the coordinator, take lanes over, pull, push, tick and report, as the production's do. A
killed holder is followed by a new one; one that was followed while it stood still goes on beside
its successor, with whatever it is granted. When the cluster goes back to a checkpoint, so does the
graph, and holders that had ended are started again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from resilient_ps.chaos.checkers.cuts import check_content, check_ranks
from resilient_ps.chaos.checkers.identity import check_identity
from resilient_ps.chaos.checkers.incarnations import check_all_told, rollbacks_of
from resilient_ps.chaos.checkers.tasks import (
    Run,
    Task,
    check_alone,
    check_once,
    check_order,
    check_progress,
    check_tokens,
)
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.sim.archive import Archive
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.holder import (
    Anew,
    Doing,
    Inquire,
    Leave,
    Register,
    SimHolder,
    Take,
    Tell,
)
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import Announce, Pull, Push, SimWorker, Tick, Together, Wait
from resilient_ps.chaos.workloads.crew import Prepared, Running
from resilient_ps.chaos.workloads.survival import SETTLE_NS
from resilient_ps.chaos.workloads.task_bodies import (
    ALIKE,
    GRAPH,
    MARKS,
    MARKS_TABLE,
    SHARED_TABLE,
    TABLES,
    TOKENS_TABLE,
    WEIGHTS_TABLE,
    body_of,
    graph_of,
    marks_of,
    number_of,
    predecessors,
    tasks_of,
)
from resilient_ps.chaos.workloads.task_progress import ProgressWatch
from resilient_ps.consistency import BSP, JobSpec, Tasks
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.task_asks import Granted, TaskAsk
from resilient_ps.coordinator.task_records import GraphRecord
from resilient_ps.errors import Fenced, FixTheCall, RolledBack
from resilient_ps.hashing import mix64
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Kind
from resilient_ps.routing import Routing
from resilient_ps.split import TableHandle
from resilient_ps.takeover import Step

SEATS = 3
JOB = 1
STEPS = 5
TASK_NS = 1_600_000_000
SURVIVOR_STEPS = 9  # more of them, and shorter, so that there are checkpoints to go back to
SURVIVOR_TASK_NS = 800_000_000
WATCH_NS = 250_000_000
PAUSE_NS = 200_000_000
WAIT_S = 2.0
NOT_AT_REST = Verdict("unknown", ("the cluster has not come to rest",))


class TaskLoad:
    """The workload. `ranks` are the holders' seats: in each sits one process after the other."""

    name = "tasks"
    ranks = tuple(range(SEATS))

    def __init__(
        self, prepared: Prepared | None = None, *, steps: int = STEPS, task_ns: int = TASK_NS
    ) -> None:
        self.graph: Graph = graph_of(steps)
        self.runs: list[Run] = []
        self.seats: dict[int, list[SimHolder]] = {seat: [] for seat in self.ranks}
        self._prepared = prepared
        self._task_ns = task_ns
        self._hurry = False
        self._wanted: set[int] = set()  # seats that wait for a cluster
        self._ahead: list[tuple[int, str]] = []  # grants for which shards had not come far enough
        self._acknowledged = 0

    def prepare(self, cluster: SimCluster) -> None:
        """Create tables, job and graph."""
        self._cluster = cluster
        self.tables = dict(zip(TABLES, cluster.create_tables(TABLES), strict=True))
        self._job = JobSpec(JOB, GRAPH, self.graph.lanes_total, Tasks())
        self._progress = ProgressWatch(cluster, self._job)
        self._enter()

    def start(self) -> None:
        """A holder in every seat."""
        for seat in self.ranks:
            self.respawn(seat)
        if self._cluster.archive is not None:
            self._watch()

    def worker(self, rank: int) -> SimWorker:
        """Who was the last to sit down in this seat."""
        return self.seats[rank][-1]

    def respawn(self, rank: int) -> None:
        """A new holder sits down, as soon as there is a cluster that takes it in."""
        if not self._cluster.is_open:
            self._wanted.add(rank)
            return
        self._wanted.discard(rank)
        self._enter()
        holder = self._cluster.hold(self._job, rank, self._program)
        self.seats[rank].append(holder)
        if self._prepared is not None:
            self._prepared(holder)

    def stop(self) -> None:
        """Do the rest of the tasks without waiting."""
        self._hurry = True

    @property
    def finished(self) -> bool:
        """Have all been told that the graph is done, in the cluster's last incarnation?"""
        return all(self._is_over(seat) for seat in self.ranks)

    def acknowledged(self, rank: int) -> int:
        """The seat's share of all pushes: who does what is the coordinator's choice."""
        return self._acknowledged // SEATS

    def _is_over(self, seat: int) -> bool:
        here = seat not in self._wanted and not self._is_left_behind(seat)
        return here and self.worker(seat).finished

    def _is_left_behind(self, seat: int) -> bool:
        holder = self.worker(seat)
        ended = holder.finished and not holder.killed
        return ended and holder.incarnation < self._cluster.incarnation

    def _watch(self) -> None:
        """Let holders sit down where the last one ended before a rollback."""
        for seat in self.ranks:
            if seat in self._wanted or self._is_left_behind(seat):
                self.respawn(seat)
        self._cluster.world.after(WATCH_NS, self._watch)

    def _enter(self) -> None:
        """Make tables, job and graph known in etcd where they are not."""
        cluster = self._cluster
        cluster.enter(self._job, self.tables.values())
        cluster.put_new(
            cluster.keys.graph(GRAPH), GraphRecord(JOB, self.graph.to_json()).to_bytes()
        )

    # -- the program

    def _program(self, worker: SimWorker) -> Doing:
        assert isinstance(worker, SimHolder)
        yield Register()
        while True:
            try:
                yield Announce(tuple(self.tables.values()))
                yield from self._do_tasks(worker)
                return
            except RolledBack:
                yield Anew(partial(self._next_incarnation, worker))

    def _next_incarnation(self, holder: SimHolder) -> Routing | None:
        cluster = self._cluster
        if not cluster.is_open or cluster.incarnation <= holder.incarnation:
            return None
        self._enter()
        return cluster.routing()

    def _do_tasks(self, holder: SimHolder) -> Doing:
        done: Granted | None = None
        while True:
            incarnation = holder.incarnation if done is not None else 0
            ask = TaskAsk(GRAPH, holder.name, None, WAIT_S, done, incarnation=incarnation)
            told = yield Inquire(ask)
            done = done if told.kind == "busy" else None
            if told.grant is not None:
                done = yield from self._do(holder, told.grant)
            elif told.over == "done":
                order = holder.session.routing.order
                yield Tell(Step(Kind.CLOSE_JOB, order, WorkerId(JOB, 0, 0)))
                yield Leave()
                return
            elif told.over or told.kind == "refused":
                raise FixTheCall(f"{holder.name} was told {told}")
            elif told.kind == "unknown":
                if (
                    self._cluster.incarnation > holder.incarnation
                ):  # of an etcd that is new, perhaps
                    raise RolledBack(f"{holder.name} is not known any more")
                yield Register()
            elif told.kind is not None:
                yield Wait(PAUSE_NS)

    def _do(self, holder: SimHolder, grant: Granted) -> Doing:
        """A task from its takeover to its tick; what is to be reported of it, if anything."""
        world = holder.world
        try:
            settled = yield Take(grant)
        except Fenced:
            return None
        if settled.ticked >= grant.step:
            return grant
        if settled.ticked < grant.step - 1:
            self._ahead.append((world.now_ns, f"{grant} with shards at step {settled.ticked}"))
            yield Wait(PAUSE_NS)
            return None
        task = (grant.rank, grant.step)
        run = Run(holder.name, task, grant.token, holder.incarnation, world.now_ns)
        self.runs.append(run)
        run.end = "lost"
        try:
            yield from self._body(run)
        except Fenced:
            return None
        run.end = "ticked"
        return grant

    def _body(self, run: Run) -> Doing:
        rank, step = run.task
        lane = self.graph.lane(rank)
        body, token = body_of(lane, step), run.token
        yield from self._look(run, list(predecessors(self.graph, lane, step)))
        if body.is_alone:
            run.shared += (yield Pull(self.tables[SHARED_TABLE])).tolist()
        rows = yield Pull(self.tables[WEIGHTS_TABLE], body.reads)
        yield from self._rest(run, 0)
        pushes = [
            Push(self.tables[table], keys, values)
            for table, keys, values in body.pushes(body.gradients(rows), token)
        ]
        cut = len(pushes) // 2 if token % 2 else len(pushes)
        for part in (pushes[:cut], pushes[cut:]):
            yield Together((*part, Wait(0)))
            yield from self._rest(run, 1)
        self._acknowledged += len(pushes)
        if body.is_alone:
            run.shared += (yield Pull(self.tables[SHARED_TABLE])).tolist()
        yield Tick(f"{lane.namespace}[{lane.n}]@{step}".encode())

    def _look(self, run: Run, before: list[Task]) -> Doing:
        """Which marks are there?"""
        keys = np.concatenate([marks_of(task) for task in (*before, run.task)])
        seen = (yield Pull(self.tables[MARKS_TABLE], keys)).reshape(-1, MARKS).tolist()
        run.missing = tuple(t for t, marks in zip(before, seen, strict=False) if set(marks) != {1})
        run.own = tuple(seen[-1])

    def _rest(self, run: Run, half: int) -> Doing:
        """Compute for a while: some tasks take longer than others."""
        if not self._hurry:
            drawn = mix64(number_of(run.task) * 4 + half) % 1_000
            yield Wait(self._task_ns * (200 + drawn) // 1_400)

    # -- the verdicts

    def judge(self, run: RunRecord) -> list[Finding]:
        """Did each task take effect once, in order, and alone where it has to be?"""
        archive, alone = self._cluster.archive, check_alone(self.runs)
        findings = [
            Finding("no holder fails", self._no_errors()),
            Finding("tasks begin after their predecessors", check_order(self.runs)),
            Finding("exclusive tasks run alone", alone),
            Finding("progress is never ahead of the shards", check_progress(self._progress.claims)),
            Finding("grants fit the shards", self._fitting()),
            Finding("every task takes effect once", self._once(run)),
            Finding("no late write counts", self._tokens(run)),
            Finding("the end is that of the serial order", self._serial(run)),
        ]
        return findings if archive is None else [*findings, *self._of_checkpoints(archive)]

    def _no_errors(self) -> Verdict:
        holders = [holder for seat in self.ranks for holder in self.seats[seat]]
        errors = [
            f"{holder.name}: {holder.error}"
            for holder in holders
            if holder.error is not None and not holder.killed
        ]
        return judge(errors, checked=len(holders), what="holders")

    def _fitting(self) -> Verdict:
        """Just after a rollback the coordinator may not have heard of it."""
        archive = self._cluster.archive
        back = [] if archive is None else rollbacks_of(archive.configured)
        found = [
            f"at {at_ns / 1e9:.3f} s: {text}"
            for at_ns, text in self._ahead
            if not any(0 <= at_ns - each.world_ns <= SETTLE_NS for each in back)
        ]
        return judge(found, checked=len(self.runs), what="tasks that were begun")

    def _once(self, run: RunRecord) -> Verdict:
        tasks = tasks_of(self.graph)
        if run.lost_shards or not run.healed:
            return NOT_AT_REST
        keys = np.concatenate([marks_of(task) for task in tasks])
        held = self._cluster.read(self.tables[MARKS_TABLE], keys).reshape(-1, MARKS).tolist()
        return check_once(dict(zip(tasks, held, strict=True)))

    def _tokens(self, run: RunRecord) -> Verdict:
        tasks = tasks_of(self.graph)
        if run.lost_shards or not run.healed:
            return NOT_AT_REST
        keys = np.array([number_of(task) for task in tasks], np.uint64)
        held = self._cluster.read(self.tables[TOKENS_TABLE], keys)[:, 0].tolist()
        tokens = dict(zip(tasks, held, strict=True))
        return check_tokens(self.runs, tokens, self._cluster.incarnation)

    def _serial(self, run: RunRecord) -> Verdict:
        if run.lost_shards or not run.healed:
            return NOT_AT_REST
        routing = self._cluster.routing()
        assert routing is not None
        return check_identity(model_of(self._cluster), serial(routing.shards, self.graph.steps))

    def _of_checkpoints(self, archive: Archive) -> list[Finding]:
        last = [self.worker(seat) for seat in self.ranks]
        latest = {holder.process.name: holder.incarnation for holder in last}
        told = check_all_told(latest, self._cluster.incarnation)
        findings = [Finding("nobody is left behind", told)]
        stored = [each for each in archive.stored.values() if JOB in each.clocks]
        if stored:
            cuts = {
                f"checkpoint {each.id}": (
                    {MARKS_TABLE: each.rows.get(MARKS_TABLE, {})},
                    {MARKS_TABLE: self._due(each.clocks[JOB])},
                )
                for each in stored
            }
            stands = {
                f"checkpoint {each.id}": (each.clocks[JOB], each.stands.get(JOB, {}))
                for each in stored
            }
            findings.append(Finding("a checkpoint is a consistent cut", check_content(cuts)))
            findings.append(Finding("ranks stand at the cut", check_ranks(stands)))
        return findings

    def _due(self, clock: int) -> dict[int, int]:
        tasks = [task for task in tasks_of(self.graph) if task[1] <= clock]
        return {key: 1 for task in tasks for key in marks_of(task).tolist()}


def model_of(cluster: SimCluster) -> Mapping[str, str]:
    """The digest of each table whose end does not depend on who did what, on each shard."""
    return {
        f"table {TABLES[table].name}, shard {shard}": digest
        for table in ALIKE
        for shard, digest in enumerate(cluster.digests(table))
    }


@cache
def serial(shards: int, steps: int) -> Mapping[str, str]:
    """What the tables are when one ordinary worker does all tasks, one after the other."""
    cluster, graph = SimCluster(0, servers=1, shards=shards), graph_of(steps)
    tables = dict(zip(TABLES, cluster.create_tables(TABLES), strict=True))
    job = JobSpec(JOB, "serial", 1, BSP())
    cluster.enter(job, tables.values())
    worker = cluster.spawn(job, 0, 1, partial(_serial_program, graph, tables))
    if not cluster.run([worker]) or worker.error is not None:
        raise AssertionError(f"the serial run does not end: {worker.error}")
    return model_of(cluster)


def _serial_program(graph: Graph, tables: Mapping[int, TableHandle], worker: SimWorker) -> Running:
    for rank, step in graph.serial_order():
        body = body_of(graph.lane(rank), step)
        rows: Any = yield Pull(tables[WEIGHTS_TABLE], body.reads)
        for table, keys, values in body.pushes(body.gradients(rows), token=0):
            yield Push(tables[table], keys, values)
        yield Tick()

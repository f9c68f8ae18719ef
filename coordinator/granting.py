"""The coordinator's part in graphs of tasks: holders ask, and are granted tasks, or told of an end.

Theory of operation. What is done, granted and failed is in etcd (`task_records`), written in
transactions that compare our mandate, the cluster's incarnation, the graph and all lanes that they
change; a grant compares that its holder is registered, and that who had the task is not. One
transaction is under way at a time: whatever is reported and asked for meanwhile goes into the next
one (`task_work`). So the more there is to do, the more there is in each.

Beyond etcd the coordinator knows who waits. A question is answered when there is a task, when there
will be none, or when its time is over; nobody polls. A successor learns who waits when they ask
again, as their connections break.

What the watch says of graphs, lanes and holders is taken in between two transactions, never while
one is under way. Own writes count when etcd has confirmed them: the watch may be late.

When the cluster goes back to a checkpoint, lanes of an earlier incarnation do not count: they begin
at the checkpoint's clock, with new tokens, before anything is granted.

Invariants:

* written-first: nobody is told of a grant, or that a report was taken, before it is in etcd;
* fenced: a deposed coordinator's transaction changes nothing, nor does one of before a rollback;
* bounded: at most `WAITERS_MAX` questions are open, each for `WAIT_MOST_S` and one transaction.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

from resilient_ps.coordinator.kv import (
    Compare,
    KvAnswered,
    KvFailed,
    Op,
    Put,
    TxnResult,
    absent,
    unchanged,
)
from resilient_ps.coordinator.lane_states import LaneStates
from resilient_ps.coordinator.life import Life, life_of
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.open_questions import OpenQuestions
from resilient_ps.coordinator.records import JobState
from resilient_ps.coordinator.task_asks import TaskAsk, TaskTold
from resilient_ps.coordinator.task_batch import Batch
from resilient_ps.coordinator.task_records import GraphRecord, buckets_of
from resilient_ps.coordinator.task_work import Answers, TaskWork
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.coordinator.waiters import Waiter
from resilient_ps.errors import BadInput
from resilient_ps.machine import Effect, Log, Peer, Send, SetTimer
from resilient_ps.messages import Told

TASKS_REF = 29
TIMER = "coordinator/tasks"
WAITERS_MAX = 16_384
STRANGER_NS = 10**9  # how long a graph that is not known may take to appear in our view
RETRY_NS = 100_000_000  # after a transaction that did not succeed, unless the view tells more
NEVER = 2**63
REMOVED = TaskTold(over="removed")


class Granting:
    """See the module."""

    def __init__(self, view: ClusterView, mandate: Mandate) -> None:
        self._view = view
        self._mandate = mandate
        self._questions = OpenQuestions()
        self._works: dict[str, TaskWork] = {}
        self._to_do: dict[str, None] = {}  # graphs for which something may have to be done
        self._strangers: dict[str, dict[int, Waiter]] = {}  # by graphs that are not known
        self._batch: Batch | None = None
        self._life: Life | None = None  # None: we are not the coordinator
        self._life_of: object = None  # what it was made of
        self._hold_until: tuple[int, int] = (0, 0)  # revision and time, whichever comes first
        self._timer_ns: int | None = None

    # -- what the coordinator calls

    def advance(self, now_ns: int) -> list[Effect]:
        """The view has changed, or time has passed."""
        return [*self._go(now_ns), *self.expire(now_ns)]

    def ask(self, peer: Peer, request: int, fields: object, now_ns: int) -> list[Effect]:
        """A holder's question, answered at once or later. Raises `BadInput` for what is none."""
        ask = TaskAsk.from_json(fields)
        effects = self._go(now_ns)  # what is known by now counts
        if self._life is None:
            return [*effects, _send(peer, request, self._not_elected)]
        earlier = self._questions.of_holder(ask.graph, ask.holder)
        if earlier is not None:
            self._leave(earlier, ask)
        if len(self._questions) >= WAITERS_MAX:
            told = TaskTold(error=f"{WAITERS_MAX} questions are open: ask later", kind="busy")
            return [*effects, _send(peer, request, told)]
        waiter = self._questions.open(peer, request, ask, now_ns)
        work = self._work(ask.graph)
        if work is not None:
            effects += self._admit(work, waiter)
        else:
            effects += self._on_unknown(waiter, now_ns)
        return [*effects, *self._go(now_ns), *self.expire(now_ns)]

    def answered(self, event: KvAnswered | KvFailed, now_ns: int) -> list[Effect]:
        """What became of our transaction."""
        self._mandate.answered(TASKS_REF)
        batch, self._batch = self._batch, None
        effects: list[Effect] = []
        if batch is not None:
            work = self._works[batch.graph]
            self._to_do[batch.graph] = None
            result = event.result if isinstance(event, KvAnswered) else None
            if isinstance(result, TxnResult) and result.succeeded:
                effects = self._on_written(work, batch, result.revision)
            else:
                revision = result.revision if isinstance(result, TxnResult) else NEVER
                self._hold_until = (revision, now_ns + RETRY_NS)
                effects = [*_failure_log(event), *self._tell(work.undo(batch))]
        return [*effects, *self._go(now_ns), *self.expire(now_ns)]

    def on_lost(self, peer: Peer) -> None:
        """A connection broke: nobody waits at its other end."""
        for waiter in self._questions.of_peer(peer):
            self._leave(waiter)

    def expire(self, now_ns: int) -> list[Effect]:
        """Answer those whose time is over. To be called also while all else has to wait."""
        effects: list[Effect] = []
        for waiter in self._questions.due(now_ns):
            effects += self._tell(self._on_due(waiter))
        return [*effects, *self._set_timer(now_ns)]

    def drop(self) -> list[Effect]:
        """We are not the coordinator (any more): whoever waits has to ask another one."""
        self._view.task_changes.clear()
        if self._life is None:
            return []
        self._life = self._batch = None
        for kept in (self._works, self._to_do, self._strangers):
            kept.clear()
        return self._tell([(waiter, self._not_elected) for waiter in self._questions.all()])

    def status(self) -> dict[str, Any]:
        """How many tasks are done, and how many holders wait, by graph that is being worked on."""
        return {name: work.status() for name, work in sorted(self._works.items())}

    # -- questions

    @property
    def _not_elected(self) -> TaskTold:
        error = f"{self._mandate.server} is not the coordinator of a cluster"
        return TaskTold(error=error, elected=False)

    def _admit(self, work: TaskWork, waiter: Waiter) -> list[Effect]:
        names, graph = waiter.ask.namespaces, work.record.graph
        if names is not None:
            places = {space.name: at for at, space in enumerate(graph.namespaces)}
            unknown = [name for name in names if name not in places]
            if unknown:
                text = f"graph {work.name!r} has no namespace {unknown[0]!r}"
                return self._tell([(waiter, TaskTold(error=text, kind="unknown"))])
            waiter.spaces = frozenset(places[name] for name in names)
        work.pending[waiter.number] = waiter
        self._to_do[work.name] = None
        return []

    def _on_unknown(self, waiter: Waiter, now_ns: int) -> list[Effect]:
        """The graph may have been created a moment ago."""
        graph = waiter.ask.graph
        item = self._view.items.get(self._view.keys.graph(graph))
        if item is not None:
            try:
                GraphRecord.from_bytes(item.value, item.key)
            except BadInput as error:
                return self._tell([(waiter, TaskTold(error=str(error), kind="refused"))])
        self._strangers.setdefault(graph, {})[waiter.number] = waiter
        self._questions.remind(waiter, now_ns + STRANGER_NS)
        return []

    def _on_due(self, waiter: Waiter) -> Answers:
        graph = waiter.ask.graph
        if self._forget_stranger(waiter):
            text = f"there is no graph {graph!r}"
            return [(waiter, TaskTold(error=text, kind="unknown"))]
        if waiter.deadline_ns > self._questions.now_ns:
            return []  # it was a reminder
        waiter.expired = True
        work = self._works.get(graph)
        if work is None or waiter.reports:  # it is answered when its report is written
            return []
        registered = work.unregistered.get(waiter.holder) is not waiter
        if not work.forget(waiter):
            return []  # it is being granted something
        if registered:
            return [(waiter, work.nothing(waiter))]
        text = f"holder {waiter.holder} is not registered with graph {graph!r}"
        return [(waiter, TaskTold(error=text, kind="unknown"))]

    def _leave(self, waiter: Waiter, later: TaskAsk | None = None) -> None:
        """Nobody waits for its answer any more. Its report counts, unless `later` repeats that."""
        waiter.gone = True
        work = self._works.get(waiter.ask.graph)
        if self._forget_stranger(waiter) or work is None:
            self._questions.close(waiter)
            return
        unseen = waiter.number in work.pending and waiter.reports
        again = later is not None and later.report == waiter.ask.report
        if unseen and not again:
            return
        if work.forget(waiter) and (unseen or not waiter.reports):
            self._questions.close(waiter)

    def _forget_stranger(self, waiter: Waiter) -> bool:
        strangers = self._strangers.get(waiter.ask.graph, {})
        if strangers.pop(waiter.number, None) is None:
            return False
        if not strangers:
            del self._strangers[waiter.ask.graph]
        return True

    def _tell(self, answers: Answers) -> list[Effect]:
        sent: list[Effect] = []
        for waiter, told in answers:
            if self._questions.close(waiter) and not waiter.gone:
                sent.append(_send(waiter.peer, waiter.request, told))
        return sent

    def _set_timer(self, now_ns: int) -> list[Effect]:
        if self._timer_ns is not None and self._timer_ns <= now_ns:
            self._timer_ns = None
        times = [at for at in (self._questions.next_due_ns, self._held_until_ns(now_ns)) if at]
        if not times or (self._timer_ns is not None and self._timer_ns <= min(times)):
            return []
        self._timer_ns = min(times)
        return [SetTimer(TIMER, self._timer_ns)]

    def _held_until_ns(self, now_ns: int) -> int:
        """When to try again after a transaction that did not succeed; 0: now."""
        revision, until_ns = self._hold_until
        return 0 if self._view.revision >= revision or now_ns >= until_ns else until_ns

    # -- what the watch says

    def _take_in(self) -> list[Effect]:
        changes = sorted(self._view.task_changes)
        self._view.task_changes.clear()
        effects = self._look_at_life()
        changed: dict[str, None] = {}
        for located in changes:
            work = self._works.get(located.name)
            if located.kind in ("graph", "job"):
                effects += self._see_graph(located.name)
            elif located.kind == "holder" and work is not None:
                effects += self._tell(work.on_holder(located.part))
                self._to_do[work.name] = None
            elif located.kind == "lanes" and work is not None and self._see(work, located.number):
                changed[work.name] = None
        for name in changed:
            self._works[name].rebuild()
            self._to_do[name] = None
        return effects

    def _look_at_life(self) -> list[Effect]:
        """We have been elected, or the cluster was rolled back, or that is over."""
        made_of, before = (self._view.config, self._view.restore), self._life
        if before is not None and made_of == self._life_of:
            return []
        self._life_of = made_of
        self._life = life = life_of(self._view)
        if life == before:
            return []
        effects: list[Effect] = []
        if before is None or before.incarnation != life.incarnation:
            for name in self._view.graphs:
                effects += self._see_graph(name)
            for work in self._works.values():
                self._load(work)
        self._to_do.update(dict.fromkeys(self._works))
        return effects

    def _see_graph(self, name: str) -> list[Effect]:
        record, work = self._view.graph(name), self._works.get(name)
        effects: list[Effect] = []
        if work is not None and (record is None or not work.is_same(record)):
            del self._works[name]
            effects = self._tell([(waiter, REMOVED) for waiter in work.all_waiters()])
            work = None
        if record is not None and (work is not None or self._has_to_run(name, record)):
            work = self._work(name)
            assert work is not None
            revision = self._view.items[self._view.keys.graph(name)].mod_revision
            work.see(record, revision, self._view.job(name))
            self._to_do[name] = None
        strangers = self._strangers.pop(name, {}) if record is not None else {}
        for waiter in strangers.values():
            work = self._work(name)
            assert work is not None
            effects += self._admit(work, waiter)
        return effects

    def _has_to_run(self, name: str, record: GraphRecord) -> bool:
        """Running graphs have, and those that were done before a rollback."""
        if record.state != "done":
            return record.state == "running"
        states = self._new_states(record)
        self._see_into(states, name, 0)
        return bool(states.troubles) or 0 in states.stale

    def _work(self, name: str) -> TaskWork | None:
        """The work on a graph, begun if it is known."""
        work, record = self._works.get(name), self._view.graph(name)
        if work is None and record is not None:
            lives = partial(self._lives, name)
            work = self._works[name] = TaskWork(name, record, self._new_states(record), lives)
            revision = self._view.items[self._view.keys.graph(name)].mod_revision
            work.see(record, revision, self._view.job(name))
            self._load(work)
        return work

    def _load(self, work: TaskWork) -> None:
        """All lanes, as the view has them."""
        work.states = self._new_states(work.record)
        for bucket in range(buckets_of(work.record.graph)):
            self._see(work, bucket)
        work.rebuild()

    def _new_states(self, record: GraphRecord) -> LaneStates:
        assert self._life is not None
        return LaneStates(record.graph, record.job_id, self._life.incarnation)

    def _see(self, work: TaskWork, bucket: int) -> bool:
        return self._see_into(work.states, work.name, bucket)

    def _see_into(self, states: LaneStates, graph: str, bucket: int) -> bool:
        item = self._view.items.get(self._view.keys.lanes(graph, bucket))
        return states.see(bucket, item, self._view.revision)

    def _lives(self, graph: str, holder: str) -> bool:
        return self._view.keys.holder(graph, holder) in self._view.items

    # -- transactions

    def _go(self, now_ns: int) -> list[Effect]:
        """Take in what has changed, and write what is to be written, unless something is."""
        if self._batch is not None or not self._mandate.elected or self._view.config is None:
            return []
        effects = self._take_in()
        if self._held_until_ns(now_ns) or self._mandate.busy(TASKS_REF):
            return effects
        while self._to_do and self._batch is None:
            name = next(iter(self._to_do))
            del self._to_do[name]
            work = self._works.get(name)
            if work is not None:
                effects += self._step(work)
        return effects

    def _step(self, work: TaskWork) -> list[Effect]:
        assert self._life is not None
        if work.removed:
            return self._tell([(waiter, REMOVED) for waiter in work.forget_all()])
        if not self._life.settled:
            return []  # tables and jobs come back first
        if work.states.troubles:
            text = next(iter(work.states.troubles.values()))
            told = TaskTold(error=text, kind="refused")
            return self._tell([(waiter, told) for waiter in work.forget_all()])
        if work.states.stale:
            return self._write(work, work.reset(self._life.clock(work.record.job_id)))
        batch, answers = work.step()
        effects = self._tell(answers)
        return effects if batch.empty else [*effects, *self._write(work, batch)]

    def _write(self, work: TaskWork, batch: Batch) -> list[Effect]:
        view, keys = self._view, self._view.keys
        batch.records = work.records(batch)
        ops: list[Op] = []
        guards = [view.as_seen(keys.config), unchanged(keys.graph(work.name), work.revision)]
        for bucket, record in batch.records.items():
            key = keys.lanes(work.name, bucket)
            ops.append(Put(key, record.to_bytes()))
            guards.append(work.states.guard(bucket, key))
        for waiter, _ in batch.granted:
            guards.append(exists(keys.holder(work.name, waiter.holder)))
        guards += [absent(keys.holder(work.name, holder)) for holder in batch.gone]
        batch.record = work.changed_record(batch)
        if batch.record is not None:
            ops.append(Put(keys.graph(work.name), batch.record.to_bytes()))
            ops += self._job_too(work, batch.record, guards)
        self._batch = batch
        return self._mandate.ask(TASKS_REF, self._mandate.order(*ops, guards=tuple(guards)))

    def _job_too(self, work: TaskWork, record: GraphRecord, guards: list[Compare]) -> list[Op]:
        """A graph's job is done when the graph is, and runs when that does."""
        job = self._view.job(work.name)
        wanted: JobState = "done" if record.state == "done" else "running"
        if job is None or job.state == wanted:
            return []
        key = self._view.keys.job(work.name)
        guards.append(self._view.as_seen(key))
        return [Put(key, replace(job, state=wanted).to_bytes())]

    def _on_written(self, work: TaskWork, batch: Batch, revision: int) -> list[Effect]:
        for bucket, record in batch.records.items():
            work.states.written(bucket, record, revision)
        logs: list[Effect] = []
        if batch.record is not None:
            work.see(batch.record, revision, self._view.job(work.name))
            logs.append(_state_log(work))
        if batch.resets and not work.states.stale:
            work.rebuild()
            what = {"graph": work.name, "done": work.progress.done_total}
            logs.append(Log("info", "lanes of a graph begin", what))
        return [*logs, *self._tell(work.written(batch))]


def exists(key: bytes) -> Compare:
    """Holds while there is such a key."""
    return Compare(key, "version", ">", 0)


def _send(peer: Peer, request: int, told: TaskTold) -> Send:
    return Send(peer, Told(request, json.dumps(told.to_json())))


def _failure_log(event: KvAnswered | KvFailed) -> list[Log]:
    if isinstance(event, KvAnswered):
        return []  # something has changed: the watch tells what
    return [Log("warning", "etcd call failed", {"error": str(event.error)})]


def _state_log(work: TaskWork) -> Log:
    failure = work.record.failure
    what = {"graph": work.name, "state": work.record.state}
    if failure is None:
        return Log("info", "a graph of tasks has another state", what)
    task = f"step {failure.step} of {failure.namespace} lane {failure.n}"
    remedy = f"mend it, then `resilient-ps ns retry {work.name}`"
    what |= {"task": task, "why": failure.why, "remedy": remedy}
    return Log("warning", "a task has failed", what)

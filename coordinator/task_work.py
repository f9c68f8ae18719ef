"""The work on one graph of tasks: reports are taken, tasks are granted, as changes of lanes.

Theory of operation. Changes are made here at once, and written to etcd as one `Batch`: reports and
grants together, as many as a transaction takes. Nobody is told anything of a batch before it has
been written. When it was not (or nobody knows), it is undone, and what was asked is looked at anew.

Whom a task is granted to: who had the lane last, if it is waiting; else who has waited longest for
a task of this namespace. What a holder is granted: the lane it had last, if that is ready; else the
one with the lowest (step, rank). Looking costs as much as has changed: lanes that became ready, and
holders that have come. All others cannot be matched, or they would have been before.

Invariants:

* one-task: a holder has at most one task;
* token: it grows with each grant of a lane, so that no two grants of a lane have the same;
* undone: after `undo`, states and progress are as before the batch, and no question is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from resilient_ps.coordinator.lane_states import LaneStates
from resilient_ps.coordinator.progress import LaneStage, Progress
from resilient_ps.coordinator.records import JobRecord
from resilient_ps.coordinator.task_asks import ErrorKind, Failure, Granted, TaskTold
from resilient_ps.coordinator.task_batch import ENTRIES_MAX, Batch
from resilient_ps.coordinator.task_records import BUCKET_LANES, GraphRecord, LanesRecord, LaneState
from resilient_ps.coordinator.waiters import Waiter, Waiters

Answers = list[tuple[Waiter, TaskTold]]


class TaskWork:
    """See the module. `lives`: is this holder registered?"""

    def __init__(
        self, name: str, record: GraphRecord, states: LaneStates, lives: Callable[[str], bool]
    ) -> None:
        self.name = name
        self.record = record
        self.revision = 0  # of the graph's key
        self.removed = False
        self.states = states
        self.waiters = Waiters()
        self.pending: dict[int, Waiter] = {}  # questions nobody has looked at, as they came
        self.unregistered: dict[str, Waiter] = {}  # their holders are not known yet
        self._lives = lives
        self._had: dict[str, int] = {}  # the lane that a holder was granted last
        self._had_by: dict[int, str] = {}
        self._new: dict[int, Waiter] = {}  # who was not offered the lane that it had, and
        self._unserved: dict[int, Waiter] = {}  # who was not offered any
        self.rebuild()

    def rebuild(self) -> None:
        """What follows from the lanes' states, anew."""
        states = self.states.states
        self._holding = {state.holder: rank for rank, state in enumerate(states) if state.holder}
        taken = [rank for holder, rank in self._holding.items() if self._lives(holder)]
        lost = [rank for holder, rank in self._holding.items() if not self._lives(holder)]
        done = [state.done for state in states]
        self.progress = Progress(self.record.graph, done, taken, lost)
        self._unserved = {waiter.number: waiter for waiter in self.waiters.all()}

    def is_same(self, record: GraphRecord) -> bool:
        """Is it about this graph? One of the same name may have taken its place."""
        mine = (self.record.job_id, self.record.graph_json)
        return mine == (record.job_id, record.graph_json)

    def see(self, record: GraphRecord, revision: int, job: JobRecord | None) -> None:
        """The graph's record at this revision of its key, and the job that goes with it."""
        if revision > self.revision:
            self.record, self.revision = record, revision
        mine = job is not None and job.job_id == record.job_id and job.state != "stopped"
        self.removed = self.record.state == "removed" or not mine

    # -- who asks

    @property
    def over(self) -> TaskTold | None:
        """What everybody is told when there will be no task (for now)."""
        state = self.record.state
        if state == "running":
            return None
        return TaskTold(over=state, failure=self.record.failure if state == "failed" else None)

    def all_waiters(self) -> list[Waiter]:
        """Everybody whose question is open, but for those in a batch."""
        return [*self.pending.values(), *self.unregistered.values(), *self.waiters.all()]

    def forget_all(self) -> list[Waiter]:
        """Nobody's question is to be answered here, but for those in a batch: whose they were."""
        waiters = self.all_waiters()
        for waiter in waiters:
            self.forget(waiter)
        return waiters

    def forget(self, waiter: Waiter) -> bool:
        """Its question is not to be answered here any more. Was it open, and in no batch?"""
        self._new.pop(waiter.number, None)
        self._unserved.pop(waiter.number, None)
        if self.pending.pop(waiter.number, None) is not None:
            return True
        if self.unregistered.get(waiter.holder) is waiter:
            del self.unregistered[waiter.holder]
            return True
        return self.waiters.remove(waiter)

    def on_holder(self, holder: str) -> Answers:
        """It was registered, or is gone."""
        rank = self._holding.get(holder)
        if self._lives(holder):
            if rank is not None and self.progress.may_take(rank):
                self.progress.take(rank)  # it is back before anybody else got the task
            waiter = self.unregistered.pop(holder, None)
            if waiter is not None:
                self.pending[waiter.number] = waiter
            return []
        if rank is not None and self.progress.is_taken(rank):
            self.progress.lose(rank)
        had = self._had.pop(holder, None)
        if had is not None:
            self._had_by.pop(had, None)
        waiter = self.waiters.of(holder)
        if waiter is None or waiter.reports:
            return []
        self.forget(waiter)
        return [(waiter, _error("unknown", f"holder {holder} is registered no longer"))]

    # -- a batch

    def step(self) -> tuple[Batch, Answers]:
        """Look at what was asked, and grant what can be granted: changes, and answers at once."""
        batch = Batch(self.name)
        answers: Answers = []
        for number in list(self.pending):
            if not batch.has_room:
                break
            waiter = self.pending.pop(number)
            error = self._report(waiter, batch) if waiter.reports else None
            if error is not None:
                answers.append((waiter, error))
            elif (told := self._place(waiter)) is not None:
                answers.append((waiter, told))
        over = self.over
        if over is not None:
            answers += self._end(over)
        elif batch.failure is None:
            self._grant(batch)
        finished = self.progress.finished
        batch.finishes = finished and self.record.state == "running" and batch.failure is None
        batch.reopens = self.record.state == "done" and not finished
        return batch, answers

    def reset(self, done: int) -> Batch:
        """Begin stale buckets anew, all lanes at `done`: as many as fit into a transaction."""
        batch, done = Batch(self.name), min(done, self.record.graph.steps)
        for bucket in list(self.states.stale)[:ENTRIES_MAX]:
            batch.resets[bucket] = self.states.reset(bucket, done)
        return batch

    def written(self, batch: Batch) -> Answers:
        """It is in etcd: who is to be told what."""
        answers: Answers = [(waiter, TaskTold(grant=task)) for waiter, task in batch.granted]
        granted = {waiter.number for waiter, _ in batch.granted}
        over = self.over
        for waiter in batch.reported:
            waiter.reports = False
            if waiter.number in granted:
                continue
            if over is not None or waiter.expired or waiter.only_reports:
                self.forget(waiter)
                answers.append((waiter, over or self.nothing(waiter)))
        return answers if over is None else [*answers, *self._end(over)]

    def _end(self, over: TaskTold) -> Answers:
        """Nobody waits any longer, but for those of whom something is to be written."""
        waiting = [*self.unregistered.values(), *self.waiters.all()]
        told = [waiter for waiter in waiting if not waiter.reports]
        for waiter in told:
            self.forget(waiter)
        return [(waiter, over) for waiter in told]

    def records(self, batch: Batch) -> dict[int, LanesRecord]:
        """What is to be written, by bucket."""
        return {**batch.resets, **{bucket: self.states.record(bucket) for bucket in batch.buckets}}

    def changed_record(self, batch: Batch) -> GraphRecord | None:
        """The graph's record as it is to be; None: as it is."""
        if batch.failure is not None:
            return replace(self.record, state="failed", failure=batch.failure)
        if batch.finishes or batch.reopens:
            return replace(self.record, state="done" if batch.finishes else "running")
        return None

    def undo(self, batch: Batch) -> Answers:
        """It was not written: everything is as before, and is looked at again."""
        for rank, state in batch.before.items():
            self.states.states[rank] = state
        asked = {waiter.number: waiter for waiter in batch.reported}
        for waiter, task in batch.granted:
            asked[waiter.number] = waiter
            self._had.pop(waiter.holder, None)
            self._had_by.pop(task.rank, None)
        answers: Answers = []
        for waiter in asked.values():
            self.forget(waiter)
            if (waiter.expired or waiter.gone) and not waiter.reports:
                answers.append((waiter, self.nothing(waiter)))
            else:
                self.pending[waiter.number] = waiter
        self.pending = dict(sorted(self.pending.items()))
        self.rebuild()
        return answers

    # -- reports

    def _report(self, waiter: Waiter, batch: Batch) -> TaskTold | None:
        """Take down what a holder says of a task; or what is wrong with it."""
        ask = waiter.ask
        task = ask.failed.task if ask.failed is not None else ask.done
        assert task is not None, "it reports nothing"
        graph, present = self.record.graph, self.states.incarnation
        if ask.incarnation < present:
            return _error("fenced", "the cluster was rolled back since: drop the task")
        if ask.incarnation > present:
            return _error("busy", f"the coordinator still is in incarnation {present}: ask later")
        if task.rank >= graph.lanes_total or task.step > graph.steps:
            return _error(
                "refused",
                f"graph {self.name!r} has {graph.lanes_total} lanes and {graph.steps} steps, and "
                f"so no step {task.step} of lane {task.rank}",
            )
        state = self.states.states[task.rank]
        if task.step <= state.done and ask.done is not None:
            waiter.reports = False  # it is known already
            return None
        error = self._objection(waiter, task, state)
        if error is not None:
            return error
        self._holding.pop(waiter.holder, None)
        batch.reported.append(waiter)
        if ask.failed is None:
            self._change(task.rank, LaneState(task.step, state.token), batch)
            self.progress.finish(task.rank)
            return None
        self._change(task.rank, LaneState(state.done, state.token), batch)
        self.progress.give_back(task.rank)
        lane = graph.lane(task.rank)
        failure = Failure(lane.namespace, lane.n, task.step, ask.failed.why)
        if self.record.state == "running" and batch.failure is None:
            batch.failure = failure
        return None

    def _objection(self, waiter: Waiter, task: Granted, state: LaneState) -> TaskTold | None:
        told = f"step {task.step} of {self._lane(task.rank)}"
        if task.token < state.token or (
            task.token == state.token and state.holder != waiter.holder
        ):
            whose = f", to {state.holder}" if state.holder else ""
            return _error(
                "fenced",
                f"{told} is not {waiter.holder}'s any more: it has token {task.token}, and the "
                f"lane's last one is {state.token}{whose}. Drop the task",
            )
        if task.token > state.token:
            return _error("refused", f"{told} was never granted with token {task.token}")
        stage = self.progress.stage(task.rank)
        if task.step != state.done + 1 or stage not in (LaneStage.READY, LaneStage.TAKEN):
            return _error("refused", f"{told} cannot be: the lane's next step is {state.done + 1}")
        return None

    # -- grants

    def _place(self, waiter: Waiter) -> TaskTold | None:
        """Let it wait; or what it is told at once."""
        over = self.over
        if waiter.reports and (over is not None or waiter.only_reports):
            return None  # it is answered with the batch
        if over is not None:
            return over
        if waiter.only_reports or (waiter.expired and not waiter.reports):
            return self.nothing(waiter)
        if not self._lives(waiter.holder):
            self.unregistered[waiter.holder] = waiter
            return None
        rank = self._holding.get(waiter.holder)
        if rank is not None:
            state = self.states.states[rank]
            return TaskTold(grant=Granted(rank, state.done + 1, state.token))
        self.waiters.add(waiter)
        self._new[waiter.number] = waiter
        return None

    def _grant(self, batch: Batch) -> None:
        while batch.has_room:
            found = self._next()
            if found is None:
                return
            waiter, rank = found
            if not self._lives(waiter.holder):
                self.forget(waiter)
                self.unregistered[waiter.holder] = waiter
                continue
            state = self.states.states[rank]
            if self._holding.get(state.holder) == rank:
                del self._holding[state.holder]
                batch.gone.append(state.holder)
            task = Granted(rank, state.done + 1, state.token + 1)
            self._change(rank, LaneState(state.done, task.token, waiter.holder), batch)
            self.progress.take(rank)
            self.forget(waiter)
            self._holding[waiter.holder] = rank
            self._had[waiter.holder] = rank
            self._had_by[rank] = waiter.holder
            batch.granted.append((waiter, task))

    def _change(self, rank: int, state: LaneState, batch: Batch) -> None:
        batch.before.setdefault(rank, self.states.states[rank])
        batch.buckets[rank // BUCKET_LANES] = None
        self.states.states[rank] = state

    def _next(self) -> tuple[Waiter, int] | None:
        """Who is to get which lane next; see the module."""
        return self._new_with_its_lane() or self._lane_with_its_last() or self._in_order()

    def _new_with_its_lane(self) -> tuple[Waiter, int] | None:
        while self._new:
            waiter = next(iter(self._new.values()))
            rank = self._had.get(waiter.holder)
            if rank is not None and self._fits(waiter, rank):
                return waiter, rank
            del self._new[waiter.number]
            self._unserved[waiter.number] = waiter
        return None

    def _lane_with_its_last(self) -> tuple[Waiter, int] | None:
        fresh = self.progress.fresh
        while fresh:
            rank = next(iter(fresh))
            waiter = self.waiters.of(self._had_by.get(rank, ""))
            if waiter is not None and self._fits(waiter, rank):
                return waiter, rank
            del fresh[rank]
        return None

    def _in_order(self) -> tuple[Waiter, int] | None:
        news = self.progress.news
        while (exposed := news.first()) is not None:
            rank = exposed[1]
            waiter = self.waiters.first(self.progress.space_of[rank])
            if waiter is not None:
                return waiter, rank
            news.discard(exposed)
        while self._unserved:
            waiter = next(iter(self._unserved.values()))
            found = self._best_for(waiter)
            if found is not None:
                return waiter, found
            del self._unserved[waiter.number]
        return None

    def _fits(self, waiter: Waiter, rank: int) -> bool:
        return self.progress.may_take(rank) and waiter.wants(self.progress.space_of[rank])

    def _best_for(self, waiter: Waiter) -> int | None:
        if waiter.spaces is None:
            first = self.progress.open.first()
            return None if first is None else first[1]
        ranks = [self.progress.best(space) for space in waiter.spaces]
        found = [(self.progress.done[rank], rank) for rank in ranks if rank is not None]
        return min(found)[1] if found else None

    # -- for people

    def status(self) -> dict[str, Any]:
        """In numbers."""
        return {
            "state": "removed" if self.removed else self.record.state,
            "tasks": self.record.graph.tasks_total,
            "done": self.progress.done_total,
            "granted": len(self._holding),
            "ready": self.progress.ready_total,
            "waiting": len(self.all_waiters()),
        }

    def nothing(self, waiter: Waiter) -> TaskTold:
        """No task for it yet, and why."""
        return TaskTold(nothing=True, waits_for=self._waits_for(waiter))

    def _waits_for(self, waiter: Waiter) -> str:
        spaces = range(len(self.progress.spaces)) if waiter.spaces is None else waiter.spaces
        rank = self.progress.slowest(spaces)
        if rank is None:
            return "the end of the graph: all tasks of these namespaces are done"
        told, blocker = self._task(rank), self.progress.blocker(rank)
        return told if blocker is None else f"{told}, which waits for {self._task(blocker)}"

    def _task(self, rank: int) -> str:
        state = self.states.states[rank]
        by = ""
        if state.holder:
            by = f" (at {state.holder}{'' if self._lives(state.holder) else ', which is gone'})"
        return f"step {state.done + 1} of {self._lane(rank)}{by}"

    def _lane(self, rank: int) -> str:
        lane = self.record.graph.lane(rank)
        return f"{lane.namespace} lane {lane.n}"


def _error(kind: ErrorKind, text: str) -> TaskTold:
    return TaskTold(error=text, kind=kind)

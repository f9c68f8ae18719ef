"""Whatever happens in whichever order, tasks are granted rightly, and the graph comes to its end.

Holders ask, report, repeat themselves, die and come back; transactions are lost, or their answers;
the watch is late; coordinators are deposed.
"""

from __future__ import annotations

import random

import pytest
from candidates import KEYS, Etcd
from desk import Desk
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_history import LaneHistory
from task_graphs import graphs

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import TxnResult
from resilient_ps.coordinator.progress import Progress
from resilient_ps.coordinator.task_asks import Granted
from resilient_ps.coordinator.task_records import HolderRecord, LanesRecord, LaneState


class Crew:
    """Holders at the desks of one store, driven by chance."""

    def __init__(self, graph: Graph, chance: random.Random) -> None:
        self.desk = Desk(graph)
        self.history = LaneHistory(self.desk.etcd, graph)
        self._chance = chance
        self._spaces = [space.name for space in graph.namespaces]
        self._desks = [self.desk]
        self._result: TxnResult | None = None  # of the transaction under way, if it is performed
        self._living: list[str] = []
        self._asked: dict[int, str] = {}
        self._tasks: dict[str, Granted] = {}
        self._old: list[tuple[str, Granted]] = []  # done, and reported before
        self._born = 0
        for _ in range(3):
            self.new_holder()

    def new_holder(self) -> None:
        self._born += 1
        self._living.append(f"h{self._born}")
        self.desk.register(self._living[-1])

    def death(self) -> None:
        if len(self._living) > 1:
            name = self._chance.choice(self._living)
            self._living.remove(name)
            self.desk.kill(name)
            self.new_holder()

    def lapse(self) -> None:
        """A lease ends, its holder lives, and registers again."""
        name = self._chance.choice(self._living)
        self.desk.kill(name)
        if self._chance.random() < 0.5:
            self.desk.poll()
        self.desk.register(name)

    def question(self) -> None:
        """A holder asks, with or without a report, or repeats what it said before."""
        name = self._chance.choice(self._living)
        task = self._tasks.get(name)
        if self._chance.random() < 0.2 and self._old:
            name, old = self._chance.choice(self._old)
            self._asked[self.desk.put(name, done=old, namespaces=())] = name
            return
        if task is not None and self._chance.random() < 0.8:
            self.history.may_report.add((name, task))
            self._old.append((name, task))
        else:
            task = None
        names = None if self._chance.random() < 0.6 else (self._chance.choice(self._spaces),)
        self._asked[self.desk.put(name, done=task, namespaces=names)] = name

    def answers(self) -> None:
        """Holders hear what they were told; some answers are lost."""
        for request, told in self.desk.answers.items():
            name = self._asked.pop(request, "")
            if told.grant is not None:
                assert (name, told.grant) in self.history.grants, "told of what is not in etcd"
                if self._chance.random() < 0.8:
                    self._tasks[name] = told.grant
            elif told.kind == "fenced":
                self._tasks.pop(name, None)
        self.desk.answers.clear()

    def etcd(self) -> None:
        """The transaction under way is performed, answered, or lost."""
        if not self.desk.calls:
            return
        if self._result is None and self._chance.random() < 0.8:
            self._result = self.desk.write()
            self.history.look()
        elif self._chance.random() < 0.7 and self._result is not None:
            self.desk.answer(self._result)
            self._result = None
        else:
            self.desk.answer(None)
            self._result = None

    def succession(self) -> None:
        """Another coordinator; the old one may finish what it had begun, in vain."""
        old = self.desk
        self.desk = Desk(etcd=old.etcd, name=f"s{len(self._desks) + 1}")
        self._desks.append(self.desk)
        if old.calls and self._result is None:
            assert not old.write().succeeded
        self._result = None
        old.answers.clear()
        old.look()
        assert all(not told.elected for told in old.answers.values() if told.error)
        self._asked.clear()

    def anything(self) -> None:
        weights = {
            self.question: 8,
            self.etcd: 8,
            self.answers: 4,
            self.desk.look: 4,
            self.death: 1,
            self.lapse: 1,
            self.succession: 0.3,
            lambda: self.desk.wait(0.5) if not self.desk.calls else None: 1,
        }
        (what,) = self._chance.choices(list(weights), list(weights.values()))
        what()
        self.history.look()

    def finish(self) -> None:
        """From now on all is well: the graph comes to its end."""
        if self.desk.calls:
            self.desk.answer(self._result)
        total = self.desk.record().graph.tasks_total
        for _ in range(4 * total + 20):
            if self.desk.record().state == "done":
                break
            for name in list(self._living):
                task = self._tasks.pop(name, None)
                if task is not None:
                    self.history.may_report.add((name, task))
                request = self.desk.put(name, done=task)
                self.desk.wait(0.2)
                self.history.look()
                told = self.desk.answers.get(request)
                if told is not None and told.grant is not None:
                    self._tasks[name] = told.grant
        assert self.desk.record().state == "done", self.desk.lanes()


@settings(max_examples=30, deadline=None)
@given(graphs(widths_to=3, steps_to=4), st.randoms(use_true_random=False))
def test_whatever_happens_grants_are_right_and_the_graph_is_done(
    graph: Graph, chance: random.Random
) -> None:
    run(graph, chance, 60)


@pytest.mark.soak
@settings(max_examples=3_000, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_whatever_happens_for_long(graph: Graph, chance: random.Random) -> None:
    run(graph, chance, 300)


def run(graph: Graph, chance: random.Random, turns: int) -> None:
    crew = Crew(graph, chance)
    for _ in range(turns):
        crew.anything()
    crew.finish()


# -- would the history tell?


def history_of(*changes: dict[int, LaneState]) -> LaneHistory:
    """Two lanes, b after a; holders x and y live."""
    graph = Graph("g", 2)
    graph.add("a")
    graph.add("b")
    graph.after("b", "a")
    graph.exclusive("a", "b")
    etcd = Etcd()
    history = LaneHistory(etcd, graph)
    for name in ("x", "y"):
        etcd.put(KEYS.holder("g", name), HolderRecord("box", 1).to_bytes())
    lanes = [LaneState(), LaneState()]
    for change in changes:
        lanes = [change.get(rank, state) for rank, state in enumerate(lanes)]
        etcd.put(KEYS.lanes("g", 0), LanesRecord(1, 1, tuple(lanes)).to_bytes())
    history.may_report.add(("x", Granted(0, 1, 1)))
    return history


A_GRANTED, A_DONE = {0: LaneState(0, 1, "x")}, {0: LaneState(1, 1)}


def test_a_right_history_is_right() -> None:
    history_of(A_GRANTED, A_DONE, {1: LaneState(0, 1, "y")}).look()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([{1: LaneState(0, 1, "x")}], "step 1 of rank 1 before 1 of 0"),
        ([A_GRANTED, {0: LaneState(0, 2, "y")}], "x has rank 0, and lives"),
        ([{0: LaneState(0, 1, "z")}], "z is dead"),
        ([A_GRANTED, A_DONE, {0: LaneState(1, 1, "y")}], "token 1 of rank 0 after 1"),
        ([{0: LaneState(0, 1, "y")}, A_DONE], "y has not done"),
        ([A_GRANTED, {0: LaneState(2, 1)}], "rank 0 went from"),
        (
            [A_GRANTED, A_DONE, {0: LaneState(1, 2, "x"), 1: LaneState(0, 1, "y")}],
            "rank 0 beside",
        ),
        (
            [A_GRANTED, A_DONE, {0: LaneState(1, 2, "x")}, {1: LaneState(0, 1, "x")}],
            "rank 1 beside",
        ),
    ],
)
def test_a_wrong_history_is_found_out(changes: list[dict[int, LaneState]], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        history_of(*changes).look()


def test_a_coordinator_that_ignores_predecessors_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def always_ready(self: Progress, rank: int, first_edge: int) -> None:
        self._become_ready(rank)

    monkeypatch.setattr(Progress, "_evaluate", always_ready)
    graph = Graph("g", 2)
    graph.add("a")
    graph.add("b")
    graph.after("b", "a")
    with pytest.raises(AssertionError, match="before"):
        run(graph, random.Random(1), 200)

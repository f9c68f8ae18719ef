"""Ten thousand tasks, five hundred holders: etcd's limits are kept, and work is in proportion."""

from __future__ import annotations

import pytest
from candidates import KEYS
from desk import Desk

from resilient_ps.coordinator import task_work
from resilient_ps.coordinator.graph import LANES_MAX, Graph
from resilient_ps.coordinator.kv import MAX_TXN_BYTES, TxnResult, txn_bytes
from resilient_ps.coordinator.progress import Progress
from resilient_ps.coordinator.task_asks import Granted
from resilient_ps.coordinator.waiters import Waiter, Waiters


class MeasuredDesk(Desk):
    """Knows how large the largest transaction was."""

    largest_bytes = 0

    def write(self) -> TxnResult:
        self.largest_bytes = max(self.largest_bytes, txn_bytes(self.calls[0].request))  # type: ignore[arg-type]
        return super().write()


def run(desk: Desk, holders: list[str]) -> list[tuple[str, Granted]]:
    """Until everybody has been told that the graph is done."""
    granted: list[tuple[str, Granted]] = []
    asked = {desk.put(name): name for name in holders}
    ended = 0
    while ended < len(holders):
        desk.run()
        answers, desk.answers = desk.answers, {}
        assert answers, "nobody is told anything"
        for request, told in answers.items():
            name = asked.pop(request)
            if told.over == "done":
                ended += 1
                continue
            assert told.grant is not None, told
            granted.append((name, told.grant))
            asked[desk.put(name, done=told.grant)] = name
    return granted


def scattered(steps: int) -> Graph:
    """Two namespaces, each a lane for each holder; the second after the first, and back."""
    graph = Graph("g", steps)
    graph.add("a", 500)
    graph.add("b", 500)
    graph.after("b", "a", shift=7)
    graph.after("a", "b", lag=1)
    return graph


def test_ten_thousand_tasks_for_five_hundred_holders() -> None:
    graph = scattered(10)
    desk = MeasuredDesk(graph)
    holders = [f"holder-{number}" for number in range(500)]
    desk.register(*holders)
    granted = run(desk, holders)
    assert len(granted) == graph.tasks_total == 10_000
    assert len({task[:2] for _, task in granted}) == 10_000
    assert {name for name, _ in granted} == set(holders)
    assert desk.record().state == "done"
    assert desk.largest_bytes < MAX_TXN_BYTES / 4
    assert desk.txns < 10_000 / 20, "many reports and grants go into one transaction"
    keys = [key for key in desk.view.items if key.startswith(KEYS.graph_parts("g"))]
    assert len(keys) == 16 + 500, "nothing is kept of a task that is done"


def test_all_holders_die_and_others_take_over() -> None:
    graph = Graph("g", 2)
    graph.add("a", 500)
    desk = MeasuredDesk(graph)
    dead, heirs = ([f"{who}-{number}" for number in range(500)] for who in ("dead", "heir"))
    desk.register(*dead, *heirs)
    for name in dead:
        desk.put(name)
    desk.run()
    assert all(state.holder for state in desk.lanes())
    for name in dead:
        desk.kill(name)
    desk.answers.clear()
    granted = run(desk, heirs)
    assert len(granted) == graph.tasks_total
    assert min(task.token for _, task in granted) == 2


def test_a_graph_of_the_most_lanes_begins_within_etcds_limits() -> None:
    graph = Graph("g", 1)
    graph.add("a", LANES_MAX)
    desk = MeasuredDesk(graph)
    assert len(desk.lanes()) == LANES_MAX
    assert desk.txns == 3
    desk.register("x")
    assert desk.granted("x") == Granted(0, 1, 1)


def test_who_cannot_be_served_costs_nothing_while_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted_wants(self: Waiter, space: int) -> bool:
        nonlocal looks
        looks += 1
        return wants(self, space)

    def counted_first(self: Waiters, space: int) -> Waiter | None:
        nonlocal looks
        looks += 1
        return first(self, space)

    def counted_best(self: task_work.TaskWork, waiter: Waiter) -> int | None:
        nonlocal looks
        looks += 1
        return best_for(self, waiter)

    wants, first = Waiter.wants, Waiters.first
    best_for = task_work.TaskWork._best_for
    monkeypatch.setattr(Waiter, "wants", counted_wants)
    monkeypatch.setattr(Waiters, "first", counted_first)
    monkeypatch.setattr(task_work.TaskWork, "_best_for", counted_best)
    graph = Graph("g", 1_000)
    graph.add("a")
    graph.add("b", 500)
    graph.after("b", "a")
    graph.after("b", "b", lag=1)
    graph.after("a", "b", lag=999)
    desk = Desk(graph)
    waiting = [f"waits-{number}" for number in range(1_000)]
    desk.register("x", *waiting)
    for name in waiting:
        desk.put(name, namespaces=("b",), wait_s=10)
    desk.run()
    task = desk.granted("x", namespaces=("a",))
    desk.put("x", done=task, namespaces=("a",))
    desk.run()
    looks, evaluated = 0, 0

    def counted_evaluate(self: Progress, rank: int, first_edge: int) -> None:
        nonlocal evaluated
        evaluated += 1
        evaluate(self, rank, first_edge)

    evaluate = Progress._evaluate
    monkeypatch.setattr(Progress, "_evaluate", counted_evaluate)
    assert desk.granting.status()["g"]["waiting"] == 500
    told = desk.answers[max(desk.answers)]
    for _ in range(100):
        assert told.grant is not None
        told = desk.ask("x", done=told.grant, namespaces=("a",)) or told
    assert told.grant is not None
    assert told.grant.step > 100
    assert looks < 1_000, "five hundred waiting holders are not looked at for each task"
    assert evaluated < 1_000, "nor are five hundred lanes"

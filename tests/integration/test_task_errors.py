"""What goes wrong with tasks is said clearly, and to all whom it concerns."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crew import CLUSTER, NUMBERS, PATIENCE_S, Hurt, eventually, hurt_cluster
from holders import holders_of

import resilient_ps as ps
from resilient_ps.client.coordinator_line import CoordinatorLine
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.task_asks import Granted, TaskAsk, TaskTold

KEYS = ClusterKeys(CLUSTER)
ONE = np.ones(1, np.int64)


@pytest.fixture(scope="module")
def hurt() -> Iterator[Hurt]:
    with hurt_cluster(1, replicas=1, shards=2) as hurt:
        yield hurt


@pytest.fixture
def client(hurt: Hurt) -> Iterator[ps.Client]:
    with hurt.connect() as client:
        yield client


@pytest.fixture
def other(hurt: Hurt) -> Iterator[ps.Client]:
    with hurt.connect() as client:
        yield client


def chain(steps: int = 3) -> ps.Graph:
    """`second` after `first`, step by step."""
    graph = ps.Graph(f"chain{next(NUMBERS)}", steps=steps)
    graph.add("first")
    graph.add("second")
    graph.after("second", "first")
    return graph


def counter(tasks: ps.Tasks) -> ps.DenseTable:
    name = f"{tasks.graph.name}/count"
    return tasks.dense_table(name, shape=(1,), dtype="int64", optimiser=ps.Sum())


def counted(client: ps.Client, graph: ps.Graph) -> int:
    table = client.table(f"{graph.name}/count")
    assert isinstance(table, ps.DenseTable)
    return int(table.pull()[0])


class Asker:
    """Asks as a holder does, word by word."""

    def __init__(self, tasks: ps.Tasks, client: ps.Client) -> None:
        self._question = partial(
            TaskAsk, tasks.graph.name, tasks.holder, incarnation=tasks.incarnation
        )
        self._line = CoordinatorLine(client.catalogue.kv, KEYS, PATIENCE_S)

    def ask(self, **what: Any) -> TaskTold:
        ask = self._question(**{"wait_s": 10.0, **what})
        until_s = time.monotonic() + PATIENCE_S
        return TaskTold.from_json(self._line.ask(json.dumps(ask.to_json()), PATIENCE_S, until_s))

    def close(self) -> None:
        self._line.close()


# --- graphs that cannot be


def test_a_cycle_is_shown(client: ps.Client) -> None:
    graph = chain()
    graph.after("first", "second")
    with pytest.raises(ps.BadInput, match=r"first -> second -> first|second -> first -> second"):
        client.tasks(graph)


@pytest.mark.parametrize("namespaces", [["third"], "first", []])
def test_namespaces_that_the_graph_does_not_have_are_refused(
    client: ps.Client, namespaces: Any
) -> None:
    with pytest.raises(ps.BadInput, match=r"namespace"):
        client.tasks(chain(), namespaces)


def test_another_graph_of_the_same_name_is_refused_and_both_are_shown(client: ps.Client) -> None:
    graph = chain(steps=3)
    other = ps.Graph(graph.name, steps=4)
    other.add("first")
    with client.tasks(graph), pytest.raises(ps.SpecMismatch, match=r'"steps":3.*"steps":4'):
        client.tasks(other)


def test_a_job_that_is_no_graphs_keeps_its_name(client: ps.Client) -> None:
    graph = chain()
    with client.worker(graph.name, 0, 2, "bsp"), pytest.raises(ps.SpecMismatch, match="bsp"):
        client.tasks(graph)


# --- the coordinator's promises, asked for word by word


def test_a_question_whose_answer_was_lost_gives_the_same_task_again(client: ps.Client) -> None:
    with client.tasks(chain()) as tasks, closing(Asker(tasks, client)) as asker:
        first = asker.ask().grant
        assert first is not None
        assert asker.ask().grant == first


def test_a_task_that_is_reported_twice_is_done_once(client: ps.Client) -> None:
    with client.tasks(chain(steps=2)) as tasks, closing(Asker(tasks, client)) as asker:
        task = tasks.next()
        assert task is not None
        tasks.finish()
        done = Granted(task.rank, task.step, task.token)
        for _ in range(2):
            told = asker.ask(done=done, namespaces=())
            assert (told.nothing, told.error) == (True, "")
        follows = tasks.next()
        assert follows is not None
        assert (follows.step, follows.rank) in {(2, 0), (1, 1)}


def test_a_token_counts_for_one_grant_only(client: ps.Client, other: ps.Client) -> None:
    graph = chain()
    with client.tasks(graph) as tasks, closing(Asker(tasks, client)) as asker:
        before = asker.ask().grant
    with other.tasks(graph) as tasks, closing(Asker(tasks, other)) as asker:
        grant = asker.ask().grant
        assert before is not None
        assert grant is not None
        assert before[:2] == grant[:2]
        told = asker.ask(done=before, namespaces=())
        assert told.kind == "fenced"
        for wrong in (grant._replace(step=2), grant._replace(token=grant.token + 1)):
            told = asker.ask(done=wrong, namespaces=())
            assert told.kind == "refused"
        assert asker.ask().grant == grant


def test_each_grant_of_a_lane_has_a_larger_token(client: ps.Client, other: ps.Client) -> None:
    graph = chain(steps=1)
    with client.tasks(graph) as tasks:
        first = tasks.next()
    with other.tasks(graph) as tasks:
        again = tasks.next()
        assert first is not None
        assert again is not None
        assert (again.rank, again.step) == (first.rank, first.step)
        assert again.token > first.token


# --- a task, and what is pushed in it


def test_outside_of_a_task_nothing_can_be_pushed_or_pulled(client: ps.Client) -> None:
    with client.tasks(chain()) as tasks:
        table = counter(tasks)
        for call in (lambda: table.push(ONE), table.pull):
            with pytest.raises(ps.FixTheCall, match="no task is in hand"):
                call()
        assert tasks.next() is not None
        table.push(ONE)
        tasks.finish()
        with pytest.raises(ps.FixTheCall, match="no task is in hand"):
            table.push(ONE)


def test_what_is_pushed_is_seen_when_the_task_has_ended_and_counts_once(client: ps.Client) -> None:
    graph = chain(steps=4)
    with client.tasks(graph) as tasks:
        table = counter(tasks)
        seen = []
        for _ in tasks:
            seen.append(int(table.pull()[0]))
            table.push(ONE)
            assert int(table.pull()[0]) == seen[-1]
        assert seen == list(range(graph.tasks_total))
    assert counted(client, graph) == graph.tasks_total


def test_a_task_that_is_left_before_its_end_has_pushed_nothing(
    client: ps.Client, other: ps.Client
) -> None:
    graph = chain(steps=2)
    with client.tasks(graph) as tasks:
        table = counter(tasks)
        for _ in tasks:
            table.push(ONE * 100)
            break
    with other.tasks(graph) as tasks:
        table = counter(tasks)
        assert tasks.run(lambda _task: table.push(ONE)) == graph.tasks_total
    assert counted(client, graph) == graph.tasks_total


def test_a_cursor_comes_to_the_lanes_next_step(client: ps.Client) -> None:
    with client.tasks(chain(steps=3), ["first"]) as tasks:
        cursors = []
        while len(cursors) < 3:
            task = tasks.next()
            assert task is not None
            cursors.append(task.cursor)
            tasks.finish({"behind": task.step} if task.step == 1 else None)
    assert cursors == [None, {"behind": 1}, {"behind": 1}]


def test_a_graph_that_is_done_gives_nobody_a_task_and_leaves_its_tables_free(
    client: ps.Client, other: ps.Client
) -> None:
    graph = chain(steps=1)
    with client.tasks(graph) as tasks:
        table = counter(tasks)
        tasks.run(lambda _task: table.push(ONE))
    with other.tasks(graph) as tasks:
        assert list(tasks) == []
    with other.worker(f"{graph.name}-more", 0, 1, "asp") as worker:
        free = worker.table(f"{graph.name}/count")
        assert isinstance(free, ps.DenseTable)
        free.push(ONE)


# --- waiting in vain


@pytest.fixture
def waiting(other: ps.Client) -> Iterator[Callable[[ps.Graph], Future[ps.Task | None]]]:
    """Waits for a task of `second` in a thread."""
    with ThreadPoolExecutor(1) as threads:

        def wait(graph: ps.Graph) -> Future[ps.Task | None]:
            began = threading.Event()

            def work() -> ps.Task | None:
                with other.tasks(graph, ["second"], deadline_s=PATIENCE_S) as tasks:
                    began.set()
                    return tasks.next()

            future = threads.submit(work)
            assert began.wait(PATIENCE_S)
            return future

        yield wait


def test_a_failed_task_wakes_those_who_wait_for_it(
    client: ps.Client, waiting: Callable[[ps.Graph], Future[ps.Task | None]]
) -> None:
    graph = chain()
    with client.tasks(graph, ["first"]) as tasks:
        waits = waiting(graph)

        def fails(_task: ps.Task) -> None:
            raise ZeroDivisionError("no samples")

        with pytest.raises(ZeroDivisionError):
            tasks.run(fails)
        with pytest.raises(ps.TaskFailed, match=r"first\[0\] failed at step 1.*no samples") as told:
            waits.result(PATIENCE_S)
    assert (told.value.namespace, told.value.n, told.value.step) == ("first", 0, 1)
    with pytest.raises(ps.TaskFailed), client.tasks(graph) as tasks:
        tasks.next()


def break_off(tasks: ps.Tasks, error: Exception) -> None:
    for _ in tasks:
        raise error


def test_an_exception_that_leaves_the_loop_fails_the_task_and_one_that_time_mends_does_not(
    client: ps.Client, other: ps.Client
) -> None:
    graph = chain()
    with pytest.raises(ps.Unavailable), client.tasks(graph) as tasks:
        break_off(tasks, ps.Unavailable("for a moment"))
    with pytest.raises(KeyError), other.tasks(graph) as tasks:
        break_off(tasks, KeyError("a mistake"))
    with pytest.raises(ps.TaskFailed, match="a mistake"), client.tasks(graph) as tasks:
        tasks.next()


def test_a_removed_graph_wakes_those_who_wait(
    client: ps.Client, waiting: Callable[[ps.Graph], Future[ps.Task | None]]
) -> None:
    graph = chain()
    with client.tasks(graph, ["first"]) as tasks:
        assert tasks.next() is not None
        waits = waiting(graph)
        client.remove_job(graph.name)
        with pytest.raises(ps.NotFound, match="was removed"):
            waits.result(PATIENCE_S)
        with pytest.raises(ps.NotFound):
            tasks.next()


def test_a_deadline_says_what_was_waited_for(client: ps.Client, other: ps.Client) -> None:
    graph = chain()
    with client.tasks(graph, ["first"]) as tasks, other.tasks(graph, ["second"]) as late:
        assert tasks.next() is not None
        with pytest.raises(ps.DeadlineExceeded, match=rf"{graph.name}.*first"):
            late.next(deadline_s=0.2)
        tasks.finish()
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(late.next)
            assert tasks.next() is not None  # reports the one before
            second = waits.result(PATIENCE_S)
        assert second is not None
        assert (second.namespace, second.step) == ("second", 1)


def test_ctrl_c_gives_the_task_to_others_at_once(hurt: Hurt, tmp_path: Path) -> None:
    name = f"interrupted{next(NUMBERS)}"
    with holders_of(hurt.endpoints, CLUSTER, name, tmp_path) as holders:
        interrupted = holders.start(wait_in=["first"], lease_ttl_s=3_600)
        interrupted.wait_to_hear("waits")
        interrupted.signal(signal.SIGINT)
        interrupted.process.wait(PATIENCE_S)
        assert "KeyboardInterrupt" in interrupted.last_words()
        holders.start().wait_for_end()
        with hurt.connect() as client:
            assert holders.wrongs(client) == []


def test_a_holder_that_computes_for_longer_than_its_lease_keeps_it(
    hurt: Hurt, client: ps.Client
) -> None:
    with client.tasks(chain(), lease_ttl_s=1) as tasks:
        task = tasks.next()
        key = KEYS.holder(tasks.graph.name, tasks.holder)
        (before,) = hurt.kv.read(key).items
        until_s = time.monotonic() + 3.0
        while time.monotonic() < until_s:
            pass
        assert hurt.kv.read(key).items == (before,)
        assert tasks.in_hand == task


def test_a_lease_that_was_lost_is_taken_again_under_the_same_name(
    hurt: Hurt, client: ps.Client
) -> None:
    with client.tasks(chain(), lease_ttl_s=1) as tasks:
        key = KEYS.holder(tasks.graph.name, tasks.holder)
        (held,) = hurt.kv.read(key).items
        hurt.kv.revoke(held.lease)
        eventually(lambda: hurt.kv.read(key).items, "the holder to register again")
        assert tasks.run(lambda _task: None) == tasks.graph.tasks_total

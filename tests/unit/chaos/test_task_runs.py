"""The checkers of tasks: each finds what it is for, and nothing in what is right."""

from __future__ import annotations

import dataclasses

import numpy as np

from resilient_ps.chaos.checkers.tasks import (
    Claim,
    Run,
    check_alone,
    check_once,
    check_order,
    check_progress,
    check_tokens,
)
from resilient_ps.chaos.workloads.task_bodies import (
    TABLES,
    body_of,
    graph_of,
    marks_of,
    predecessors,
    tasks_of,
)


def run(holder: str = "h1", token: int = 5, **fields: object) -> Run:
    made = Run(holder, (2, 3), token, 1, 10**9, own=(0, 0), end="ticked")
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


# -- once


def test_marks_that_are_all_1_are_right() -> None:
    assert check_once({(0, 1): [1, 1], (1, 1): [1, 1]}).outcome == "true"


def test_a_task_that_is_counted_twice_in_part_or_never_is_found() -> None:
    for marks in ([2, 1], [0, 1], [0, 0]):
        verdict = check_once({(0, 1): [1, 1], (4, 2): marks})
        assert verdict.outcome == "false"
        assert "step 2 of lane 4" in verdict.reasons[0]


# -- tokens


def test_the_token_of_whoever_ended_the_task_is_right() -> None:
    lost = run("h0", 4, end="lost")
    assert check_tokens([lost, run()], {(2, 3): 5}, 1).outcome == "true"
    assert check_tokens([lost], {(2, 3): 4}, 1).outcome == "true"  # its tick was not answered


def test_a_late_write_of_an_older_token_is_found() -> None:
    lost = run("h0", 4, end="lost")
    for token in (4, 9):  # its own instead, or beside the one that counts
        assert check_tokens([lost, run()], {(2, 3): token}, 1).outcome == "false"


def test_two_holders_that_ended_one_task_are_found_but_for_a_rollback_between_them() -> None:
    other = run("h0", 4)
    assert check_tokens([other, run()], {(2, 3): 5}, 1).outcome == "false"
    before = dataclasses.replace(other, incarnation=1)
    assert check_tokens([before, run(incarnation=2)], {(2, 3): 5}, 2).outcome == "true"


# -- order


def test_a_task_that_does_not_see_a_predecessor_or_sees_itself_is_found() -> None:
    assert check_order([run()]).outcome == "true"
    assert "step 2 of lane 1" in check_order([run(missing=((1, 2),))]).reasons[0]
    assert "its own marks" in check_order([run(own=(0, 1))]).reasons[0]


def test_a_task_that_was_not_alone_is_found() -> None:
    assert check_alone([run(shared=[4, 4]), run(shared=[4])]).outcome == "true"
    assert check_alone([run(shared=[4, 5])]).outcome == "false"
    assert check_alone([run(shared=[4])]).outcome == "unknown"


def test_progress_that_is_ahead_of_a_shard_is_found() -> None:
    assert check_progress([Claim(10**9, 0, 3, 3), Claim(10**9, 0, 3, 4)]).outcome == "true"
    assert check_progress([Claim(10**9, 0, 3, 2)]).outcome == "false"


# -- the graph and its tasks


def test_predecessors_are_those_that_the_serial_order_has_done_before() -> None:
    graph = graph_of(6)
    done: set[tuple[int, int]] = set()
    for rank, step in graph.serial_order():
        assert set(predecessors(graph, graph.lane(rank), step)) <= done
        done.add((rank, step))
    assert done == set(tasks_of(graph))


def test_whatever_writes_a_row_comes_after_all_that_read_or_wrote_it() -> None:
    """So the end does not depend on the order in which tasks are done."""
    graph = graph_of(6)
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for task in graph.serial_order():
        direct = set(predecessors(graph, graph.lane(task[0]), task[1]))
        before[task] = direct.union(*(before[each] for each in direct))
    users: dict[int, list[tuple[tuple[int, int], bool]]] = {}
    for task in graph.serial_order():
        body = body_of(graph.lane(task[0]), task[1])
        for row in body.reads.tolist():
            users.setdefault(row, []).append((task, row in body.writes.tolist()))
    for of_row in users.values():
        for at, (later, later_writes) in enumerate(of_row):
            for earlier, writes in of_row[:at]:
                assert earlier in before[later] or not (writes or later_writes)


def test_what_a_task_pushes_is_split_by_its_token_and_is_the_same_in_all() -> None:
    graph = graph_of(3)
    for lane in graph.lanes:
        body = body_of(lane, 2)
        rows = np.linspace(0, 1, 2 * len(body.reads), dtype=np.float32).reshape(-1, 2)
        gradients = body.gradients(rows)
        shapes = set()
        for token in range(1, 8):
            pushes = body.pushes(gradients, token)
            shapes.add(len(pushes))
            of_weights = {
                key: value.tolist()
                for table, keys, values in pushes
                if TABLES[table].name == "weights"
                for key, value in zip(keys.tolist(), values, strict=True)
            }
            assert of_weights == dict(zip(body.writes.tolist(), gradients.tolist(), strict=True))
            marks = [keys for table, keys, _ in pushes if TABLES[table].name == "marks"]
            assert sorted(np.concatenate(marks)) == sorted(marks_of((lane.rank, 2)))
        assert len(shapes) > 1

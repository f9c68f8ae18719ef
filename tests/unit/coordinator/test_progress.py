"""Which tasks may be granted: always what the graph's edges say, found without looking at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_graphs import graphs, is_ready, rivals

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.least_first import SLACK, LeastFirst
from resilient_ps.coordinator.progress import LaneStage, Progress


def fresh_start(graph: Graph) -> Progress:
    return Progress(graph, [0] * graph.lanes_total)


def run(progress: Progress, *ranks: int) -> None:
    for rank in ranks:
        progress.take(rank)
        progress.finish(rank)


def check(progress: Progress, taken: set[int], lost: set[int]) -> None:
    """Compares with what a look at every lane and edge says."""
    graph, done = progress.graph, progress.done
    for rank in range(graph.lanes_total):
        ready = is_ready(graph, done, rank) and rank not in taken
        assert (progress.stage(rank) is LaneStage.READY) == ready
        assert progress.may_take(rank) == (ready and not rivals(graph, rank, taken | lost))
    for at, space in enumerate(progress.spaces):
        may = [(done[rank], rank) for rank in space.ranks if progress.may_take(rank)]
        assert progress.best(at) == (min(may)[1] if may else None)
    best = [progress.best(at) for at in range(len(progress.spaces))]
    steps = [(done[rank] + 1, rank) for rank in best if rank is not None]
    assert progress.open.first() == (min(steps) if steps else None)
    assert progress.finished == all(steps == graph.steps for steps in done)


@given(graphs(), st.randoms(use_true_random=False))
def test_whatever_happens_exactly_those_may_be_taken_whose_predecessors_are_done(
    graph: Graph, chance: random.Random
) -> None:
    progress = fresh_start(graph)
    taken: set[int] = set()
    lost: set[int] = set()
    for _ in range(3 * graph.tasks_total):
        check(progress, taken, lost)
        may = [rank for rank in range(graph.lanes_total) if progress.may_take(rank)]
        what = chance.choice(["take", "take", "finish", "finish", "lose", "give back", "anew"])
        if what == "take" and may:
            rank = chance.choice(may)
            progress.take(rank)
            taken.add(rank)
            lost.discard(rank)
        elif what == "finish" and (taken or lost):
            rank = chance.choice(sorted(taken | lost))
            progress.finish(rank)
            taken.discard(rank)
            lost.discard(rank)
        elif what == "lose" and taken:
            rank = chance.choice(sorted(taken))
            progress.lose(rank)
            taken.discard(rank)
            lost.add(rank)
        elif what == "give back" and (taken or lost):
            rank = chance.choice(sorted(taken | lost))
            progress.give_back(rank)
            taken.discard(rank)
            lost.discard(rank)
        elif what == "anew":
            progress = Progress(graph, progress.done, sorted(taken), sorted(lost))


@given(graphs(), st.randoms(use_true_random=False))
def test_a_graph_can_always_be_run_to_its_end(graph: Graph, chance: random.Random) -> None:
    progress = fresh_start(graph)
    for _ in range(graph.tasks_total):
        may = [rank for rank in range(graph.lanes_total) if progress.may_take(rank)]
        run(progress, chance.choice(may))
    assert progress.finished
    assert progress.open.first() is None
    assert progress.slowest(range(len(progress.spaces))) is None


def test_what_became_ready_and_what_is_exposed_is_noted() -> None:
    graph = Graph("g", 2)
    graph.add("a", 2)
    graph.add("b", 2)
    graph.after("b", "a")
    progress = fresh_start(graph)
    assert list(progress.fresh) == [0, 1]
    assert progress.news.first() == (1, 0)
    progress.fresh.clear()
    progress.news.discard((1, 0))
    assert progress.news.first() is None
    run(progress, 0)
    assert list(progress.fresh) == [0]
    assert progress.news.first() == (1, 1)
    progress.fresh.clear()
    run(progress, 1)
    assert list(progress.fresh) == [1, 2, 3]
    assert progress.news.first() == (1, 2)
    assert len(progress.news) == 2


def test_a_lost_task_occupies_its_group_until_it_is_done() -> None:
    graph = Graph("g", 2)
    graph.add("a")
    graph.add("b")
    graph.exclusive("a", "b")
    progress = fresh_start(graph)
    progress.take(0)
    assert not progress.may_take(1)
    progress.lose(0)
    assert (progress.best(0), progress.best(1)) == (0, None)
    assert progress.blocker(1) == 0
    progress.take(0)
    progress.finish(0)
    assert (progress.best(0), progress.best(1)) == (0, 1)


def test_a_lane_names_what_it_waits_for() -> None:
    graph = Graph("g", 3)
    graph.add("a", 3)
    graph.add("b")
    graph.after("b", "a")
    graph.after("a", "a", lag=1, shift=1)
    progress = fresh_start(graph)
    run(progress, 0, 2)
    assert progress.blocker(3) == 1
    assert progress.blocker(0) == 1
    assert progress.blocker(2) is None
    assert progress.slowest([0]) == 1
    assert progress.slowest([0, 1]) == 1
    assert progress.slowest([]) is None


def test_what_never_should_have_been_granted_is_not_taken_again() -> None:
    graph = Graph("g", 2)
    graph.add("a")
    graph.add("b")
    graph.after("b", "a")
    progress = Progress(graph, [0, 0], taken=[1, 0])
    assert progress.stage(0) is LaneStage.TAKEN
    assert progress.stage(1) is LaneStage.WAITING


def test_a_task_that_was_never_granted_cannot_be_finished() -> None:
    graph = Graph("g", 2)
    graph.add("a")
    graph.add("b")
    graph.after("b", "a")
    progress = fresh_start(graph)
    with pytest.raises(AssertionError, match="never granted"):
        progress.finish(1)
    with pytest.raises(AssertionError, match="may not be taken"):
        progress.take(1)


class CountedProgress(Progress):
    """Counts how often a lane is looked at."""

    looks = 0

    def _evaluate(self, rank: int, first_edge: int) -> None:
        self.looks += 1
        super()._evaluate(rank, first_edge)


def test_a_task_costs_looks_at_its_own_edges_not_at_all_lanes() -> None:
    graph = Graph("g", 5)
    graph.add("a", 1_000)
    graph.add("b", 1_000)
    graph.after("b", "a")
    graph.after("b", "b", lag=1)
    graph.after("a", "b", lag=1, shift=3)
    progress = CountedProgress(graph, [0] * graph.lanes_total)
    for rank, _ in graph.serial_order():
        run(progress, rank)
    assert progress.finished
    edges = 3 * 1_000
    assert progress.looks <= graph.tasks_total + edges * graph.steps + graph.lanes_total


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20))))
def test_the_least_member_is_first(changes: list[tuple[bool, int]]) -> None:
    least, members = LeastFirst[int](), set[int]()
    for add, key in changes:
        (least.add if add else least.discard)(key)
        (members.add if add else members.discard)(key)
        assert (len(least), least.first()) == (len(members), min(members, default=None))
        assert (key in least) == add


def test_members_that_were_removed_take_no_room_for_long() -> None:
    least = LeastFirst[int]()
    least.add(0)
    for key in range(1, 10_000):
        least.add(key)
        least.discard(key)
    assert len(least._heap) <= 2 + SLACK + 1

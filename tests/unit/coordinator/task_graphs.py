"""Graphs of tasks for tests: any that can be run, and what must be true of who runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from hypothesis import strategies as st

from resilient_ps.coordinator.graph import Graph


@st.composite
def graphs(draw: st.DrawFn, *, widths_to: int = 4, steps_to: int = 5) -> Graph:
    """Any graph that can be run: edges of lag 0 point back in one order."""
    names = draw(st.permutations([f"n{i}" for i in range(draw(st.integers(1, 5)))]))
    widths = {name: draw(st.integers(1, widths_to)) for name in names}
    graph = Graph("g", steps=draw(st.integers(1, steps_to)))
    for name in sorted(names):
        graph.add(name, widths[name])
    pairs = list(product(range(len(names)), repeat=2))
    for at, other in draw(st.lists(st.sampled_from(pairs), max_size=8, unique=True)):
        lag = draw(st.integers(1 if other >= at else 0, 3))
        even = widths[names[at]] == widths[names[other]]
        shift = draw(st.none() | st.integers(-5, 5)) if even else None
        graph.after(names[at], names[other], lag, shift)
    groups = st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=3, unique=True)
    for group in draw(st.lists(groups, max_size=2, unique_by=frozenset)):
        graph.exclusive(*group)
    return graph


def predecessors(graph: Graph, rank: int, step: int) -> list[tuple[int, int]]:
    """All tasks that a task comes after, as (rank, step)."""
    lane, spaces = graph.lane(rank), {space.name: space for space in graph.namespaces}
    found = [(rank, step - 1)]
    for edge in (edge for edge in graph.edges if edge.namespace == lane.namespace):
        other = spaces[edge.predecessor]
        ranks = list(other.ranks)
        if edge.shift is not None:
            ranks = [other.first + (lane.n + edge.shift) % other.width]
        found += [(before, step - edge.lag) for before in ranks]
    return [(before, at) for before, at in found if at >= 1]


def is_ready(graph: Graph, done: Sequence[int], rank: int) -> bool:
    """Is all done that the lane's next task comes after?"""
    step = done[rank] + 1
    before = predecessors(graph, rank, step)
    return step <= graph.steps and all(done[other] >= at for other, at in before)


def rivals(graph: Graph, rank: int, under_way: Mapping[int, object] | set[int]) -> list[int]:
    """Other lanes whose task is under way, in an exclusive group with this one."""
    own = graph.lane(rank).namespace
    groups = [group for group in graph.exclusives if own in group]
    others = [each for each in under_way if each != rank]
    return [each for each in others if any(graph.lane(each).namespace in g for g in groups)]

"""Pictures of graphs of tasks: nothing overlaps, arrows go forward, and text is escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from resilient_ps.cli.ns.drawing import edge_text, svg_of
from resilient_ps.cli.ns.layout import BOX_HEIGHT, BOX_WIDTH, layout_of
from resilient_ps.cli.ns.plotting import not_begun
from resilient_ps.cli.ns.watching import render
from resilient_ps.coordinator.graph import Edge, Graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Edges without lag lead from lower to higher numbers, so they have no cycle."""
    count = draw(st.integers(1, 9))
    graph = Graph("drawn", steps=draw(st.integers(1, 50)))
    for number in range(count):
        graph.add(f"n{number}", width=draw(st.integers(1, 3)))
    numbers = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers, st.integers(0, 3)), max_size=14, unique=True))
    for one, other, lag in pairs:
        if lag or one < other:
            graph.after(f"n{other}", f"n{one}", lag=lag)
    return graph


@settings(deadline=None)
@given(graphs())
def test_boxes_do_not_overlap_and_every_dependency_has_a_way(graph: Graph) -> None:
    layout = layout_of(graph)
    assert set(layout.boxes) == {space.name for space in graph.namespaces}
    for one, other in combinations(layout.boxes.values(), 2):
        beside = abs(one.x - other.x) >= BOX_WIDTH
        assert beside or abs(one.y - other.y) >= BOX_HEIGHT
    assert {route.edge for route in layout.routes} == set(graph.edges)
    assert len(layout.routes) == len(graph.edges)
    for route in layout.routes:
        source, target = (layout.boxes[n] for n in (route.edge.predecessor, route.edge.namespace))
        assert source.x <= route.points[0].x <= source.x + BOX_WIDTH
        assert source.y <= route.points[0].y <= source.y + BOX_HEIGHT
        assert target.x <= route.points[-1].x <= target.x + BOX_WIDTH
        assert target.y <= route.points[-1].y <= target.y + BOX_HEIGHT
        if route.edge.lag == 0:
            assert source.x < target.x
            assert not route.back
        assert all(point.y <= layout.height for point in route.points)
    ElementTree.fromstring(svg_of(graph, not_begun(graph)))


def test_what_is_said_beside_an_arrow() -> None:
    assert edge_text(Edge("b", "a")) == ""
    assert edge_text(Edge("b", "a", 2)) == "lag 2"
    assert edge_text(Edge("b", "a", 1, 3)) == "lag 1, lane n+3"
    assert edge_text(Edge("b", "a", 0, 0)) == "same lane"


@pytest.mark.parametrize("state", ["running", "done", "failed", "removed"])
def test_a_terminal_shows_every_namespace_and_the_failure(state: str) -> None:
    graph = Graph("shown", steps=3)
    graph.add("part/one", width=4)
    graph.add("part/two")
    report = replace(not_begun(graph), state=state, failure="", failed="part/two")
    if state == "failed":
        report = replace(report, failure="step 2 of part/two/0: <b>no</b> [red]luck[/red]")
    console = Console(width=100, force_terminal=True)
    with console.capture() as captured:
        console.print(render(report))
    text = captured.get()
    for told in ("shown", state, "part/one", "part/two", "0/12"):
        assert told in text
    assert ("[red]luck[/red]" in text) == (state == "failed")
    assert "<b>" not in svg_of(graph, report)

"""Graphs of tasks: what can be run, what cannot and why, as text and in files."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_graphs import graphs, predecessors

import resilient_ps as ps
from resilient_ps.coordinator.graph import (
    EDGES_MAX,
    JSON_BYTES_MAX,
    LANES_MAX,
    NAMESPACES_MAX,
    Graph,
    Lane,
    depth_first,
)
from resilient_ps.errors import BadInput, NotFound


def ctr() -> Graph:
    graph = Graph("ctr", steps=3)
    graph.add("features", width=2)
    graph.add("tower")
    graph.after("tower", "features")
    graph.after("features", "tower", lag=2)
    return graph


# -- what can be run


def test_lanes_are_ranks_in_the_order_of_declaration() -> None:
    graph = ctr()
    assert graph.lanes == (Lane(0, "features", 0), Lane(1, "features", 1), Lane(2, "tower", 0))
    assert [graph.lane(rank) for rank in range(3)] == list(graph.lanes)
    assert (graph.lanes_total, graph.tasks_total) == (3, 9)
    with pytest.raises(BadInput, match="has lanes 0 to 2, not 3"):
        graph.lane(3)


def test_the_serial_order_goes_step_by_step_and_along_the_edges() -> None:
    graph = Graph("g", steps=2)
    graph.add("late")
    graph.add("early", width=2)
    graph.after("late", "early")
    assert list(graph.serial_order()) == [(1, 1), (2, 1), (0, 1), (1, 2), (2, 2), (0, 2)]


def test_a_graph_may_be_added_to_after_it_was_checked() -> None:
    graph = ctr()
    graph.check()
    graph.add("more")
    assert graph.lanes_total == 4


@given(graphs())
def test_the_serial_order_has_each_task_once_and_after_all_that_it_waits_for(graph: Graph) -> None:
    done: set[tuple[int, int]] = set()
    for rank, step in graph.serial_order():
        assert (rank, step) not in done
        assert done.issuperset(predecessors(graph, rank, step))
        done.add((rank, step))
    assert len(done) == graph.tasks_total


@given(graphs())
def test_a_graph_is_the_same_after_it_was_text(graph: Graph) -> None:
    text = graph.to_json()
    again = Graph.from_json(text)
    assert again.to_json() == text
    assert again.lanes == graph.lanes
    assert (again.edges, again.exclusives) == (graph.edges, graph.exclusives)
    assert list(again.serial_order()) == list(graph.serial_order())


def test_graphs_that_say_the_same_have_the_same_text() -> None:
    one, other = Graph("g", 1), Graph("g", 1)
    for graph in (one, other):
        graph.add("a", 3)
        graph.add("b", 3)
    one.after("a", "b", lag=1)
    one.after("b", "a", shift=-1)
    one.exclusive("a", "b")
    other.after("b", "a", shift=2)
    other.after("a", "b", lag=1)
    other.exclusive("b", "a")
    assert one.to_json() == other.to_json()
    other.after("a", "b", lag=2)
    assert one.to_json() != other.to_json()


# -- what cannot


def test_a_cycle_is_shown() -> None:
    graph = Graph("g", 1)
    for name in ("a", "b", "c", "d"):
        graph.add(name)
    graph.after("a", "d")
    graph.after("a", "b")
    graph.after("b", "c")
    graph.after("c", "a")
    with pytest.raises(BadInput, match=r"a cycle: a -> b -> c -> a .*lag=1"):
        graph.check()


def test_a_namespace_may_wait_for_itself_in_an_earlier_step_only() -> None:
    graph = Graph("g", 1)
    graph.add("a", 2)
    graph.after("a", "a", lag=1, shift=1)
    graph.check()
    graph.after("a", "a", shift=1)
    with pytest.raises(BadInput, match="a cycle: a -> a "):
        graph.check()


@given(st.integers(1, 6), st.data())
def test_a_cycle_is_found_exactly_where_there_is_one(count: int, data: st.DataObject) -> None:
    nodes = [str(i) for i in range(count)]
    pairs = st.lists(st.sampled_from(list(product(nodes, nodes))), unique=True, max_size=12)
    edges = data.draw(pairs)
    before = {node: [other for at, other in edges if at == node] for node in nodes}
    order, cycle = depth_first(before)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(pair in edges for pair in pairwise(cycle))
    else:
        assert sorted(order) == nodes
        assert all(order.index(other) < order.index(at) for at, other in edges)


def test_a_long_chain_is_no_trouble() -> None:
    graph = Graph("g", 1)
    for number in range(NAMESPACES_MAX):
        graph.add(f"n{number}")
    for number in range(1, NAMESPACES_MAX):
        graph.after(f"n{number - 1}", f"n{number}")
    assert next(graph.serial_order()) == (NAMESPACES_MAX - 1, 1)


def test_an_unknown_namespace_is_named_with_those_that_there_are() -> None:
    graph = ctr()
    graph.after("tower", "feature")
    with pytest.raises(BadInput, match=r"'feature', which is no namespace.*features, tower"):
        graph.check()
    graph = ctr()
    graph.exclusive("tower", "user")
    with pytest.raises(BadInput, match=r"exclusive\(tower, user\) names 'user'"):
        graph.check()


def test_duplicates_are_refused() -> None:
    graph = ctr()
    with pytest.raises(BadInput, match="'tower' is added twice"):
        graph.add("tower")
    graph.after("tower", "features", lag=0)
    with pytest.raises(BadInput, match=r"after\('tower', 'features'\) is said twice"):
        graph.check()
    graph = ctr()
    graph.exclusive("tower", "features")
    graph.exclusive("features", "tower")
    with pytest.raises(BadInput, match="the same exclusive group is said twice"):
        graph.check()
    graph = ctr()
    graph.exclusive("tower", "tower")
    with pytest.raises(BadInput, match="names a namespace twice"):
        graph.check()


def test_single_lanes_can_be_joined_only_where_there_are_equally_many() -> None:
    graph = ctr()
    graph.after("tower", "features", lag=1, shift=0)
    with pytest.raises(BadInput, match=r"'tower' has 1 and 'features' has 2: make them equally"):
        graph.check()


def test_limits_are_named() -> None:
    with pytest.raises(BadInput, match="steps is 0, not a whole number from 1 to 1000000"):
        Graph("g", 0)
    with pytest.raises(BadInput, match="cannot name a graph"):
        Graph("a/b", 1)
    with pytest.raises(BadInput, match="it has no namespace"):
        Graph("g", 1).check()
    graph = Graph("g", 1)
    with pytest.raises(BadInput, match="cannot name a namespace"):
        graph.add("a//b")
    graph.add("a", LANES_MAX)
    graph.check()
    graph.add("b")
    with pytest.raises(BadInput, match=f"{LANES_MAX + 1} lanes in all; at most {LANES_MAX}"):
        graph.check()
    graph = Graph("g", 1)
    graph.add("a")
    for lag in range(1, EDGES_MAX + 2):
        graph.after("a", "a", lag)
    with pytest.raises(BadInput, match=f"{EDGES_MAX + 1} dependencies; at most {EDGES_MAX}"):
        graph.check()
    graph = Graph("g", 1)
    for number in range(NAMESPACES_MAX + 1):
        graph.add(f"{number}")
    with pytest.raises(BadInput, match=f"{NAMESPACES_MAX + 1} namespaces; at most"):
        graph.check()
    graph = Graph("g", 1)
    for number in range(NAMESPACES_MAX):
        graph.add(f"{'x' * 190}{number}")
        if number:
            graph.after(f"{'x' * 190}{number}", f"{'x' * 190}{number - 1}")
    with pytest.raises(BadInput, match=f"bytes as JSON; at most {JSON_BYTES_MAX}"):
        graph.check()


def test_values_of_other_types_are_refused_where_they_are_given() -> None:
    graph = ctr()
    with pytest.raises(BadInput, match=r"lag is 1\.5, not a whole number"):
        graph.after("tower", "features", lag=1.5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="the width of 'x' is True"):
        graph.add("x", width=True)
    with pytest.raises(BadInput, match="7 is no name of a namespace"):
        graph.exclusive(7)  # type: ignore[arg-type]


# -- files

TOML = """
name = "ctr"
steps = 20
exclusive = [["forward", "backward"]]
[namespaces.features]
width = 4
[namespaces.forward]
after = [{ namespace = "features", lag = 0 }, { namespace = "backward", lag = 1 }]
[namespaces.backward]
after = [{ namespace = "forward" }]
"""
YAML = """
name: ctr
steps: 20
exclusive: [[forward, backward]]
namespaces:
  features: {width: 4}
  forward:
    after: [{namespace: features, lag: 0}, {namespace: backward, lag: 1}]
  backward: {after: [{namespace: forward}]}
"""


def test_a_graph_can_be_read_from_toml_and_from_yaml(tmp_path: Path) -> None:
    graph = Graph("ctr", 20)
    graph.add("features", 4)
    graph.add("forward")
    graph.add("backward")
    graph.after("forward", "features")
    graph.after("forward", "backward", lag=1)
    graph.after("backward", "forward")
    graph.exclusive("forward", "backward")
    for name, text in (("g.toml", TOML), ("g.yaml", YAML), ("g.yml", YAML)):
        (tmp_path / name).write_text(text)
        assert ps.Graph.from_file(tmp_path / name).to_json() == graph.to_json()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("width = 4", "widht = 4", r"\[namespaces.features\] has no field 'widht'.*after, width"),
        ("width = 4", 'width = "4"', r"\[namespaces.features\]: .*'4', not a whole number"),
        ("steps = 20", "", r"steps is missing"),
        ("steps = 20", "steps = 20\nsteps = 21", r"is no TOML"),
        ("steps = 20", "steps = -1", r"steps is -1"),
        ('"features", lag', '"feature", lag', r"'feature', which is no namespace"),
        (
            '{ namespace = "forward" }',
            "{ lag = 0 }",
            r"\[namespaces.backward\] after: name the pre",
        ),
        ('[{ namespace = "forward" }]', '"forward"', r"\[namespaces.backward\] after is 'forward'"),
        ('"backward", lag = 1', '"backward"', r"a cycle: "),
        ('[["forward", "backward"]]', '["forward"]', r"exclusive is 'forward', not a list"),
    ],
)
def test_errors_name_the_file_the_table_and_the_remedy(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in TOML
    file = tmp_path / "g.toml"
    file.write_text(TOML.replace(old, new))
    with pytest.raises(BadInput, match=f"^{file}.*{told}"):
        Graph.from_file(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: ctr\nname: other", "no YAML: a name is given twice"),
        ("!!python/object/apply:os.system [true]", "no YAML: could not determine a constructor"),
        ("[1, 2]", r"the graph is \[1, 2\], not a table"),
        ("{name: g, steps: 1, namespaces: {yes: {}}}", "True is no text: put it in quotes"),
        ("{name: g, steps: 1, namespaces: {a: 3}}", r"\[namespaces.a\] is 3, not a table"),
        ("{a: [", "is no YAML"),
        ("", "the graph is None, not a table"),
    ],
)
def test_yaml_that_is_no_graph_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=f"^{file}.*{told}"):
        Graph.from_file(file)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        Graph.from_file(tmp_path / "g.toml")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        Graph.from_file(tmp_path)
    (tmp_path / "g.json").write_text("{}")
    with pytest.raises(BadInput, match=r"ends with .toml, .yaml or .yml"):
        Graph.from_file(tmp_path / "g.json")
    (tmp_path / "g.toml").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="is no TOML"):
        Graph.from_file(tmp_path / "g.toml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"name":"g","steps":1,"namespaces":{},"more":1}',
        '{"name":"g","steps":1,"namespaces":{"a":{},"a":{}}}',
        '{"name":"g","steps":NaN,"namespaces":{"a":{}}}',
        "[" * 100_000,
        json.dumps({"name": "g", "steps": 1, "namespaces": {"a": {"after": [{"namespace": []}]}}}),
        json.dumps({"name": 3, "steps": 1, "namespaces": {"a": {}}}),
        " " * (JSON_BYTES_MAX + 1),
    ],
)
def test_json_that_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Graph.from_json(text)

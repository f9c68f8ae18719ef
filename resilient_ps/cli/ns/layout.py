"""Where the namespaces and dependencies of a graph are drawn: columns from left to right.

Layers as in Sugiyama, Tagawa, Toda ("Methods for Visual Understanding of Hierarchical System
Structures", 1981), without its hard part: dependencies within a step have no cycle (a graph is
checked for that), so each namespace's column is one more than that of what it waits for. Within a
column the order is that of the mean place of neighbours, swept to and fro. Dependencies on earlier
steps may lead back: they run in tracks below everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from resilient_ps.coordinator.graph import Edge, Graph

BOX_WIDTH, BOX_HEIGHT = 210, 74
GAP_X, GAP_Y = 110, 48
LOOP_HEIGHT = 46  # of an edge from a namespace to itself, with what is said of it
BEND_HEIGHT = 20
TRACK = 22
SWEEPS = 8


class Point(NamedTuple):
    """Pixels from the upper left corner."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Route:
    """An edge's way: `points` from the predecessor to who waits. `back`: through a track below."""

    edge: Edge
    points: tuple[Point, ...]
    back: bool


@dataclass(slots=True)
class Layout:
    """`boxes`: by namespace, the upper left corner. All of it is `width` x `height`."""

    boxes: dict[str, Point] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    width: float = 0
    height: float = 0


class _Cell(NamedTuple):
    """What takes room in a column: a namespace, or the bend of an edge that passes through."""

    name: str
    edge: Edge | None = None


def layout_of(graph: Graph) -> Layout:
    """Of all namespaces and edges; nothing lies above or left of (0, 0)."""
    columns = _columns(graph)
    forward = [e for e in graph.edges if columns[e.predecessor] < columns[e.namespace]]
    cells, ways = _cells(graph, columns, forward)
    _order(cells, ways)
    layout, places = Layout(), _placed(cells)
    layout.boxes = {cell.name: at for cell, at in places.items() if cell.edge is None}
    layout.width = len(cells) * (BOX_WIDTH + GAP_X) - GAP_X
    layout.height = max(at.y + _height(cell) for cell, at in places.items())
    for edge in forward:
        points = [place for cell in ways[edge] for place in _ends(cell, places[cell], edge)]
        layout.routes.append(Route(edge, tuple(points), back=False))
    loops = [edge for edge in graph.edges if edge.namespace == edge.predecessor]
    layout.routes += [Route(edge, _loop(layout.boxes[edge.namespace]), back=True) for edge in loops]
    layout.height += LOOP_HEIGHT if loops else 0
    back = [edge for edge in graph.edges if edge not in {*forward, *loops}]
    for number, edge in enumerate(back):
        layout.routes.append(Route(edge, _back(layout, edge, number), back=True))
    layout.height += TRACK * (len(back) + 1) if back else 0
    return layout


def _columns(graph: Graph) -> dict[str, int]:
    """By namespace: the longest way there, over dependencies within a step."""
    before: dict[str, list[str]] = {space.name: [] for space in graph.namespaces}
    for edge in graph.edges:
        if edge.lag == 0:
            before[edge.namespace].append(edge.predecessor)
    columns: dict[str, int] = {}
    left = list(before)
    while left:  # as many rounds as there are columns
        ready = [name for name in left if all(each in columns for each in before[name])]
        for name in ready:
            columns[name] = max((columns[each] + 1 for each in before[name]), default=0)
        left = [name for name in left if name not in columns]
    return columns


def _cells(
    graph: Graph, columns: Mapping[str, int], forward: Sequence[Edge]
) -> tuple[list[list[_Cell]], dict[Edge, list[_Cell]]]:
    """By column, from top to bottom; and each edge's way through them."""
    cells: list[list[_Cell]] = [[] for _ in range(max(columns.values()) + 1)]
    for space in graph.namespaces:
        cells[columns[space.name]].append(_Cell(space.name))
    ways: dict[Edge, list[_Cell]] = {}
    for edge in forward:
        between = range(columns[edge.predecessor] + 1, columns[edge.namespace])
        bends = [_Cell(f"{column}", edge) for column in between]
        for column, bend in zip(between, bends, strict=True):
            cells[column].append(bend)
        ways[edge] = [_Cell(edge.predecessor), *bends, _Cell(edge.namespace)]
    return cells, ways


def _order(cells: list[list[_Cell]], ways: Mapping[Edge, list[_Cell]]) -> None:
    """Bring neighbours to about the same height, so that few edges cross."""
    left: dict[_Cell, list[_Cell]] = {}
    right: dict[_Cell, list[_Cell]] = {}
    for way in ways.values():
        for one, other in pairwise(way):
            right.setdefault(one, []).append(other)
            left.setdefault(other, []).append(one)
    for sweep in range(SWEEPS):
        there = sweep % 2 == 0
        towards = left if there else right
        for column in cells[1:] if there else cells[-2::-1]:
            at = {cell: n for each in cells for n, cell in enumerate(each)}
            own = {cell: _mean([at[n] for n in towards.get(cell, [cell])]) for cell in column}
            column.sort(key=lambda cell, own=own, at=at: (own[cell], at[cell]))  # type: ignore[misc]


def _mean(places: Sequence[int]) -> float:
    return sum(places) / len(places)


def _placed(cells: Sequence[Sequence[_Cell]]) -> dict[_Cell, Point]:
    """Columns stand beside each other, each in the middle of the height."""
    heights = [sum(_height(cell) + GAP_Y for cell in column) - GAP_Y for column in cells]
    places: dict[_Cell, Point] = {}
    for number, column in enumerate(cells):
        y = (max(heights) - heights[number]) / 2
        for cell in column:
            places[cell] = Point(number * (BOX_WIDTH + GAP_X), y)
            y += _height(cell) + GAP_Y
    return places


def _height(cell: _Cell) -> int:
    return BOX_HEIGHT if cell.edge is None else BEND_HEIGHT


def _ends(cell: _Cell, at: Point, edge: Edge) -> list[Point]:
    """Where an edge meets a box, or passes through a column."""
    middle = at.y + _height(cell) / 2
    if cell.edge is not None:
        return [Point(at.x, middle), Point(at.x + BOX_WIDTH, middle)]
    return [Point(at.x + (BOX_WIDTH if cell.name == edge.predecessor else 0), middle)]


def _loop(box: Point) -> tuple[Point, Point]:
    """Round below the box, from right to left."""
    y = box.y + BOX_HEIGHT
    return Point(box.x + BOX_WIDTH * 0.62, y), Point(box.x + BOX_WIDTH * 0.38, y)


def _back(layout: Layout, edge: Edge, number: int) -> tuple[Point, ...]:
    """Out to the right, down to a track of its own, and up from the left."""
    source, target = layout.boxes[edge.predecessor], layout.boxes[edge.namespace]
    aside = 14 + 7 * (number % 5)
    down = layout.height + TRACK * (number + 1)
    out = Point(source.x + BOX_WIDTH, source.y + BOX_HEIGHT * 0.75)
    into = Point(target.x, target.y + BOX_HEIGHT * 0.75)
    return (
        out,
        Point(out.x + aside, out.y),
        Point(out.x + aside, down),
        Point(into.x - aside, down),
        Point(into.x - aside, into.y),
        into,
    )

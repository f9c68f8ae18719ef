"""A graph of tasks as an SVG: namespaces with their progress, and what waits for what.

One file that needs nothing else, readable on light and dark ground: colours are chosen by the
style sheet of whoever looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from resilient_ps.cli.ns.layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    GAP_X,
    Layout,
    Point,
    Route,
    layout_of,
)
from resilient_ps.client.graph_report import GraphReport, NamespaceProgress
from resilient_ps.coordinator.graph import Edge, Graph

MARGIN = 64
HEAD_HEIGHT = 64
LEGEND_LINE = 22
LEAST_WIDTH = 560
NAME_CHARS = 24
CORNER = 9
STYLE = """
    svg { color-scheme: light dark; font: 13px system-ui, "Segoe UI", sans-serif; }
    .ground { fill: #ffffff } .box { fill: #f5f7fa; stroke: #8a94a6 } .text { fill: #1b2330 }
    .dim { fill: #5a6475; font-size: 11px } .rail { fill: #dde2ea } .bar { fill: #2f6fde }
    .full { fill: #1f9254 } .bad { fill: #c8323a } .badbox { stroke: #c8323a; stroke-width: 2 }
    .way { fill: none; stroke: #6b7688; stroke-width: 1.5 } .back { stroke-dasharray: 5 4 }
    .head { fill: #6b7688 } .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
    .badge { fill: #7a4fd0 } .onbadge { fill: #ffffff; font-size: 10px; font-weight: 600 }
    .title { font-size: 18px; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
        .ground { fill: #14181f } .box { fill: #1f2630; stroke: #6b7688 } .text { fill: #e6eaf0 }
        .dim { fill: #a4afbf } .rail { fill: #36404e } .bar { fill: #5b93f5 }
        .full { fill: #3cba78 } .bad { fill: #f0666d } .badbox { stroke: #f0666d }
        .way { stroke: #93a0b4 } .head { fill: #93a0b4 } .halo { stroke: #14181f }
        .badge { fill: #9d7be8 } .onbadge { fill: #14181f }
    }
"""


def svg_of(graph: Graph, report: GraphReport) -> str:
    """The picture. `report`: how far the graph is."""
    layout = layout_of(graph)
    groups = graph.exclusives
    legend = _legend(graph)
    width = max(LEAST_WIDTH, layout.width + 2 * MARGIN)
    foot = HEAD_HEIGHT + MARGIN / 2 + layout.height + MARGIN / 2
    height = foot + LEGEND_LINE * len(legend) + MARGIN / 2
    left = (width - layout.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(_summary(report))}</title>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="ground" width="{width:g}" height="{height:g}"/>',
        *_heading(report),
        f'<g transform="translate({left:g} {HEAD_HEIGHT + MARGIN / 2:g})">',
        *[_way(route) for route in layout.routes],
        *_boxes(layout, report, groups),
        *[label for route in layout.routes for label in _label(route)],
        "</g>",
        *_legend_lines(legend, foot),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _summary(report: GraphReport) -> str:
    share = 100 * report.done // report.tasks
    return (
        f"graph {report.graph}: {report.state}, {report.done} of {report.tasks} tasks ({share} %)"
    )


def _heading(report: GraphReport) -> Iterator[str]:
    yield _text(Point(MARGIN / 2, 34), report.graph, "text title")
    share = 100 * report.done // report.tasks
    told = (
        f"{report.state}, {report.done:,} of {report.tasks:,} tasks ({share} %), "
        f"{report.steps:,} steps, {report.holders} holders"
    )
    yield _text(Point(MARGIN / 2, 54), told, "bad" if report.state == "failed" else "dim")


# -- namespaces


def _boxes(layout: Layout, report: GraphReport, groups: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for space in report.namespaces:
        failed = report.state == "failed" and report.failed == space.namespace
        yield from _box(layout.boxes[space.namespace], space, report.steps, failed=failed)
        mine = [n for n, group in enumerate(groups, start=1) if space.namespace in group]
        for place, number in enumerate(mine):
            at = layout.boxes[space.namespace]
            yield from _badge(Point(at.x + BOX_WIDTH - 8 - 20 * place, at.y), number)


def _box(at: Point, space: NamespaceProgress, steps: int, *, failed: bool) -> Iterator[str]:
    kind = "box badbox" if failed else "box"
    yield (
        f'<rect class="{kind}" x="{at.x:g}" y="{at.y:g}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="8"><title>{escape(space.namespace)}</title></rect>'
    )
    yield _text(Point(at.x + 12, at.y + 22), _short(space.namespace), "text")
    lanes = "1 lane" if space.lanes == 1 else f"{space.lanes:,} lanes"
    at_step = f"{space.least}" if space.least == space.most else f"{space.least}-{space.most}"
    held = f", {space.held} held" if space.held else ""
    yield _text(Point(at.x + 12, at.y + 40), f"{lanes}, step {at_step}/{steps}{held}", "dim")
    room = BOX_WIDTH - 24
    yield _rect(Point(at.x + 12, at.y + 52), room, "rail")
    done = room * space.done / space.tasks
    if done:
        colour = "bad" if failed else "full" if space.done == space.tasks else "bar"
        yield _rect(Point(at.x + 12, at.y + 52), done, colour)


def _short(name: str) -> str:
    """The end of a long name tells more than its beginning."""
    return name if len(name) <= NAME_CHARS else f"…{name[-(NAME_CHARS - 1) :]}"


def _badge(at: Point, number: int) -> Iterator[str]:
    yield f'<circle class="badge" cx="{at.x:g}" cy="{at.y:g}" r="9"/>'
    yield _text(Point(at.x, at.y + 3.5), str(number), "onbadge", anchor="middle")


# -- dependencies


def _way(route: Route) -> str:
    kind = "way back" if route.back or route.edge.lag else "way"
    return f'<path class="{kind}" marker-end="url(#arrow)" d="{_path(route)}"/>'


def _path(route: Route) -> str:
    first, *rest = route.points
    if route.edge.namespace == route.edge.predecessor:  # a loop below the box
        end, deep = rest[0], first.y + 30
        return (
            f"M{first.x:g} {first.y:g}C{first.x:g} {deep:g} {end.x:g} {deep:g} "
            f"{end.x:g} {end.y + 2:g}"
        )
    if not route.back:
        return f"M{first.x:g} {first.y:g}" + "".join(_curves(first, rest))
    return f"M{first.x:g} {first.y:g}" + "".join(_corners(route.points))


def _curves(first: Point, rest: Sequence[Point]) -> Iterator[str]:
    """From box to box, leaving and arriving horizontally."""
    before = first
    for point in rest:
        bend = (point.x - before.x) / 2
        yield f"C{before.x + bend:g} {before.y:g} {point.x - bend:g} {point.y:g} "
        yield f"{point.x:g} {point.y:g}"
        before = point


def _corners(points: Sequence[Point]) -> Iterator[str]:
    """Straight lines with round corners."""
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before), _towards(corner, after)
        yield f"L{start.x:g} {start.y:g}Q{corner.x:g} {corner.y:g} {end.x:g} {end.y:g}"
    yield f"L{points[-1].x:g} {points[-1].y:g}"


def _towards(corner: Point, other: Point) -> Point:
    dx, dy = other.x - corner.x, other.y - corner.y
    length = abs(dx) + abs(dy)  # one of them is 0
    share = min(CORNER, length / 2) / length if length else 0
    return Point(corner.x + dx * share, corner.y + dy * share)


def _label(route: Route) -> Iterator[str]:
    told = edge_text(route.edge)
    if not told:
        return
    points = route.points
    if route.edge.namespace == route.edge.predecessor:
        at = Point((points[0].x + points[1].x) / 2, points[0].y + 38)
    elif route.back:
        at = Point((points[2].x + points[3].x) / 2, points[2].y + 4)
    else:
        before, after = points[0], points[1]
        at = Point(before.x + GAP_X / 2, (before.y + after.y) / 2 - 5)
    yield _text(at, told, "dim halo", anchor="middle")


def edge_text(edge: Edge) -> str:
    """What is said of a dependency beside its arrow: nothing of a plain one."""
    parts = []
    if edge.lag:
        parts.append(f"lag {edge.lag}")
    if edge.shift is not None:
        parts.append(f"lane n+{edge.shift}" if edge.shift else "same lane")
    return ", ".join(parts)


# -- the legend


def _legend(graph: Graph) -> list[tuple[int, str]]:
    """With the number of its badge, or 0."""
    found = [
        (number, f"at most one task at a time: {', '.join(group)}")
        for number, group in enumerate(graph.exclusives, start=1)
    ]
    if any(edge.lag for edge in graph.edges):
        found.append((0, "dashed: after an earlier step, lag steps back"))
    return found


def _legend_lines(legend: Sequence[tuple[int, str]], top: float) -> Iterator[str]:
    for line, (number, told) in enumerate(legend):
        y = top + LEGEND_LINE * line
        if number:
            yield from _badge(Point(MARGIN / 2 + 9, y - 4), number)
        yield _text(Point(MARGIN / 2 + (26 if number else 0), y), told, "dim")


def _text(at: Point, told: str, kind: str, *, anchor: str = "start") -> str:
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{at.x:g}" y="{at.y:g}"{end}>{escape(told)}</text>'


def _rect(at: Point, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{at.x:g}" y="{at.y:g}" width="{width:g}" height="8" rx="4"/>'

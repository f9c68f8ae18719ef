"""`resilient-ps ns plot`: a graph of tasks as a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from resilient_ps.cli.ns.arguments import opened
from resilient_ps.cli.ns.drawing import svg_of
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.client.graph_report import (
    GraphReport,
    NamespaceProgress,
    graph_of,
    graph_report,
)
from resilient_ps.coordinator.graph import Graph
from resilient_ps.errors import BadInput


@on_cluster(deadline_s=10.0)
def plot(
    *,
    where: Where,
    name: Annotated[
        str, typer.Argument(metavar="GRAPH", help="Name of the graph of tasks, or a file.")
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="The file to write; - for standard output.")
    ] = "-",
    json: JsonOption = False,
) -> None:
    """Draw a graph of tasks as SVG: namespaces with their progress, and what waits for what.

    GRAPH is the name of one in the cluster, or a .toml, .yaml or .yml file that describes one; then
    no cluster is needed. With --json the file's name is told on standard output.

    \b
    Examples:
        resilient-ps ns plot nightly --cluster ctr --out nightly.svg
        resilient-ps ns plot graph.toml > graph.svg
    """
    if json and out == "-":
        raise BadInput("--json: the picture goes to standard output already; give --out FILE")
    picture = svg_of(*_graph(where, name))
    if out == "-":
        sys.stdout.write(picture)
        return
    Path(out).write_text(picture)
    if json:
        print_json({"graph": name, "file": out, "bytes": len(picture.encode())})
    else:
        print(f"graph {name} is drawn in {out}")


def _graph(where: Where, name: str) -> tuple[Graph, GraphReport]:
    if Path(name).suffix in (".toml", ".yaml", ".yml"):
        graph = Graph.from_file(name)
        return graph, not_begun(graph)
    with opened(where) as (kv, keys):
        result = kv.read(keys.prefix, prefix=True, deadline_s=where.deadline_s)
        items = {item.key: item for item in result.items}
        return graph_of(keys, items, name), graph_report(keys, items, name)


def not_begun(graph: Graph) -> GraphReport:
    """Of a graph that nobody works on."""
    spaces = tuple(
        NamespaceProgress(space.name, space.width, 0, space.width * graph.steps, 0, 0, 0)
        for space in graph.namespaces
    )
    return GraphReport(graph.name, "not begun", graph.steps, 0, graph.tasks_total, 0, spaces)

"""`resilient-ps ns tree` and `resilient-ps ns show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text
from rich.tree import Tree

from resilient_ps.cli.ns.arguments import NamespaceArgument, opened
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.cli.output import grid, results, size_text
from resilient_ps.client.namespace_report import (
    NamespaceReport,
    access,
    namespace_report,
    namespace_reports,
)
from resilient_ps.storage.names import checkpoints_prefix


@on_cluster(deadline_s=5.0)
def tree(
    *,
    where: Where,
    json: JsonOption = False,
) -> None:
    """Show all namespaces: what they hold, their quotas, and how far graphs of tasks are.

    A namespace is there when a table lies in it (ctr/emb/user lies in ctr/emb), when it has a
    quota, or when a graph of tasks has it. Rows and bytes include what lies in inner ones.

    \b
    Examples:
        resilient-ps ns tree --cluster ctr
        resilient-ps ns tree --json | jq '.namespaces[] | {namespace, rows, rows_max}'
    """
    with opened(where) as (kv, _):
        reports = namespace_reports(kv, where.cluster, deadline_s=where.deadline_s)
    if json:
        print_json({"namespaces": [asdict(report) for report in reports]})
        return
    if not reports:
        print("there are no namespaces: tables are in one when their name has a /")
        return
    results().print(_tree(where.cluster, reports))


@on_cluster(deadline_s=5.0)
def show(
    *,
    where: Where,
    path: NamespaceArgument,
    json: JsonOption = False,
) -> None:
    """Show a namespace: its tables, use and quota, its graphs, and what may be granted on it.

    The prefix of etcd keys is what a role needs to create and remove tables in the namespace, and
    nowhere else; the quota's key lies outside of it. See the documentation on access.

    \b
    Examples:
        resilient-ps ns show ctr/emb --cluster ctr
        resilient-ps ns show ctr/emb --json | jq -r .etcd_prefix
    """
    with opened(where) as (kv, keys):
        reports = namespace_reports(kv, where.cluster, deadline_s=where.deadline_s)
        report, inner = namespace_report(reports, path)
        granted = access(keys, path)
    if json:
        print_json({**asdict(report), "inner": [each.namespace for each in inner], **granted})
        return
    _print(report, inner, granted, checkpoints_prefix(where.cluster))


def _tree(cluster: str, reports: Sequence[NamespaceReport]) -> Tree:
    root = Tree(Text(f"cluster {cluster}", style="bold"))
    branches: dict[str, Tree] = {}
    for report in reports:
        outer, _, name = report.namespace.rpartition("/")
        branch = branches.get(outer, root).add(_line(name, report))
        branches[report.namespace] = branch
        for table in report.tables:
            leaf = table.table.rpartition("/")[2]
            text = f"{leaf}  {table.kind}, {table.rows:,} rows, {size_text(table.counted[1])}"
            branch.add(Text(text, style="dim"))
    return root


def _line(name: str, report: NamespaceReport) -> Text:
    text = Text.assemble((f"{name}/", "bold"), f"  {_use(report)}")
    if not report.in_force:
        text.append("  (quota not in force yet)", style="yellow")
    for graph in report.graphs:
        style = "red" if graph.state == "failed" else "cyan"
        text.append(f"  {graph.graph}: {_progress(graph.done, graph.tasks)}, {graph.state}", style)
    return text


def _use(report: NamespaceReport) -> str:
    rows = f"{report.rows:,}"
    rows += " rows" if report.rows_max is None else f" of {report.rows_max:,} rows"
    size = size_text(report.bytes)
    size += "" if report.bytes_max is None else f" of {size_text(report.bytes_max)}"
    return f"{rows}, {size}"


def _progress(done: int, tasks: int) -> str:
    return f"{done:,}/{tasks:,} tasks ({100 * done // max(1, tasks)} %)"


def _print(
    report: NamespaceReport,
    inner: Sequence[NamespaceReport],
    granted: Mapping[str, str | None],
    stored: str,
) -> None:
    in_force = "yes" if report.in_force else "not yet: is a coordinator running?"
    rows: list[tuple[str, Any]] = [
        ("rows", _bounded(f"{report.rows:,}", report.rows_max, lambda most: f"{most:,}")),
        ("bytes", _bounded(size_text(report.bytes), report.bytes_max, size_text)),
        ("quota in force", in_force if _has_quota(report) else "there is none"),
        ("inner namespaces", ", ".join(each.namespace for each in inner) or "-"),
        ("etcd prefix for a role", granted["etcd_prefix"]),
        ("etcd key of the quota", granted["quota_key"]),
        ("prefix in a store", f"none of its own: all namespaces are in {stored}"),
    ]
    out = results()
    out.print(grid(f"namespace {report.namespace}", ["", ""], rows))
    if report.tables:
        tables = [
            (t.table, t.kind, f"{t.rows:,}", size_text(t.counted[1]), t.writer)
            for t in report.tables
        ]
        columns = ["table", "kind", "rows", "counted", "written by"]
        out.print(grid("tables", columns, tables, right="rows,counted"))
    if report.graphs:
        graphs = [(g.graph, g.state, g.lanes, _progress(g.done, g.tasks)) for g in report.graphs]
        out.print(grid("graphs", ["graph", "state", "lanes", "done"], graphs, right="lanes"))


def _has_quota(report: NamespaceReport) -> bool:
    return report.rows_max is not None or report.bytes_max is not None


def _bounded(used: str, most: int | None, told: Any) -> str:
    return used if most is None else f"{used} of {told(most)}"

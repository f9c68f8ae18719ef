"""`resilient-ps ns watch`: a graph of tasks, live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.ns.arguments import GraphArgument, opened
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.cli.output import remark, results
from resilient_ps.client.graph_report import GraphReport, NamespaceProgress, watched

BAR_COLUMNS = 24
COLOURS = {"running": "cyan", "done": "green", "failed": "red", "removed": "yellow"}


@on_cluster(deadline_s=10.0)
def watch(
    *,
    where: Where,
    name: GraphArgument,
    json: JsonOption = False,
) -> None:
    """Watch how far a graph of tasks is, until it is done, has failed, or was removed.

    etcd tells of every change, so nothing is missed and nothing is asked again and again. With
    --json one object in a line for each change, on a pipe one line of text. Ends with exit code 0
    when the graph is done, and 1 when it has failed or was removed. Ctrl-C ends watching alone.

    \b
    Examples:
        resilient-ps ns watch nightly --cluster ctr
        resilient-ps ns watch nightly --json | jq -c '{done, tasks, state}'
    """
    with (
        opened(where) as (kv, keys),
        watched(kv, keys, name, where.deadline_s) as reports,
    ):
        try:
            last = _show(reports, json=json)
        except KeyboardInterrupt:
            return  # that is how it ends
    if last.failure and not json:
        remark(f"failed: {last.failure}. `resilient-ps ns retry {name}` lets it go on")
    if last.state != "done":
        raise typer.Exit(EXIT_NEGATIVE)


def _show(reports: Iterator[GraphReport], *, json: bool) -> GraphReport:
    """Gives the last one."""
    report = next(reports)
    out = results()
    if json or not out.is_terminal:
        _say(report, json=json)
        for report in reports:
            _say(report, json=json)
        return report
    with Live(render(report), console=out, auto_refresh=True) as live:
        for report in reports:
            live.update(render(report))
    return report


def _say(report: GraphReport, *, json: bool) -> None:
    if json:
        print_json(asdict(report))
        return
    slowest = min(report.namespaces, key=lambda space: space.least)
    print(
        f"{report.graph}: {report.state}, {report.done} of {report.tasks} tasks, "
        f"{report.holders} holders; slowest {slowest.namespace} at step {slowest.least} of "
        f"{report.steps}",
        flush=True,
    )


def render(report: GraphReport) -> RenderableType:
    """For a terminal."""
    share = 100 * report.done / report.tasks
    head = Text.assemble(
        ("graph ", "dim"),
        (report.graph, "bold"),
        ": ",
        (report.state, COLOURS.get(report.state, "")),
        f", {report.done:,} of {report.tasks:,} tasks ({share:.1f} %), {report.holders} holders",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("namespace", overflow="fold")
    table.add_column("lanes", justify="right")
    table.add_column("", width=BAR_COLUMNS)
    table.add_column("tasks", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("held", justify="right")
    for space in report.namespaces:
        table.add_row(*_row(space, report))
    failure = [Text(report.failure, style="red")] if report.failure else []
    return Group(head, table, *failure)


def _row(space: NamespaceProgress, report: GraphReport) -> list[RenderableType]:
    steps = f"{space.least}" if space.least == space.most else f"{space.least}-{space.most}"
    failed = report.state == "failed" and space.namespace == report.failed
    return [
        Text(space.namespace, style="red" if failed else ""),
        Text(str(space.lanes)),
        ProgressBar(total=space.tasks, completed=space.done, width=BAR_COLUMNS),
        Text(f"{space.done:,}/{space.tasks:,}"),
        Text(f"{steps}/{report.steps}"),
        Text(str(space.held) if space.held else "-"),
    ]

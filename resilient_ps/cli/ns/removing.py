"""`resilient-ps ns rm`: a namespace with everything in it."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_ps.cli.ns.arguments import NamespaceArgument, opened
from resilient_ps.cli.options import JsonOption, Where, YesOption, on_cluster, print_json
from resilient_ps.cli.output import confirm
from resilient_ps.client.connection import connect
from resilient_ps.client.graph_report import graphs_in, mark_removed
from resilient_ps.client.namespace_report import (
    NamespaceReport,
    namespace_report,
    namespace_reports,
)


@on_cluster(deadline_s=30.0)
def rm(
    *,
    where: Where,
    path: NamespaceArgument,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove a namespace: its tables, inner namespaces, and quotas. There is no way back.

    Graphs of tasks that have it, or an inner one, are marked as removed: who waits for their tasks
    is told. Interrupted, it can be called again. A program that is still running may create tables
    in the namespace again.

    \b
    Examples:
        resilient-ps ns rm ctr/emb --cluster ctr
        resilient-ps ns rm old --yes
    """
    with opened(where) as (kv, keys):
        reports = namespace_reports(kv, where.cluster, deadline_s=where.deadline_s)
        report, inner = namespace_report(reports, path)
        items = {i.key: i for i in kv.read(keys.prefix, prefix=True).items}
        graphs = graphs_in(keys, items, path)
        confirm(_question(report, inner, graphs), yes=yes)
        stopped = [name for name in graphs if mark_removed(kv, keys, name, where.deadline_s)]
    with connect(where.etcd, where.cluster, deadline_s=where.deadline_s) as client:
        tables = client.remove_namespace(path)
    if json:
        print_json({"removed": path, "tables": tables, "graphs": stopped})
        return
    stopped_text = f"; graphs stopped: {', '.join(stopped)}" if stopped else ""
    print(f"removed namespace {path} with {len(tables)} tables{stopped_text}")


def _question(
    report: NamespaceReport, inner: Sequence[NamespaceReport], graphs: Sequence[str]
) -> str:
    tables = sum(len(each.tables) for each in [report, *inner])
    text = f"remove namespace {report.namespace!r} with {tables} tables ({report.rows:,} rows)"
    if inner:
        text += f" and {len(inner)} inner namespaces"
    if graphs:
        text += f", and stop graphs {', '.join(graphs)}"
    return f"{text}?"

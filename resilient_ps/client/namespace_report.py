"""What lies in the namespaces of a cluster, as plain values: for `resilient-ps ns tree|show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilient_ps.client.graph_report import GraphReport, graph_names, graph_report
from resilient_ps.client.inspect import no_such_cluster
from resilient_ps.client.report import TableReport, inspect_cluster
from resilient_ps.coordinator.keys import ClusterKeys, check_namespace
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import NotFound
from resilient_ps.namespaces import covers, enclosing


@dataclass(frozen=True, slots=True)
class GraphShare:
    """A graph of tasks of which the namespace is a part: `done` of its `tasks` tasks."""

    graph: str
    state: str
    lanes: int
    done: int
    tasks: int


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    """`rows` and `bytes` are those that count for quotas, of all tables in it and below it.

    `tables`: those that lie in it, and in no inner one. `in_force`: do all shards know the quota?
    `told`: shards that told of the tables. `registered`: has it a record in etcd?
    """

    namespace: str
    rows: int
    bytes: int
    rows_max: int | None
    bytes_max: int | None
    in_force: bool
    registered: bool
    tables: tuple[TableReport, ...]
    graphs: tuple[GraphShare, ...]


def namespace_reports(kv: Kv, cluster: str, *, deadline_s: float) -> tuple[NamespaceReport, ...]:
    """All of them, by name: those that are registered, that tables lie in, or that graphs have.

    Raises `NotFound` when there is no such cluster, `Unavailable` when etcd does not answer.
    """
    keys = ClusterKeys(cluster)
    result = kv.read(keys.prefix, prefix=True, deadline_s=deadline_s)
    view = ClusterView(keys)
    view.load(result.items, result.revision)
    if view.config is None:
        raise no_such_cluster(kv, keys)
    tables = inspect_cluster(kv, cluster, deadline_s=deadline_s).tables
    items = {item.key: item for item in result.items}
    graphs = [graph_report(keys, items, name) for name in graph_names(keys, items)]
    paths = {*view.namespaces}
    paths.update(path for table in tables for path in enclosing(table.table))
    for graph in graphs:
        paths.update(each.namespace for each in graph.namespaces)
    paths.update(outer for path in list(paths) for outer in enclosing(path))
    return tuple(_report(view, path, tables, graphs) for path in sorted(paths, key=_in_order))


def namespace_report(
    reports: Sequence[NamespaceReport], path: str
) -> tuple[NamespaceReport, tuple[NamespaceReport, ...]]:
    """One of them, and those that lie in it. Raises `NotFound`."""
    check_namespace(path)
    by_name = {report.namespace: report for report in reports}
    if path not in by_name:
        names = ", ".join(by_name) or "-"
        raise NotFound(f"there is no namespace {path!r}; namespaces: {names}")
    return by_name[path], tuple(each for name, each in by_name.items() if covers(path, name))


def _in_order(path: str) -> list[str]:
    """So that what lies in a namespace follows it."""
    return path.split("/")


def _report(
    view: ClusterView, path: str, tables: Sequence[TableReport], graphs: Sequence[GraphReport]
) -> NamespaceReport:
    record = view.namespaces.get(path)
    below = [table for table in tables if covers(path, table.table)]
    incarnation = 0 if view.config is None else view.config.incarnation
    return NamespaceReport(
        namespace=path,
        rows=sum(table.counted[0] for table in below),
        bytes=sum(table.counted[1] for table in below),
        rows_max=None if record is None else record.rows_max,
        bytes_max=None if record is None else record.bytes_max,
        in_force=record is None or not record.bounded or record.in_force == incarnation,
        registered=record is not None,
        tables=tuple(table for table in below if enclosing(table.table)[-1] == path),
        graphs=tuple(_share(graph, path) for graph in graphs if _share(graph, path).lanes),
    )


def _share(graph: GraphReport, path: str) -> GraphShare:
    """What of a graph lies in the namespace."""
    own = [n for n in graph.namespaces if n.namespace == path or covers(path, n.namespace)]
    return GraphShare(
        graph.graph,
        graph.state,
        sum(each.lanes for each in own),
        sum(each.done for each in own),
        sum(each.tasks for each in own),
    )


def access(keys: ClusterKeys, path: str) -> dict[str, str | None]:
    """The prefix of etcd keys that may be granted to a role, and that of the quota's record.

    `store_prefix`: None, as objects hold all namespaces together.
    """
    return {
        "etcd_prefix": keys.tables_in(path).decode(),
        "quota_key": keys.namespace(path).decode(),
        "store_prefix": None,
    }

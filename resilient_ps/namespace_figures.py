"""What namespaces hold on a server, for a metrics system: the sum over servers is the whole.

Each namespace is a label, so not all are told where there are very many: those with a quota first,
then the outer ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.figures import Figure
from resilient_ps.namespaces import enclosing
from resilient_ps.quotas import NOTHING, Size
from resilient_ps.shard import Shard

TOLD_MAX = 100


def namespace_figures(
    shards: Collection[Shard], records: Mapping[str, NamespaceRecord]
) -> list[Figure]:
    """Of the shards that a server is primary of; quotas as in `records` (none but for one server).

    May be called from another thread than the one that changes shards.
    """
    held = sizes_of(shards)
    paths = _chosen(held, records, shards)
    left_out = len({*held, *records} - set(paths))
    text = "Namespaces that are not told, because there are so many"
    found = [Figure("resilient_ps_namespaces_left_out", left_out, text)]
    for path in paths:
        size, record = held.get(path, NOTHING), records.get(path)
        told = [
            ("rows", size.rows, "Rows of sparse tables in a namespace and below it"),
            ("bytes", size.nbytes, "Bytes of tables in a namespace and below it"),
            ("rows_max", None if record is None else record.rows_max, "Quota of rows"),
            ("bytes_max", None if record is None else record.bytes_max, "Quota of bytes"),
        ]
        for name, value, text in told:
            if value is not None:
                labels = (("namespace", path),)
                found.append(Figure(f"resilient_ps_namespace_{name}", value, text, labels=labels))
    return found


def sizes_of(shards: Collection[Shard]) -> dict[str, Size]:
    """Of all namespaces that tables lie in."""
    held: dict[str, Size] = {}
    for shard in shards:
        for table in list(shard.tables.values()):
            size = table.size_with(table.rows)
            for path in enclosing(table.spec.name):
                held[path] = held.get(path, NOTHING).plus(size)
    return held


def _chosen(
    held: Collection[str], records: Mapping[str, NamespaceRecord], shards: Collection[Shard]
) -> list[str]:
    bounded = {path for path, record in records.items() if record.bounded}
    for shard in shards:
        bounded.update(list(shard.quotas.by_path))
    paths = {*held, *records, *bounded}
    first = sorted(paths, key=lambda path: (path not in bounded, path.count("/"), path))
    return sorted(first[:TOLD_MAX])

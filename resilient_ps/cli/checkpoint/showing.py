"""`resilient-ps checkpoint show`: what a checkpoint consists of."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from resilient_ps.cli.checkpoint.choice import (
    NEWEST,
    NamespaceOption,
    WishArgument,
    age_text,
    choose,
    clocks_text,
    moment_text,
    opened,
)
from resilient_ps.cli.options import ClusterOption, JsonOption, print_json
from resilient_ps.cli.output import grid, results, size_text
from resilient_ps.cli.storing import Store, with_store
from resilient_ps.client.content import StoredTable, tables_of
from resilient_ps.namespaces import within
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import plan_load
from resilient_ps.storage.shard_index import JobState, ShardIndex
from resilient_ps.tables.spec import SparseSpec

RANKS_SHOWN = 32
CURSOR_CHARS = 60


@with_store()
def show(
    *,
    cluster: ClusterOption = "default",
    store: Store,
    which: WishArgument = NEWEST,
    namespace: NamespaceOption = "",
    json: JsonOption = False,
) -> None:
    """Show what a checkpoint consists of: tables, jobs, and where each rank continues.

    Needs no etcd. Only manifest and indexes are read, and verified.

    \b
    Examples:
        resilient-ps checkpoint show --cluster ctr --store s3://backups/training
        resilient-ps checkpoint show clock:500 --cluster ctr --store ./checkpoints
        resilient-ps checkpoint show --json | jq '.jobs[].ranks[].cursor'
        resilient-ps checkpoint show --namespace ctr/emb
    """
    with opened(store, cluster) as stored:
        manifest, skipped = choose(stored, which)
        indexes = stored.indexes(manifest)
    every = [(table.spec.name, table) for table in tables_of(manifest, indexes)]
    tables = within(namespace, every)
    told = _as_json(manifest, indexes, tables)
    if json:
        print_json({**told, "skipped": skipped})
    else:
        results().print(Group(*_render(manifest, tables, told, skipped)))


def _as_json(
    manifest: Manifest, indexes: Sequence[ShardIndex], tables: Sequence[StoredTable]
) -> dict[str, Any]:
    jobs = {job.number: job for job in plan_load(indexes, manifest.shards, ()).jobs}
    return {
        "id": str(manifest.id),
        "cluster": manifest.cluster,
        "incarnation": manifest.id.incarnation,
        "created_s": manifest.created_s,
        "written_by": manifest.written_by,
        "base": manifest.base,
        "shards": manifest.shards,
        "replicas": manifest.replicas,
        "clocks": dict(manifest.clocks),
        "totals": manifest.totals.fields(),
        "objects": len(manifest.objects) + len(manifest.indexes),
        "tables": [_table(table) for table in tables],
        "namespaces": [each.fields() for each in manifest.namespaces],
        "jobs": [
            {
                "job": job.name,
                "consistency": job.consistency,
                "state": job.state,
                "of": job.ranks,
                "clock": manifest.clocks.get(job.name),
                "ranks": [] if job.number not in jobs else _ranks(jobs[job.number]),
            }
            for job in manifest.jobs
        ],
        "ring": [member.fields() for member in manifest.ring],
    }


def _table(table: StoredTable) -> dict[str, Any]:
    return {
        "table": table.spec.name,
        "kind": "sparse" if isinstance(table.spec, SparseSpec) else "dense",
        "rows": table.rows,
        "lr": table.lr,
        "specification": json_text.loads(table.spec.to_json()),
    }


def _ranks(job: JobState) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank.rank,
            "ticked": rank.ticked,
            "live": rank.live,
            "cursor": _cursor(rank.cursor),
        }
        for rank in job.ranks
    ]


def _cursor(raw: bytes) -> Any:
    try:
        return json_text.loads(raw) if raw else None
    except ValueError:
        return raw.hex()


def _uploaded(manifest: Manifest) -> str:
    totals = manifest.totals
    size = size_text(totals.uploaded_bytes)
    if not manifest.base or totals.uploaded_bytes >= totals.stored_bytes:
        return size
    return f"{size}, the rest is of {manifest.base}"


def _render(
    manifest: Manifest, tables: Sequence[StoredTable], told: dict[str, Any], skipped: list[str]
) -> Iterator[RenderableType]:
    for why in skipped:
        yield Text(f"passed over: {why}", style="yellow")
    totals = manifest.totals
    facts = [
        ("cluster", f"{manifest.cluster}, incarnation {manifest.id.incarnation}"),
        ("made", f"{moment_text(manifest.created_s)} ({age_text(manifest.created_s)} ago)"),
        ("by", manifest.written_by),
        ("clocks", clocks_text(manifest.clocks)),
        ("shards", f"{manifest.shards} of {manifest.replicas} replicas"),
        ("size", f"{size_text(totals.stored_bytes)} ({size_text(totals.raw_bytes)} of content)"),
        ("uploaded", _uploaded(manifest)),
        ("objects", f"{told['objects']:,}"),
    ]
    yield grid(f"checkpoint {manifest.id}", ["", ""], facts)
    yield grid(
        "tables",
        ["table", "kind", "rows", "specification"],
        [
            (table.spec.name, _table(table)["kind"], f"{table.rows:,}", table.spec.describe())
            for table in tables
        ],
        right="rows",
    )
    if manifest.namespaces:
        quotas = [(each.name, each.rows_max, each.bytes_max) for each in manifest.namespaces]
        columns = ["namespace", "rows at most", "bytes at most"]
        yield grid("namespaces", columns, quotas, right="rows at most,bytes at most")
    for job in told["jobs"]:
        at = "" if job["clock"] is None else f", clock {job['clock']}"
        title = f"job {job['job']}: {job['state']}, {job['consistency']}{at}"
        ranks = job["ranks"][:RANKS_SHOWN]
        rows = [(r["rank"], r["ticked"], r["live"], _short(r["cursor"])) for r in ranks]
        yield grid(title, ["rank", "ticked", "live", "continues behind"], rows, right="rank,ticked")
        if len(job["ranks"]) > RANKS_SHOWN:
            yield Text(f"  and {len(job['ranks']) - RANKS_SHOWN} more: --json has all")


def _short(cursor: Any) -> str:
    text = json_text.dumps(cursor)
    return text if len(text) <= CURSOR_CHARS else f"{text[: CURSOR_CHARS - 3]}..."

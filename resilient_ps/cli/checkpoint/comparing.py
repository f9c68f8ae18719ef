"""`resilient-ps checkpoint diff`: what has changed from one checkpoint to another."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.wish import HOW
from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import NamespaceOption, choose, opened
from resilient_ps.cli.options import ClusterOption, JsonOption, print_json
from resilient_ps.cli.output import grid, results
from resilient_ps.cli.storing import Store, with_store
from resilient_ps.client.comparing import Side, TableChange, compare
from resilient_ps.namespaces import within
from resilient_ps.storage.manifest import Manifest

COLUMNS = ("table", "before", "after", "added", "changed", "state only", "removed", "largest")
BeforeArgument = Annotated[str, typer.Argument(metavar="BEFORE", help=f"A checkpoint: {HOW}.")]
AfterArgument = Annotated[str, typer.Argument(metavar="AFTER", help="Another one.")]


@with_store()
def diff(
    *,
    cluster: ClusterOption = "default",
    store: Store,
    before: BeforeArgument,
    after: AfterArgument = "latest",
    namespace: NamespaceOption = "",
    json: JsonOption = False,
) -> None:
    """Compare two checkpoints: rows by key, bit for bit, and the clocks of jobs.

    `state only` of the changed rows have the same values, and another state of their optimiser;
    `largest` is the largest difference of a value. They may have different numbers of shards.
    Needs no etcd.

    \b
    Examples:
        resilient-ps checkpoint diff clock:100 latest --cluster ctr \\
            --store s3://backups/training
        resilient-ps checkpoint diff 1-17-3fa9c2d1 latest --store ./checkpoints
        resilient-ps checkpoint diff clock:100 latest --namespace ctr/emb
    """
    with opened(store, cluster) as stored:
        old, new = (choose(stored, which)[0] for which in (before, after))
        sides = Side.of(stored, old), Side.of(stored, new)
        names = {name for side in sides for name in side.tables()}
        chosen = within(namespace, [(name, name) for name in sorted(names)])
        parts = len(sides[1].tables().keys() & set(chosen)) * new.shards
        with bar(f"comparing {old.id} with {new.id}", parts, "parts") as show:
            changes = list(compare(*sides, show, chosen))
    clocks = _clocks(old, new)
    if json:
        tables = [{**asdict(change), "differs": change.differs} for change in changes]
        print_json({"before": str(old.id), "after": str(new.id), "tables": tables, "jobs": clocks})
        return
    out = results()
    rows = [_cells(change) for change in changes]
    title = f"from {old.id} to {new.id}"
    out.print(grid(title, COLUMNS, rows, right=",".join(COLUMNS[1:])))
    for change in changes:
        if change.specs:
            print(f"{change.table} was {change.specs[0]}, is {change.specs[1]}")
    if clocks:
        out.print(grid("jobs", ["job", "before", "after"], [tuple(job.values()) for job in clocks]))


def _cells(change: TableChange) -> tuple[object, ...]:
    if change.specs:
        return (change.table, f"{change.rows_before:,}", f"{change.rows_after:,}", *["-"] * 5)
    counts = (
        change.rows_before,
        change.rows_after,
        change.added,
        change.changed,
        change.state_only,
        change.removed,
    )
    return (change.table, *[f"{count:,}" for count in counts], f"{change.largest:.3g}")


def _clocks(before: Manifest, after: Manifest) -> list[dict[str, Any]]:
    jobs = sorted({*before.clocks, *after.clocks})
    return [
        {"job": job, "before": before.clocks.get(job), "after": after.clocks.get(job)}
        for job in jobs
    ]

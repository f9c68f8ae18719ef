"""`resilient-ps checkpoint export` and `import`: tables as files, and files as a checkpoint."""

from __future__ import annotations

import os
import secrets
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from resilient_ps import __version__
from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import (
    NEWEST,
    NamespaceOption,
    WishArgument,
    choose,
    opened,
)
from resilient_ps.cli.options import ClusterOption, JsonOption, print_json
from resilient_ps.cli.output import grid, remark, results, size_text
from resilient_ps.cli.plan import optimiser_of
from resilient_ps.cli.storing import Store, with_store
from resilient_ps.client.content import tables_of
from resilient_ps.client.exporting import Exported, chosen, export_tables
from resilient_ps.client.importing import Wanted, open_table
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.client.warm_start import Origin, WarmStart
from resilient_ps.coordinator.placement import MAX_SHARDS
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.namespaces import within
from resilient_ps.storage.manifest import IMPORTED_BY
from resilient_ps.storage.names import CheckpointId

PROCESS_BITS = 62
SUFFIXES = (".parquet", ".safetensors", ".npz")


class Format(StrEnum):
    """Of the files that `export` writes."""

    PARQUET = "parquet"
    SAFETENSORS = "safetensors"
    NPZ = "npz"


@with_store()
def export(
    *,
    cluster: ClusterOption = "default",
    store: Store,
    which: WishArgument = NEWEST,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    format: Annotated[
        Format, typer.Option("--format", help="parquet is written piece by piece.")
    ] = Format.PARQUET,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table; may be repeated.")
    ] = None,
    namespace: NamespaceOption = "",
    state: Annotated[
        bool, typer.Option("--state/--no-state", help="With the optimiser's state.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Write the tables of a checkpoint as files that pandas, DuckDB, torch and others read.

    One file for each table, below --out. Sparse tables have the columns `key` and `value` (lists of
    numbers where rows have several), dense ones `row` and `value`, and the state of the optimiser
    under the names of its formula: `accumulator` of Adagrad, `m`, `v` and `steps` of Adam, `z` and
    `n` of FTRL, `momentum`. In .npz and .safetensors they are arrays `keys`, `values` and so on.
    Needs no etcd.

    \b
    Examples:
        resilient-ps checkpoint export --cluster ctr --store s3://b/c --out model
        duckdb -c "select key, value from 'model/ctr/weights.parquet' limit 9"
        resilient-ps checkpoint export --out model --format safetensors
        resilient-ps checkpoint export --out emb --namespace ctr/emb
    """
    with opened(store, cluster) as stored:
        manifest, skipped = choose(stored, which)
        for why in skipped:
            remark(f"passed over: {why}")
        tables = chosen(tables_of(manifest, stored.indexes(manifest)), table or ())
        tables = within(namespace, [(each.spec.name, each) for each in tables])
        total = sum(each.rows for each in tables)
        with bar(f"exporting {manifest.id}", total, "rows") as show:
            done = export_tables(
                stored,
                manifest,
                out,
                format.value,
                names=[each.spec.name for each in tables],
                with_state=state,
                on_rows=show,
            )
    if json:
        print_json({"checkpoint": str(manifest.id), "files": [_file(each) for each in done]})
        return
    rows = [(e.table, f"{e.rows:,}", size_text(e.nbytes), e.path) for e in done]
    title = f"exported from {manifest.id}"
    results().print(grid(title, ["table", "rows", "size", "file"], rows, right="rows,size"))


def _file(done: Exported) -> dict[str, Any]:
    return {
        "table": done.table,
        "path": str(done.path),
        "rows": done.rows,
        "bytes": done.nbytes,
    }


@with_store()
def load(
    *,
    cluster: ClusterOption = "default",
    store: Store,
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files, or folders of such files.")
    ],
    shards: Annotated[
        int, typer.Option("--shards", min=1, max=MAX_SHARDS, help="Parts to cut it into.")
    ] = 8,
    table: Annotated[
        str, typer.Option("--table", help="Name of the table, for a file that does not say it.")
    ] = "",
    optimiser: Annotated[
        str | None, typer.Option("--optimiser", help="Of such a table; default: sum.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Its learning rate (alpha of ftrl).")
    ] = None,
    namespace: NamespaceOption = "",
    json: JsonOption = False,
) -> None:
    """Make a checkpoint of files with tables: a warm start.

    Takes what `checkpoint export` wrote, and files of others: .parquet with the columns `key` and
    `value`, .npz or .safetensors with the arrays `keys` and `values`. State that a file does not
    have begins as for a new row. A cluster that begins with it (`server --restore ID`, or
    `checkpoint restore ID`) may have any number of shards.

    \b
    Examples:
        resilient-ps checkpoint import model --cluster ctr --store s3://b/ctr
        resilient-ps checkpoint import w.parquet --table ctr/weights \\
            --optimiser adagrad --lr 0.1 --cluster new --store ./checkpoints
        resilient-ps checkpoint import model --namespace ctr/emb --cluster emb \\
            --store s3://b/emb
    """
    wanted = Wanted(
        table, None if optimiser is None and lr is None else optimiser_of(optimiser, lr)
    )
    files = [open_table(path, wanted) for path in _all_files(paths)]
    files = within(namespace, [(each.spec.name, each) for each in files])
    with opened(store, cluster) as stored:
        start = WarmStart(stored.blobs, _origin(stored), shards)
        try:
            with bar("importing", sum(each.rows for each in files), "rows") as show:
                for each in files:
                    start.add(each, show)
            manifest = start.finish()
        except BaseException:
            start.abandon()
            raise
    told = {
        "id": str(manifest.id),
        "cluster": cluster,
        "shards": shards,
        "tables": [{"table": each.spec.name, "rows": each.rows} for each in files],
        "stored_bytes": manifest.totals.stored_bytes,
    }
    if json:
        print_json(told)
        return
    rows = sum(each.rows for each in files)
    print(f"checkpoint {manifest.id} of cluster {cluster}: {len(files)} tables, {rows:,} rows")


def _all_files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES)
            if not inside:
                raise NotFound(f"{path}: no file in it is {', '.join(SUFFIXES)}")
            found += inside
        else:
            found.append(path)
    if len(found) != len(set(found)):
        raise BadInput("a file was given twice")
    return found


def _origin(stored: StoredCheckpoints) -> Origin:
    """An id behind all others."""
    ids = stored.ids()
    newest = max(stored.incarnation(), ids[0].incarnation if ids else 1, 1)
    number = max([each.number for each in ids], default=0) + 1
    return Origin(
        stored.cluster,
        CheckpointId.of(newest, number, secrets.randbits(32)),
        secrets.randbits(PROCESS_BITS) | 1 << PROCESS_BITS,
        int(time.time()),
        f"{IMPORTED_BY}pid {os.getpid()} on {socket.gethostname()}, {__version__}",
    )

"""`resilient-ps bench checkpoint`: the command."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from resilient_ps.cli.bench.checkpoints import Measured, prepared
from resilient_ps.cli.bench.counts import NAME as COMPRESSED
from resilient_ps.cli.bench.counts import compressible
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import results
from resilient_ps.storage.runtime.open import OpenedStore, open_store

EXIT_BELOW_BAR = 1
QUICK_MIB, FULL_MIB = 256, 1024
MEASURED_IN_MIB_PER_S = ("save", "restore", COMPRESSED)
COLUMNS = ("", "ours", "plain", "median", "rounds", "bar")


def checkpoint(
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="s3://BUCKET/PREFIX, or a folder; default: a SeaweedFS server for this run.",
        ),
    ] = "",
    size_mib: Annotated[
        int, typer.Option("--size-mib", min=0, help="Of the state; 0: 1024, or 256 with --quick.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds per figure.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small state.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when a bar is not reached.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure checkpoints beside plain puts and gets of the same sizes on the same store.

    A server on this machine holds the state; a process with boto3 puts and gets objects of the same
    sizes, with the same concurrency. A save is measured from the wish to the published checkpoint,
    a restore from when servers know of it until all shards serve again; the time before that is
    told apart. A folder is compared with plain files.

    The values of that state are random and do not compress. A second one does, of a quarter of the
    size: counts (int64), most of which are 0 or small. Of it bytes before compression are counted.

    \b
    Examples:
        resilient-ps bench checkpoint --quick
        resilient-ps bench checkpoint --json > checkpoint.json
        resilient-ps bench checkpoint --store s3://backups/bench --size-mib 4096
    """
    console = Console(stderr=True)
    started = time.monotonic()
    state_mib = size_mib or (QUICK_MIB if quick else FULL_MIB)
    rows: list[Measured] = []
    with console.status("starting") as status, ExitStack() as stack:
        url, opened = stack.enter_context(_store(store))
        with prepared(url, opened, state_mib, status.update) as bench:
            rows += bench.save_and_restore(rounds)
            rows += bench.second_checkpoints()
            rows += bench.beside_training(rounds)
            rows.append(bench.memory())
        with compressible(url, state_mib, status.update) as counts:
            rows += counts.saves(rounds)
    if json:
        print_json(_as_json(rows, state_mib, seconds=time.monotonic() - started))
    else:
        results().print(f"a state of {state_mib} MiB on {store or 'SeaweedFS'}")
        results().print(_as_table(rows))
    if check and any(row.holds is False for row in rows):
        raise typer.Exit(EXIT_BELOW_BAR)


@contextmanager
def _store(url: str) -> Iterator[tuple[str, OpenedStore]]:
    with ExitStack() as stack:
        if not url:
            from resilient_ps.storage.runtime.seaweedfs import SeaweedFS

            server = stack.enter_context(SeaweedFS())
            os.environ.update(server.environment)  # for the servers too
            url = f"{server.url}/bench"
        opened = open_store(url)
        stack.callback(opened.close)
        yield url, opened


def _as_table(rows: list[Measured]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style="bold red" if row.holds is False else None)
    return table


def _cells(row: Measured) -> list[str]:
    rates = ["", ""]
    if row.ours:
        scale, unit = (1 << 20, " MiB/s") if row.name in MEASURED_IN_MIB_PER_S else (1, "")
        rates = [f"{sorted(v)[len(v) // 2] / scale:,.0f}{unit}" for v in (row.ours, row.plain)]
    bar = "" if row.bar is None else f"{'>=' if row.least else '<='} {row.bar:g}"
    spread = ", ".join(f"{value:.2f}" for value in row.values)
    unit = "" if row.unit == "x" else f" {row.unit}"
    return [row.name, *rates, f"{row.value:.2f}{unit}", spread, bar]


def _as_json(rows: list[Measured], state_mib: int, *, seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 1),
        "state_mib": state_mib,
        "holds": all(row.holds is not False for row in rows),
        "rows": [{**asdict(row), "median": row.value, "holds": row.holds} for row in rows],
    }

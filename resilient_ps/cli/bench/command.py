"""`resilient-ps bench`: the command."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from resilient_ps.cli.bench import replication
from resilient_ps.cli.bench.cases import SparseShape, dense_cases, sparse_cases
from resilient_ps.cli.bench.raw import RawPeer, memcpy_bytes_per_s
from resilient_ps.cli.bench.report import LEGEND, as_json, as_table
from resilient_ps.cli.bench.run import Plan, Row, run_several, run_single
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import results
from resilient_ps.coordinator.placement import MAX_REPLICAS
from resilient_ps.engine import ENGINE

EXIT_BELOW_BAR = 1
MILLION = 1_000_000
DENSE_MIB = (1, 4, 16, 64)
COUNTS = (256, 10_000, 200_000)


def bench(
    *,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds per case.")] = 7,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what has a bar, one server, one worker, TCP.")
    ] = False,
    scale: Annotated[
        bool, typer.Option("--scale/--no-scale", help="Also 2 servers and 2 workers.")
    ] = True,
    large: Annotated[
        bool, typer.Option("--large/--no-large", help="Also tables of 10 million rows (3 GB).")
    ] = True,
    replicas: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_REPLICAS, help="From 2 on: measure what so many replicas cost instead."
        ),
    ] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when a bar is not reached.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure pushes and pulls beside what plain sockets reach on this machine.

    In every round the raw limit (a blocking socket sending 1 MiB writes to another process, and a
    round trip of 100 bytes) and our requests are measured one right after the other; the ratio of
    the two is what can be compared between machines and days.

    Examples:

        resilient-ps bench --quick --check

        resilient-ps bench --json > bench.json

        resilient-ps bench --replicas 2
    """
    console = Console(stderr=True)
    started = time.monotonic()
    if replicas > 1:
        _bench_replicas(rounds, replicas, console, check=check, json=json)
        return
    rows: list[Row] = []
    plans = _plans(rounds, quick=quick, large=large)
    with (
        tempfile.TemporaryDirectory(prefix="resilient-ps-bench-") as folder,
        RawPeer(Path(folder)) as raw,
        console.status("starting") as status,
    ):
        limits = _raw_limits(raw)
        for plan in plans:
            run_single(plan, 1, raw, status.update, rows.append)
        if scale and not quick:
            for servers, workers in ((2, 1), (1, 2), (2, 2)):
                plan = _scale_plan(rounds)
                run_several(plan, servers, workers, raw, status.update, rows.append)
    if json:
        print_json(as_json(rows, limits, seconds=time.monotonic() - started))
    else:
        _print(rows, limits)
    if check and any(row.holds is False for row in rows):
        raise typer.Exit(EXIT_BELOW_BAR)


def _bench_replicas(
    rounds: int, replicas: int, console: Console, *, check: bool, json: bool
) -> None:
    """The cost of replication, beside a cluster without."""
    started = time.monotonic()
    shape = SparseShape(MILLION, 16)
    cases = (*dense_cases((4, 16)), *(c for c in sparse_cases(shape, COUNTS) if c.window == 1))
    plan = Plan((4, 16), (shape,), cases, rounds, ("tcp",))
    with console.status("starting") as status:
        rows = list(replication.compare(plan, replicas, status.update))
    if json:
        print_json(replication.as_json(rows, seconds=time.monotonic() - started))
    else:
        results().print(replication.as_table(rows))
    if check and any(row.holds is False for row in rows):
        raise typer.Exit(EXIT_BELOW_BAR)


def _plans(rounds: int, *, quick: bool, large: bool) -> list[Plan]:
    main = SparseShape(MILLION, 16)
    if quick:
        cases = (*dense_cases((4, 16)), *sparse_cases(main, COUNTS))
        barred = tuple(c for c in cases if c.bar is not None or c.bar_round_trips is not None)
        return [Plan((4, 16), (main,), barred, rounds, ("tcp",))]
    shapes = [main, SparseShape(MILLION, 1)]
    cases = (*dense_cases(DENSE_MIB), *(c for s in shapes for c in sparse_cases(s, COUNTS)))
    plans = [Plan(DENSE_MIB, tuple(shapes), cases, rounds, ("tcp", "unix"))]
    if large:
        for shape in (SparseShape(10 * MILLION, 16), SparseShape(10 * MILLION, 1)):
            cases = tuple(sparse_cases(shape, COUNTS))
            plans.append(Plan((), (shape,), cases, rounds, ("tcp",)))
    return plans


def _scale_plan(rounds: int) -> Plan:
    shape = SparseShape(MILLION, 16)
    cases = (*dense_cases((16,)), *(c for c in sparse_cases(shape, COUNTS) if c.window == 1))
    return Plan((16,), (shape,), cases, rounds, ("unix",))


def _raw_limits(raw: RawPeer) -> dict[str, Any]:
    """What plain sockets and memcpy reach: medians of five."""
    limits: dict[str, Any] = {"memcpy_gb_per_s": _median([memcpy_bytes_per_s() for _ in range(5)])}
    for transport in ("tcp", "unix"):
        rates = [raw.one_way_bytes_per_s(transport) for _ in range(5)]
        trips = [raw.round_trip_s(transport) for _ in range(5)]
        limits[f"{transport}_one_way_gb_per_s"] = _median(rates)
        limits[f"{transport}_round_trip_us"] = round(statistics.median(trips) * 1e6, 1)
    return limits


def _median(rates: list[float]) -> float:
    return round(statistics.median(rates) / 1e9, 2)


def _print(rows: list[Row], limits: dict[str, Any]) -> None:
    console = results()
    console.print(
        f"raw: tcp {limits['tcp_one_way_gb_per_s']} GB/s, {limits['tcp_round_trip_us']} us; "
        f"unix {limits['unix_one_way_gb_per_s']} GB/s, {limits['unix_round_trip_us']} us; "
        f"memcpy {limits['memcpy_gb_per_s']} GB/s; kernels: {ENGINE}"
    )
    console.print(LEGEND)
    console.print(as_table(rows))
    below = [row for row in rows if row.holds is False]
    judged = [row for row in rows if row.holds is not None]
    console.print(f"{len(judged) - len(below)} of {len(judged)} bars reached")

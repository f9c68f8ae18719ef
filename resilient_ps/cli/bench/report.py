"""The measured table, for people and for programs."""

from __future__ import annotations

import os
import platform
import statistics
from typing import Any

from rich.table import Table

from resilient_ps.cli.bench.run import Row
from resilient_ps.engine import ENGINE

LEGEND = """medians over the rounds; spread: (largest - smallest) / median; of raw: ratio to
the raw one-way rate of the same round; us, trips: one request, in raw round trips"""
COLUMNS = ("case", "", "over", "rate", "spread", "of raw", "bar", "us", "trips")


def as_table(rows: list[Row]) -> Table:
    """Medians, spread and ratios to the raw limit of the same rounds."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number < 3 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style=None if row.holds in (None, True) else "bold red")
    return table


def _cells(row: Row) -> list[str]:
    case = row.case
    over = row.transport if (row.servers, row.workers) == (1, 1) else _sizes(row)
    bar = f"{case.bar:.2f}" if case.bar is not None and row.holds is not None else ""
    if case.bar_round_trips is not None and row.holds is not None:
        bar = f"{case.bar_round_trips:g} trips"
    median = statistics.median(row.rates)
    spread = f"{(max(row.rates) - min(row.rates)) / median:.0%}"
    return [
        case.name,
        case.action + (f" w{case.window}" if case.window > 1 else ""),
        over,
        f"{_short(case.unit, median)} {UNITS[case.unit]}",
        spread,
        f"{row.ratio:.2f}",
        bar,
        f"{statistics.median(row.latencies_s) * 1e6:,.0f}",
        f"{statistics.median(row.round_trips):.1f}",
    ]


def _sizes(row: Row) -> str:
    return f"{row.transport} {row.servers}s{row.workers}w"


UNITS = {"bytes": "GB/s", "rows": "Mrow/s"}


def _short(unit: str, rate: float) -> str:
    return f"{rate / 1e9:.2f}" if unit == "bytes" else f"{rate / 1e6:.2f}"


def as_json(rows: list[Row], raw: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Everything that was measured, with every round's value."""
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "kernels": ENGINE,
        "seconds": round(seconds, 1),
        "raw": raw,
        "holds": all(row.holds is not False for row in rows),
        "rows": [_as_object(row) for row in rows],
    }


def _as_object(row: Row) -> dict[str, Any]:
    case = row.case
    return {
        "case": case.name,
        "action": case.action,
        "window": case.window,
        "transport": row.transport,
        "servers": row.servers,
        "workers": row.workers,
        "unit": f"{case.unit} per second",
        "rate": statistics.median(row.rates),
        "ratio": row.ratio,
        "bar": case.bar,
        "round_trips": statistics.median(row.round_trips),
        "bar_round_trips": case.bar_round_trips,
        "latency_us": statistics.median(row.latencies_s) * 1e6,
        "holds": row.holds,
        "rates": row.rates,
        "ratios": row.ratios,
    }

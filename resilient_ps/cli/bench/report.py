"""The measured table, for people and for programs."""

from __future__ import annotations

import os
import platform
import statistics
from typing import Any

from rich.table import Table

from resilient_ps.cli.bench.run import Row


def as_table(rows: list[Row]) -> Table:
    """Medians, spread and ratios to the raw limit of the same rounds."""
    table = Table(title="medians over the rounds; spread in brackets", show_edge=False)
    for name in ("case", "", "over", "s x w"):
        table.add_column(name, overflow="fold")
    for name in ("rate", "[spread]", "of raw", "bar", "us/request", "raw trips"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_cells(row), style=None if row.holds in (None, True) else "bold red")
    return table


def _cells(row: Row) -> list[str]:
    case = row.case
    window = f" w{case.window}" if case.window > 1 else ""
    bars = [f">={case.bar:.2f}" if case.bar is not None else ""]
    bars.append(f"<={case.bar_round_trips:g} trips" if case.bar_round_trips else "")
    return [
        case.name,
        case.action + window,
        row.transport,
        f"{row.servers} x {row.workers}",
        _rate(case.unit, statistics.median(row.rates)),
        f"[{_short(case.unit, min(row.rates))}-{_short(case.unit, max(row.rates))}]".replace(
            "[", "\\[", 1
        ),
        f"{row.ratio:.2f}",
        " ".join(bar for bar in bars if bar),
        f"{statistics.median(row.latencies_s) * 1e6:,.0f}",
        f"{statistics.median(row.round_trips):.1f}",
    ]


def _rate(unit: str, rate: float) -> str:
    return f"{_short(unit, rate)} {'GB/s' if unit == 'bytes' else 'Mrow/s'}"


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

"""What stands behind the panels of the timeline, in plotly's JSON: bands, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from resilient_ps.chaos.report.lanes import Bar, Row
from resilient_ps.chaos.result import RunResult

Json: TypeAlias = dict[str, Any]


def bands(bars: Sequence[Bar]) -> list[Json]:
    """Each fault behind the other panels."""
    return [
        {
            **_across(bar.fault.injected_s, max(bar.fault.healed_s, bar.fault.injected_s)),
            "type": "rect",
            "fillcolor": f"--{bar.group}",
            "opacity": 0.08,
            "line": {"width": 0},
        }
        for bar in bars
    ]


def between(rows: Sequence[Row]) -> list[Json]:
    """Lines between groups."""
    return [
        {
            "type": "line",
            "xref": "paper",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": row.lane - 0.5,
            "y1": row.lane - 0.5,
            "layer": "below",
            "line": {"color": "--grid", "width": 1},
        }
        for row in rows[1:]
    ]


def healed(result: RunResult) -> list[Json]:
    """A line where the last fault was healed."""
    if not result.healed_s:
        return []
    line = {"color": "--muted", "width": 1, "dash": "dash"}
    return [{**_across(result.healed_s, result.healed_s), "type": "line", "line": line}]


def _across(from_s: float, to_s: float) -> Json:
    return {
        "x0": from_s, "x1": to_s, "y0": 0, "y1": 1, "xref": "x", "yref": "paper", "layer": "below",
    }  # fmt: skip

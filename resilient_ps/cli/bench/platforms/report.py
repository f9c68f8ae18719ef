"""The comparison for people and for programs: a table, JSON, and a page with drawings."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from resilient_ps.cli.bench.page import Figure, Grid, Json, Page, Panel, series
from resilient_ps.cli.bench.platforms.problems import LOGISTIC, Problem
from resilient_ps.cli.bench.platforms.run import PLATFORMS, Measured, Plan, Platform
from resilient_ps.cli.output import grid

COLUMNS = ("platform", "samples/s", "of the best", "spread", "loss", "version")
RIGHT = "samples/s,of the best,spread,loss"
REMEDY = 'pip install "resilient-ps[peers]"'


def as_table(rows: Sequence[Measured]) -> RenderableType:
    """A table for each problem."""
    return Group(*(grid(_title(p), COLUMNS, _cells(rows, p), right=RIGHT) for p in _problems(rows)))


def notes(plan: Plan, missing: Sequence[Platform]) -> list[str]:
    """What has to be known to read the numbers."""
    found = [
        f"Data are planted (synthetic). Every platform trains {plan.seconds:g} s per run, not "
        f"counting starting and loading, {plan.rounds} run(s) each; medians.",
        f"{plan.workers} workers on {os.cpu_count()} cores, one BLAS thread each; scikit-learn has "
        "one process. A batch is divided among the workers. Our servers and Spark's JVM share "
        "these cores with the workers.",
        "Loss: mean log loss over all training rows, when the time was over.",
        *(f"{each.name}: {each.note}." for each in plan.platforms),
    ]
    return found + [f"{each.name} was skipped: it is not installed ({REMEDY})" for each in missing]


def holds(rows: Sequence[Measured]) -> bool | None:
    """Are we ahead of every peer in samples per second of logistic regression? None: no peer."""
    ours = [row.rate for row in rows if row.problem.name == LOGISTIC and row.platform.is_ours]
    peers = [row.rate for row in rows if row.problem.name == LOGISTIC and not row.platform.is_ours]
    return max(ours) > max(peers) if ours and peers else None


def as_json(plan: Plan, rows: Sequence[Measured], *, seconds: float) -> dict[str, Any]:
    """Everything that was measured, with every round's value."""
    here = [each.name for each in plan.platforms]
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        "workers": plan.workers,
        "seconds_per_run": plan.seconds,
        "skipped": [each.name for each in PLATFORMS if each.name not in here],
        "holds": holds(rows),
        "rows": [
            {
                "problem": row.problem.name,
                "rows": row.problem.rows,
                "features": row.problem.width,
                "hidden": list(row.problem.hidden),
                "batch_size": row.problem.batch_size,
                "lr": row.problem.lr,
                "platform": row.platform.name,
                "version": row.version,
                "samples_per_s": round(row.rate, 1),
                "loss": row.loss,
                "rates": row.rates,
                "losses": row.losses,
            }
            for row in rows
        ],
    }


def page(
    plan: Plan, rows: Sequence[Measured], missing: Sequence[Platform], *, seconds: float
) -> Page:
    """Bars of every problem, and the tables."""
    ahead = holds(rows)
    state = {True: "held", False: "violated", None: "unknown"}[ahead]
    words = {
        True: "ahead of every peer",
        False: "not ahead of every peer",
        None: "nothing to compare with",
    }
    best = {
        problem.name: max((r for r in rows if r.problem is problem), key=lambda r: r.rate)
        for problem in _problems(rows)
    }
    figures = [
        Figure(name, f"{row.rate:,.0f}", f"samples/s: {row.platform.name}")
        for name, row in best.items()
    ]
    panels = [panel for problem in _problems(rows) for panel in _panels(rows, problem)]
    grids = [Grid(_title(p), "", COLUMNS, _cells(rows, p)) for p in _problems(rows)]
    sentence = "in samples per second of logistic regression, with equal batches on one machine."
    result = as_json(plan, rows, seconds=seconds)
    return Page(
        "platforms", state, words[ahead], sentence, figures, panels, grids,
        notes(plan, missing), result,
    )  # fmt: skip


def _panels(rows: Sequence[Measured], problem: Problem) -> list[Panel]:
    of = [row for row in rows if row.problem is problem]
    names = [row.platform.name for row in of]
    colours = [series(0 if row.platform.is_ours else 1) for row in of]

    def bars(values: list[float], unit: str) -> list[Json]:
        return [
            {"type": "bar", "orientation": "h", "x": values, "y": names,
             "marker": {"color": colours}, "hovertemplate": f"%{{x:,.4~g}}{unit}"}
        ]  # fmt: skip

    height_px = 60 + 30 * len(of)
    axis: Json = {"yaxis": {"autorange": "reversed"}}
    name = problem.name.replace(" ", "-")
    return [
        Panel(f"rate-{name}", f"{problem.name}: samples per second", "", height_px,
              bars([row.rate for row in of], " samples/s"), axis),
        Panel(f"loss-{name}", f"{problem.name}: loss at equal time", "", height_px,
              bars([row.loss for row in of], ""), axis),
    ]  # fmt: skip


def _problems(rows: Sequence[Measured]) -> list[Problem]:
    return list(dict.fromkeys(row.problem for row in rows))


def _title(problem: Problem) -> str:
    what = "two classes" if problem.classes == 2 else f"{problem.classes} classes"
    layers = f", hidden {'-'.join(map(str, problem.hidden))}" if problem.hidden else ""
    return (
        f"{problem.name}: {problem.rows:,} x {problem.width:,}, {what}{layers}, batches of "
        f"{problem.batch_size}"
    )


def _cells(rows: Sequence[Measured], problem: Problem) -> list[list[str]]:
    of = [row for row in rows if row.problem is problem]
    best = max(row.rate for row in of)
    return [
        [
            row.platform.name,
            f"{row.rate:,.0f}",
            f"{row.rate / best:.0%}",
            f"{(max(row.rates) - min(row.rates)) / row.rate:.0%}",
            f"{row.loss:.4f}",
            row.version,
        ]
        for row in of
    ]

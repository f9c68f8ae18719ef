"""The study for people and for programs: a table, JSON, and a page with drawings."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from resilient_ps.cli.bench.page import Figure, Grid, Json, Key, Page, Panel, lines, series
from resilient_ps.cli.bench.stragglers.slowness import Pattern
from resilient_ps.cli.bench.stragglers.study import BAR, BAR_OF, Run, Setting, Study
from resilient_ps.cli.output import grid
from resilient_ps.cli.progress import marks_of

COLUMNS = (
    "consistency", "samples/s", "of bsp", "of possible", "staleness", "", "waited", "loss",
    "at equal time", "at equal samples",
)  # fmt: skip
RIGHT = "samples/s,of bsp,of possible,staleness,waited,loss,at equal time,at equal samples"
MARKED = 12  # staleness 0 .. 11, and more
PANEL_PX = 260
TITLES = {
    Pattern.RANDOM: "in every clock one worker, drawn anew, is slow",
    Pattern.FIXED: "one worker is slow, always the same",
}


def kinds(study: Study) -> list[tuple[Pattern, list[str]]]:
    """The patterns in their order, each with its consistencies."""
    patterns = list(dict.fromkeys(run.pattern for run in study.runs))
    return [
        (p, list(dict.fromkeys(run.consistency for run in study.runs if run.pattern is p)))
        for p in patterns
    ]


def as_table(study: Study) -> RenderableType:
    """A table for each pattern."""
    tables = []
    for pattern, modes in kinds(study):
        rows = [_cells(study, pattern, mode, modes) for mode in modes]
        tables.append(grid(TITLES[pattern], COLUMNS, rows, right=RIGHT))
    return Group(*tables)


def notes(setting: Setting, study: Study) -> list[str]:
    """What has to be known to read the numbers."""
    slow_ms = setting.compute_s * setting.factor * 1e3
    work_ms = 1e3 * statistics.median(run.work_s for run in study.runs)
    return [
        f"{setting.ranks} workers, {setting.clocks} clocks of {setting.batch_size} rows each; "
        f"{os.cpu_count()} cores, one BLAS thread per worker.",
        f"A clock is: pull, compute, push, tick. Computing is a sleep of "
        f"{setting.compute_s * 1e3:g} ms ({slow_ms:g} ms where a worker is slow), so that the "
        "workers do not fight for the cores, and then the real gradient.",
        f"All that is real (pull, gradient, push, tick, and what the workers on these cores cost "
        f"each other) takes {work_ms:.1f} ms of a clock where nobody is waited for.",
        "samples/s: of all workers, until the first is through. Possible: if sleeping were all "
        "there is, with the same waiting for others.",
        "Staleness of a read: how many clocks that its reader has ended the slowest worker has "
        "not, as the read itself tells: median and largest, and a picture of how often each.",
        "Loss: on held-out rows, at the end; at the time when the quickest was through; and "
        "when as many samples were seen as by the one that saw fewest.",
    ]


def as_json(setting: Setting, study: Study, *, seconds: float) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        "workers": setting.ranks,
        "clocks": setting.clocks,
        "batch_size": setting.batch_size,
        "compute_s": setting.compute_s,
        "factor": setting.factor,
        "seed": setting.seed,
        "bar": {"of": BAR_OF, "beside": "bsp", "least": BAR},
        "gain": study.gain(Pattern.RANDOM, BAR_OF) if study.of(Pattern.RANDOM, BAR_OF) else None,
        "holds": study.holds,
        "runs": [_run(run) for run in study.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "pattern": run.pattern.value,
        "consistency": run.consistency,
        "samples": run.samples,
        "seconds": round(run.seconds, 3),
        "samples_per_s": round(run.samples_per_s, 1),
        "possible_samples_per_s": round(run.ideal, 1),
        "staleness": {str(clocks): reads for clocks, reads in run.staleness.items()},
        "work_s": round(run.work_s, 5),
        "waited_share": round(run.waited_share, 4),
        "loss": run.loss,
        "looks": [asdict(look) for look in run.looks],
    }


def page(setting: Setting, study: Study, *, seconds: float) -> Page:
    """Drawings of each pattern, and the table."""
    gain = study.gain(Pattern.RANDOM, BAR_OF) if study.of(Pattern.RANDOM, BAR_OF) else None
    state = {True: "held", False: "violated", None: "unknown"}[study.holds]
    word = "not measured" if gain is None else f"SSP(3) is {gain:.2f} x BSP"
    figures = [
        Figure(f"{mode}, {pattern.value}", f"{study.rate(pattern, mode):,.0f}", "samples/s")
        for pattern, modes in kinds(study)
        for mode in modes
        if mode in ("bsp", BAR_OF, "asp")
    ]
    grids = [
        Grid(f"Samples per second: {TITLES[pattern]}", "", [c or "how often" for c in COLUMNS],
             [_cells(study, pattern, mode, modes) for mode in modes])
        for pattern, modes in kinds(study)
    ]  # fmt: skip
    panels = [panel for pattern, modes in kinds(study) for panel in _panels(study, pattern, modes)]
    sentence = (
        f"in samples per second, when in every clock one of {setting.ranks} workers computes "
        f"{setting.factor:g} times as long; at least {BAR} is asked for."
    )
    result = as_json(setting, study, seconds=seconds)
    return Page(
        "consistency", state, word, sentence, figures, panels, grids, notes(setting, study), result
    )


def _panels(study: Study, pattern: Pattern, modes: list[str]) -> list[Panel]:
    keys = tuple(Key(mode, series(at), "line") for at, mode in enumerate(modes))
    runs = [study.of(pattern, mode)[-1] for mode in modes]
    loss: Json = {"title": {"text": "held-out loss"}, "tickformat": ".2f"}
    over_time = [
        lines(run.consistency, [look.at_s for look in run.looks], [look.loss for look in run.looks],
              series(at), "") for at, run in enumerate(runs)
    ]  # fmt: skip
    over_samples = [
        lines(run.consistency, [look.samples for look in run.looks],
              [look.loss for look in run.looks], series(at), "") for at, run in enumerate(runs)
    ]  # fmt: skip
    title = f"{pattern.value} straggler"
    return [
        Panel(f"rate-{pattern}", f"Samples per second, {title}", "a dot: what is possible",
              PANEL_PX, _rates(study, pattern, modes), {"yaxis": {"rangemode": "tozero"}}),
        Panel(f"stale-{pattern}", f"Staleness of reads, {title}", "share of all reads",
              PANEL_PX, _histograms(study, pattern, modes),
              {"barmode": "group", "xaxis": {"title": {"text": "clocks"}},
               "yaxis": {"tickformat": ".0%"}}, keys),
        Panel(f"time-{pattern}", f"Loss over time, {title}", "", PANEL_PX, over_time,
              {"xaxis": {"title": {"text": "seconds"}}, "yaxis": loss}, keys),
        Panel(f"samples-{pattern}", f"Loss over samples, {title}", "", PANEL_PX, over_samples,
              {"xaxis": {"title": {"text": "samples"}, "tickformat": "~s"}, "yaxis": loss}, keys),
    ]  # fmt: skip


def _rates(study: Study, pattern: Pattern, modes: list[str]) -> list[Json]:
    colours = [series(at) for at in range(len(modes))]
    rates = [study.rate(pattern, mode) for mode in modes]
    possible = [study.of(pattern, mode)[-1].ideal for mode in modes]
    return [
        {"type": "bar", "x": modes, "y": rates, "marker": {"color": colours},
         "hovertemplate": "%{y:,.0f} samples/s<extra>%{x}</extra>"},
        {"type": "scatter", "mode": "markers", "x": modes, "y": possible,
         "marker": {"color": "--ink", "size": 7},
         "hovertemplate": "%{y:,.0f} samples/s possible<extra>%{x}</extra>"},
    ]  # fmt: skip


def _histograms(study: Study, pattern: Pattern, modes: list[str]) -> list[Json]:
    drawn = []
    for at, mode in enumerate(modes):
        counts = _staleness(study.of(pattern, mode))
        reads = counts.total() or 1
        shown = Counter({str(n): counts[n] for n in range(MARKED)})
        shown[f"{MARKED}+"] = reads - shown.total() if counts else 0
        drawn.append(
            {"type": "bar", "name": mode, "x": list(shown), "marker": {"color": series(at)},
             "y": [count / reads for count in shown.values()],
             "hovertemplate": "%{y:.1%}<extra>" + mode + "</extra>"}
        )  # fmt: skip
    return drawn


def _cells(study: Study, pattern: Pattern, mode: str, modes: list[str]) -> list[str]:
    runs = study.of(pattern, mode)
    gain = study.gain(pattern, mode)
    counts = _staleness(runs)
    marks = [counts[n] for n in range(MARKED)]
    marks.append(counts.total() - sum(marks))
    last = [study.of(pattern, each)[-1] for each in modes]
    until_s = min(run.looks[-1].at_s for run in last)
    seen = min(run.looks[-1].samples for run in last)
    run = runs[-1]
    return [
        mode,
        f"{study.rate(pattern, mode):,.0f}",
        "-" if gain is None else f"{gain:.2f}",
        f"{study.rate(pattern, mode) / run.ideal:.0%}",
        f"{int(statistics.median(counts.elements()))}, {max(counts, default=0)}",
        _picture(marks),
        f"{statistics.median(run.waited_share for run in runs):.0%}",
        f"{run.loss:.4f}",
        f"{_loss_at(run, until_s=until_s):.4f}",
        f"{_loss_at(run, samples=seen):.4f}",
    ]


def _picture(counts: list[int]) -> str:
    """A block for each count; nothing where there is none."""
    blocks = marks_of([float(count) for count in counts])
    return "".join(
        block if count else "\u00b7" for block, count in zip(blocks, counts, strict=True)
    )


def _staleness(runs: list[Run]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run.staleness)
    return counts


def _loss_at(run: Run, *, until_s: float | None = None, samples: int | None = None) -> float:
    """The last look that was no later."""
    kept = [
        look
        for look in run.looks
        if (until_s is None or look.at_s <= until_s)
        and (samples is None or look.samples <= samples)
    ]
    return (kept or run.looks[:1])[-1].loss

"""The checkpoints of a cluster in `resilient-ps status`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from resilient_ps.cli.output import grid
from resilient_ps.client.checkpoint_report import CheckpointReport


def checkpoint_lines(report: CheckpointReport) -> RenderableType:
    """A table of one line, and what there is to be said about it."""
    clocks = ", ".join(f"{job} {clock}" for job, clock in sorted(report.clocks.items()))
    row = (
        report.newest or "none",
        duration_text(report.age_s),
        clocks,
        report.good,
        report.damaged,
        _interval(report),
        duration_text(report.cost_s),
        duration_text(report.due_s),
    )
    columns = ["newest", "age", "clocks", "good", "damaged", "interval", "took", "next in"]
    shown = grid("checkpoints", columns, [row], right="age,good,damaged,took,next in")
    return Group(shown, *_remarks(report))


def _interval(report: CheckpointReport) -> str:
    """Who has chosen it, too."""
    texts = []
    if report.interval_s:
        by = f"auto, for {report.mtbf_h:g} h" if report.interval_by == "auto" else ""
        texts.append(duration_text(report.interval_s) + (f" ({by})" if by else ""))
    if report.every_clocks:
        texts.append(f"{report.every_clocks} clocks")
    return " or ".join(texts) or ("on demand" if report.told else "not known")


def _remarks(report: CheckpointReport) -> Iterator[Text]:
    if report.told and not report.store:
        yield Text("  the coordinator has no object store: none can be made", style="red")
    if report.trouble:
        yield Text(f"  {report.trouble}", style="bold yellow")
    if report.last_failure:
        yield Text(f"  last failure: {report.last_failure}", style="yellow")
    if report.under_way is not None:
        doing = report.under_way
        waits = f", waits for {doing['waits_for']}" if doing.get("waits_for") else ""
        count = f"{doing.get('done', 0)} of {doing.get('total', 0)} shards written"
        text = f"  {doing.get('checkpoint')} under way: {doing.get('stage')}, {count}{waits}"
        yield Text(text, style="dim")
    if report.sweeping:
        yield Text(f"  nothing can be deleted at the moment: {report.sweeping}", style="yellow")


def duration_text(seconds: float | None) -> str:
    """Seconds, minutes, hours or days, as people say it."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"

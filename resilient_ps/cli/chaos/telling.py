"""What came of runs, on standard output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from resilient_ps.chaos.faults.blame import recoveries_of
from resilient_ps.chaos.result import Judged, Recovery, RunResult
from resilient_ps.cli.output import grid, results, size_text

REASONS_SHOWN = 5
RECOVERY_COLUMNS = ("fault", "number", "median", "p99", "longest")
SEED_COLUMNS = (
    "seed",
    "workload",
    "verdict",
    "faults",
    "pushes",
    "failovers",
    "longest outage",
    "",
)
_WORDS = {"held": "HELD", "violated": "VIOLATED", "unknown": "UNKNOWN"}
_STYLES = {"held": "bold green", "violated": "bold red", "unknown": "bold yellow"}
_MARKS = {"true": ("holds", "green"), "false": ("BROKEN", "bold red")}
_UNDECIDED = ("unknown", "yellow")


def print_run(result: RunResult) -> None:
    """All of one run."""
    out = results()
    out.print(_headline(result))
    if result.why:
        out.print(Text(f"  {result.why}"))
    for each in result.judged:
        out.print(_judged(each))
    _print_recovery(result.recovery)
    for line in _counts(result):
        out.print(Text(line))
    out.print(Text("\nto run it again:"))
    out.print(Text(f"  {result.command}"), soft_wrap=True)


def print_runs(runs: Sequence[RunResult]) -> None:
    """A table of several runs, and what they come to."""
    right = "seed,faults,pushes,failovers,longest outage"
    results().print(grid("", SEED_COLUMNS, [_seed_row(run) for run in runs], right=right))
    _print_recovery(recoveries_of((run.outages, run.faults) for run in runs))
    verdicts = [run.verdict for run in runs]
    print(
        f"{len(runs)} runs: {verdicts.count('held')} held, {verdicts.count('violated')} violated, "
        f"{verdicts.count('unknown')} unknown; {sum(brought_about(run) for run in runs)} faults, "
        f"{sum(_with_evidence(run) for run in runs)} of them with evidence; "
        f"{sum(run.counts.acknowledged for run in runs)} pushes acknowledged; "
        f"{sum(run.counts.failovers for run in runs)} failovers, "
        f"{sum(run.counts.false_failovers for run in runs)} of primaries that no fault had struck"
    )
    for run in runs:
        if run.verdict != "held":
            print(f"  again: {run.command}")


def line_of(result: RunResult) -> str:
    """One line for one of several runs."""
    broken = [each.checker for each in result.judged if each.outcome == "false"]
    why = "; ".join(broken) or result.why
    return (
        f"seed {result.seed}, {result.workload}: {_WORDS[result.verdict]}"
        f"{f' ({why})' if why else ''}, {brought_about(result)} faults, "
        f"{result.counts.acknowledged} pushes, {result.seconds:.0f} s"
    )


def brought_about(result: RunResult) -> int:
    """How many faults were not skipped."""
    return sum(not fault.skipped for fault in result.faults)


def _with_evidence(result: RunResult) -> int:
    return sum(bool(fault.evidence) and not fault.skipped for fault in result.faults)


def _headline(result: RunResult) -> Text:
    shown = brought_about(result)
    skipped = len(result.faults) - shown
    return Text.assemble(
        (_WORDS[result.verdict], _STYLES[result.verdict]),
        f"  seed {result.seed}, {result.workload}, {shown} faults"
        f"{f' ({skipped} skipped)' if skipped else ''}, {result.seconds:.0f} s",
    )


def _print_recovery(recovery: Sequence[Recovery]) -> None:
    if recovery:
        title = "how long shards were away, by kind of fault"
        rows = [_recovery(row) for row in recovery]
        results().print(grid(title, RECOVERY_COLUMNS, rows, right="number,median,p99,longest"))


def _judged(each: Judged) -> Text:
    word, style = _MARKS.get(each.outcome, _UNDECIDED)
    text = Text.assemble("  ", (f"{word:8}", style), each.checker)
    for reason in each.reasons[:REASONS_SHOWN]:
        text.append(f"\n            {_indented(reason)}")
    if len(each.reasons) > REASONS_SHOWN:
        text.append(f"\n            ... and {len(each.reasons) - REASONS_SHOWN} more")
    return text


def _recovery(row: Recovery) -> list[str]:
    times = (row.median_s, row.p99_s, row.longest_s)
    return [
        row.kind,
        str(row.faults),
        *(f"{time_s:.2f} s" if time_s else "none" for time_s in times),
    ]


def _counts(result: RunResult) -> list[str]:
    counts = result.counts
    lines = [
        f"pushes: {counts.acknowledged} acknowledged, {counts.failed} failed, {counts.unknown} "
        f"without an outcome; {counts.pulls} pulls",
        f"failovers: {counts.failovers}, {counts.false_failovers} of them of primaries that no "
        f"fault had struck; {size_text(counts.copied_bytes)} copied anew",
    ]
    if counts.checkpoints or counts.rollbacks:
        lines.append(f"checkpoints: {counts.checkpoints}; rollbacks: {counts.rollbacks}")
    if result.metrics:
        told = ", ".join(f"{name} {value:g}" for name, value in sorted(result.metrics.items()))
        lines.append(f"metrics: {told}")
    return lines


def _seed_row(run: RunResult) -> list[str]:
    longest_s = max((outage.to_s - outage.from_s for outage in run.outages), default=0.0)
    broken = [each.checker for each in run.judged if each.outcome == "false"]
    return [
        str(run.seed),
        run.workload,
        run.verdict,
        str(brought_about(run)),
        str(run.counts.acknowledged),
        str(run.counts.failovers),
        f"{longest_s:.2f} s" if longest_s else "-",
        "; ".join(broken) or run.why,
    ]


def _indented(reason: str) -> str:
    return reason.replace("\n", "\n            ")

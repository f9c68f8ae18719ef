"""What a report says first: the verdict, what each checker says, and the figures of the run."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_ps.chaos.report.wording import count, counted, seconds, size
from resilient_ps.chaos.result import Judged, RunResult, RunVerdict

WORDS: dict[RunVerdict, str] = {"held": "Held", "violated": "Violated", "unknown": "Unknown"}
SIGNS = {"held": "✓", "violated": "✕", "unknown": "?"}
OUTCOMES = {"true": "held", "false": "violated", "unknown": "unknown"}
_ORDER = {"violated": 0, "unknown": 1, "held": 2}


@dataclass(frozen=True, slots=True)
class Check:
    """A checker's line; `state` is a verdict, for its sign and colour."""

    name: str
    state: str
    sign: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, what it counts, and what is to be said beside it. `alarming`: it stands out."""

    name: str
    value: str
    note: str = ""
    alarming: bool = False


def sentence(result: RunResult) -> str:
    """The verdict in one sentence."""
    injected = sum(1 for fault in result.faults if not fault.skipped)
    through = f"through {counted(injected, 'fault')}"
    if result.verdict == "held":
        return f"All {len(result.judged)} checks passed, {through}."
    failed = [judged.checker for judged in result.judged if judged.outcome == "false"]
    if result.verdict == "violated":
        return f"{len(failed)} of {counted(len(result.judged), 'check')} failed: " + (
            ", ".join(failed) + "." if failed else result.why
        )
    undecided = [judged.checker for judged in result.judged if judged.outcome not in OUTCOMES]
    undecided += [judged.checker for judged in result.judged if judged.outcome == "unknown"]
    return result.why or f"Not decided: {', '.join(undecided)}."


def checks(result: RunResult) -> list[Check]:
    """What failed comes first."""
    lines = [_check(judged) for judged in result.judged]
    return sorted(lines, key=lambda check: _ORDER[check.state])


def figures(result: RunResult) -> list[Figure]:
    """What happened, in numbers."""
    counts = result.counts
    skipped = sum(1 for fault in result.faults if fault.skipped)
    pushed = f"{count(counts.failed)} failed, {count(counts.unknown)} unknown"
    return [
        Figure("faults injected", count(len(result.faults) - skipped), f"{count(skipped)} skipped"),
        _longest(result),
        Figure("pushes acknowledged", count(counts.acknowledged), pushed),
        Figure("pulls answered", count(counts.pulls)),
        Figure(
            "failovers",
            count(counts.failovers),
            f"{count(counts.false_failovers)} of a healthy primary",
            alarming=counts.false_failovers > 0,
        ),
        Figure("copied to new replicas", size(counts.copied_bytes)),
        Figure("checkpoints", count(counts.checkpoints), counted(counts.rollbacks, "rollback")),
        Figure("run time", seconds(result.seconds), "start, faults, healing, checks"),
    ]


def _check(judged: Judged) -> Check:
    state = OUTCOMES.get(judged.outcome, "unknown")
    return Check(judged.checker, state, SIGNS[state], judged.reasons)


def _longest(result: RunResult) -> Figure:
    if not result.outages and not result.reigns:
        return Figure("longest outage", "-", "it was not measured")
    if not result.outages:
        return Figure("longest outage", "none", "every shard answered")
    worst = max(result.outages, key=lambda outage: outage.to_s - outage.from_s)
    kinds = {fault.planned.number: fault.planned.kind for fault in result.faults}
    cause = kinds.get(worst.fault, "no fault explains it")
    lasted = seconds(worst.to_s - worst.from_s)
    return Figure("longest outage", lasted, f"shard {worst.shard}, {cause}")

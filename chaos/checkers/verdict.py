"""What a checker finds: a promise held, was broken, or the history does not tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["true", "false", "unknown"]

REASONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, and why: the first violations, or what is missing in the history."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()


HOLDS = Verdict("true")


def judge(violations: Iterable[str], *, checked: int, what: str) -> Verdict:
    """`false` with any violation; `unknown` when nothing of `what` was there to be checked."""
    found = tuple(violations)
    if found:
        more = (f"and {len(found) - REASONS_MAX} more",) if len(found) > REASONS_MAX else ()
        return Verdict("false", found[:REASONS_MAX] + more)
    if not checked:
        return Verdict("unknown", (f"the history has no {what}",))
    return HOLDS


def together(*verdicts: Verdict) -> Verdict:
    """All of them at once: `false` if one is, else `unknown` if one is; with their reasons."""
    outcomes: tuple[Outcome, ...] = ("false", "unknown")
    for outcome in outcomes:
        found = [verdict for verdict in verdicts if verdict.outcome == outcome]
        if found:
            return Verdict(outcome, tuple(reason for each in found for reason in each.reasons))
    return HOLDS

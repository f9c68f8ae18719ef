"""Histories written by hand."""

from __future__ import annotations

from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.history import Action, History, Outcome


def note(
    history: History,
    process: str,
    action: Action,
    clock: int,
    begun_ns: int,
    ended_ns: int | None = None,
    *,
    keys: tuple[int, ...] = (),
    outcome: Outcome = "ok",
    values: tuple[int, ...] = (),
    deadline_ns: int = 0,
) -> None:
    """One operation of process "<rank>.<incarnation>"; without an end it is never completed."""
    rank = int(process.split(".")[0])
    number = history.invoke(process, action, rank, clock, begun_ns, keys, deadline_ns=deadline_ns)
    if ended_ns is not None:
        history.complete(number, ended_ns, outcome, values)


def pushes(history: History, rank: int, clocks: int, *, start_ns: int = 0) -> None:
    """A rank's pushes of its clocks, one nanosecond each, acknowledged."""
    for clock in range(1, clocks + 1):
        at_ns = start_ns + 2 * clock
        note(history, f"{rank}.1", "push", clock, at_ns, at_ns + 1, keys=(rank,))


def pull(
    history: History,
    clock: int,
    seen: tuple[int, ...],
    *,
    at_ns: int,
    process: str = "0.1",
    ranks: tuple[int, ...] | None = None,
) -> None:
    """A pull that was answered; by default it saw one row of each rank."""
    keys = tuple(range(len(seen))) if ranks is None else ranks
    note(history, process, "pull", clock, at_ns, at_ns + 1, keys=keys, values=seen)


def why(verdict: Verdict) -> str:
    """The reasons of a conviction."""
    assert verdict.outcome == "false", verdict
    return "; ".join(verdict.reasons)

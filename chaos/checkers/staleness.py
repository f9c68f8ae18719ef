"""BSP, SSP and ASP as promised: what every pull saw of every rank.

Workload: rank r adds 1 to row r of a table of integers in each of its clocks, and pulls the rows of
all ranks. So the number that is seen in row r tells how many of r's clocks a pull contains. (A pull
may see several such rows of one rank: its keys then name the rank as often.) For a pull at clock c
that saw `seen[r]`:

* fresh: `seen[r] >= gate(c)`: all updates of clocks up to c-s-1 (SSP) or c-1 (BSP), of all ranks;
* exact (BSP): `seen[r] == c-1`, nothing of clock c or later.

Ranks that joined late or left early take part in some clocks only: `lives` says in which. What a
process sees in the course of time is judged in `sessions`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from resilient_ps.chaos.checkers.clocks import State, clocks_of
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History, Operation
from resilient_ps.consistency import BSP, Consistency


def check_staleness(
    history: History,
    mode: Consistency,
    lives: Mapping[int, Sequence[int]] | None = None,
    undecided: Mapping[int, Sequence[int]] | None = None,
) -> Verdict:
    """`history`: pulls whose keys are ranks. `lives`: the clocks of each rank; default all.

    `undecided`: clocks of each rank that may have been completed, and need not have been.
    """
    pulls = [pull for pull in history.operations("pull") if pull.outcome == "ok"]
    violations: list[str] = []
    for pull in pulls:
        violations += _bounds(pull, mode, lives or {}, undecided or {})
    return judge(violations, checked=len(pulls), what="pulls that were answered")


def lives_of(history: History, state: State = "closed") -> dict[int, list[int]]:
    """The clocks of each rank that the whole history leaves in this state."""
    clocks = clocks_of(history)
    ranks = {record.invoked.rank for record in history.operations()}
    return {rank: clocks.of(rank, state) for rank in sorted(ranks)}


def _bounds(
    pull: Operation,
    mode: Consistency,
    lives: Mapping[int, Sequence[int]],
    undecided: Mapping[int, Sequence[int]],
) -> Iterator[str]:
    gate = mode.gate(pull.invoked.clock)
    for rank, seen in zip(pull.invoked.keys, pull.values, strict=True):
        life = lives.get(rank)
        due = gate if life is None else bisect_right(life, gate)
        most = due + bisect_right(undecided.get(rank, ()), gate)
        if seen < due:
            yield f"{describe(pull)} saw {seen} clocks of rank {rank}, must contain {due}"
        if isinstance(mode, BSP) and seen > most:
            yield (
                f"{describe(pull)} saw {seen} clocks of rank {rank}, "
                f"must contain no more than {most}"
            )


def describe(pull: Operation) -> str:
    """A pull, for a sentence about what it saw."""
    return f"the pull of {pull.invoked.process} at clock {pull.invoked.clock}"

"""BSP, SSP and ASP as promised: what every pull saw of every rank.

Workload: rank r adds 1 to row r of a table of integers in each of its clocks, and pulls the rows of
all ranks. So the number that is seen in row r tells how many of r's clocks a pull contains. For a
pull at clock c that saw `seen[r]`:

* fresh: `seen[r] >= gate(c)`: all updates of clocks up to c-s-1 (SSP) or c-1 (BSP), of all ranks;
* exact (BSP): `seen[r] == c-1`, nothing of clock c or later;
* own: at least the worker's own pushes that were acknowledged before;
* monotone: not less than an earlier pull of the same process saw;
* causal: not more than r had begun to push when the pull ended.

Ranks that joined late or left early take part in some clocks only: `lives` says in which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History, Operation
from resilient_ps.consistency import BSP, Consistency


def check_staleness(
    history: History, mode: Consistency, lives: Mapping[int, range] | None = None
) -> Verdict:
    """`history`: pushes of key = rank, and pulls of such keys. `lives`: by rank, default all."""
    pushes = [
        push for push in history.operations("push") if push.invoked.keys == (push.invoked.rank,)
    ]
    pulls = [pull for pull in history.operations("pull") if pull.outcome == "ok"]
    violations: list[str] = []
    before: dict[str, Operation] = {}
    for pull in pulls:
        violations += _bounds(pull, mode, lives or {})
        violations += [] if isinstance(mode, BSP) else _own(pull, pushes)
        violations += _causal(pull, pushes)
        earlier = before.get(pull.invoked.process)
        if earlier is not None:
            violations += _monotone(pull, earlier)
        before[pull.invoked.process] = pull
    return judge(violations, checked=len(pulls), what="pulls that were answered")


def _bounds(pull: Operation, mode: Consistency, lives: Mapping[int, range]) -> Iterator[str]:
    gate = mode.gate(pull.invoked.clock)
    for rank, seen in zip(pull.invoked.keys, pull.values, strict=True):
        life = lives.get(rank)
        due = gate if life is None else max(0, min(gate + 1, life.stop) - life.start)
        saw = f"{_name(pull)} saw {seen} clocks of rank {rank}"
        if seen < due:
            yield f"{saw}, must contain {due}"
        if isinstance(mode, BSP) and seen > due:
            yield f"{saw}, must contain no more than {due}"


def _own(pull: Operation, pushes: list[Operation]) -> Iterator[str]:
    rank = pull.invoked.rank
    acknowledged = {
        push.invoked.clock
        for push in pushes
        if push.invoked.rank == rank
        and push.outcome == "ok"
        and push.ended_ns is not None
        and push.ended_ns <= pull.invoked.at_ns
    }
    seen = dict(zip(pull.invoked.keys, pull.values, strict=True)).get(rank)
    if seen is not None and seen < len(acknowledged):
        yield f"{_name(pull)} saw {seen} of its own {len(acknowledged)} acknowledged pushes"


def _causal(pull: Operation, pushes: list[Operation]) -> Iterator[str]:
    assert pull.ended_ns is not None
    for rank, seen in zip(pull.invoked.keys, pull.values, strict=True):
        begun = {
            push.invoked.clock
            for push in pushes
            if push.invoked.rank == rank and push.invoked.at_ns <= pull.ended_ns
        }
        if seen > len(begun):
            yield f"{_name(pull)} saw {seen} clocks of rank {rank}, which had begun {len(begun)}"


def _monotone(pull: Operation, earlier: Operation) -> Iterator[str]:
    if earlier.ended_ns is None or earlier.ended_ns > pull.invoked.at_ns:
        return  # both were under way at once
    old = dict(zip(earlier.invoked.keys, earlier.values, strict=True))
    for rank, seen in zip(pull.invoked.keys, pull.values, strict=True):
        if seen < old.get(rank, seen):
            yield f"{_name(pull)} saw {seen} clocks of rank {rank} after it had seen {old[rank]}"


def _name(pull: Operation) -> str:
    return f"the pull of {pull.invoked.process} at clock {pull.invoked.clock}"

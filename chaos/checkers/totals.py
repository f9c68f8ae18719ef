"""What was counted in the end: every complete clock of every rank once, and nothing else.

Workload: rank r adds 1 to its rows in each of its clocks. When all clocks have been ended, a row of
r holds as many as r completed, and under SSP and ASP those all of whose pushes were acknowledged to
one process. Clocks that nobody completed may have been counted too, but not under BSP, where they
count only if their tick is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable

from resilient_ps.chaos.checkers.clocks import clocks_of
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History
from resilient_ps.consistency import BSP, Consistency


def check_totals(history: History, final: Iterable[tuple[int, int]], mode: Consistency) -> Verdict:
    """`final`: (rank, what one of its rows held in the end)."""
    clocks, bsp = clocks_of(history), isinstance(mode, BSP)
    pushed: dict[tuple[int, int], dict[str, int]] = {}  # by process: pushes acknowledged
    for push in history.operations("push"):
        by_process = pushed.setdefault((push.invoked.rank, push.invoked.clock), {})
        process = push.invoked.process
        by_process[process] = by_process.get(process, 0) + (push.outcome == "ok")
    whole: dict[int, int] = {}  # by rank: how many pushes a clock has
    for (rank, clock), by_process in pushed.items():
        if clocks.state(rank, clock) == "closed":
            whole[rank] = max(whole.get(rank, 1), *by_process.values())
    violations: list[str] = []
    rows = 0
    for rank, held in final:
        rows += 1
        least = most = 0
        for (r, clock), by_process in pushed.items():
            if r == rank:
                state = clocks.state(r, clock)
                all_of_it = max(by_process.values()) >= whole.get(r, 1)
                least += state == "closed" or (all_of_it and not bsp)
                most += state != "void" or not bsp
        if not least <= held <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}"
            violations.append(f"a row of rank {rank} counted {held} clocks, allowed is {allowed}")
    return judge(violations, checked=rows, what="rows")

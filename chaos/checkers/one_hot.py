"""Exactly once: a slot that pushes of one identity add 1 to ends as 1, or never changes.

Workload: every push adds 1 to slots (keys) of its own in a table of integers that sums. A process
that takes a rank over repeats pushes into the same slots. In the end the table is read:

* a slot with an acknowledged push holds 1: less was lost, more was applied twice;
* a slot with pushes of unknown outcome only holds 0 or 1;
* all others hold 0: a refused push must not have been applied.

Under BSP a push lasts with its clock's tick, so the workload must have ended its clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History


def check_one_hot(history: History, final: Mapping[int, int]) -> Verdict:
    """`final`: what was read of each slot after all processes had ended."""
    acknowledged: set[int] = set()
    attempted: set[int] = set()
    for push in history.operations("push"):
        if push.outcome == "ok":
            acknowledged.update(push.invoked.keys)
        if push.outcome != "fail":
            attempted.update(push.invoked.keys)
    violations: list[str] = []
    for slot in sorted(final.keys() | attempted):
        held = final.get(slot, 0)
        allowed = (1,) if slot in acknowledged else (0, 1) if slot in attempted else (0,)
        if held not in allowed:
            violations.append(
                f"slot {slot} holds {held}, allowed is {' or '.join(map(str, allowed))}"
            )
    return judge(violations, checked=len(attempted), what="pushes")

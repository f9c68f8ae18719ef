"""BSP: a clock is the work of one process, also when another one took over in the middle of it.

Workload: a process adds its incarnation to each of the slots that belong to a clock. A takeover
repeats the open clock as a whole, so that in the end all slots of one clock hold the same number,
and it is the number of one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilient_ps.chaos.checkers.verdict import Verdict, judge


def check_whole_clocks(
    clocks: Mapping[str, Sequence[int]], incarnations: Mapping[str, int]
) -> Verdict:
    """`clocks`: the slots' values by a name of (rank, clock); `incarnations`: the largest drawn."""
    violations: list[str] = []
    for name in sorted(clocks):
        held = sorted(set(clocks[name]))
        if len(held) != 1:
            violations.append(f"{name} is a mixture: {held}")
        elif not 1 <= held[0] <= incarnations[name]:
            violations.append(f"{name} holds {held[0]}, which is the number of no process")
    return judge(violations, checked=len(clocks), what="clocks")

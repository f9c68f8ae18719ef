"""Every call ends: no operation outlives its deadline by more than a slack.

An operation whose process died needs no end. One that nobody has ended when the run is over is a
violation as soon as its deadline and the slack have passed.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History


def check_waits(
    history: History,
    *,
    slack_ns: int,
    end_ns: int,
    skew_ppm: int = 0,
    paused_ns: Mapping[str, int] | None = None,
) -> Verdict:
    """`end_ns`: when the history ends. Operations without a deadline are not judged.

    `skew_ppm`: by how much, in a million, a process's clock may be slower than the history's.
    `paused_ns`: for how long a process stood still, altogether: so much later it may notice.
    """
    deaths = history.deaths()
    violations: list[str] = []
    checked = 0
    for operation in history.operations():
        invoked = operation.invoked
        if not invoked.deadline_ns:
            continue
        checked += 1
        latest_ns = invoked.deadline_ns + slack_ns + (paused_ns or {}).get(invoked.process, 0)
        latest_ns += (invoked.deadline_ns - invoked.at_ns) * skew_ppm // 1_000_000
        over_ns = operation.ended_ns
        if over_ns is None and invoked.process in deaths:
            continue
        over_ns = end_ns if over_ns is None else over_ns
        if over_ns > latest_ns:
            late_ms = (over_ns - invoked.deadline_ns) / 1e6
            ended = "ended" if operation.ended_ns is not None else "has not ended"
            violations.append(
                f"the {invoked.action} of {invoked.process} at clock {invoked.clock} {ended} "
                f"{late_ms:.3f} ms after its deadline"
            )
    return judge(violations, checked=checked, what="operations with a deadline")

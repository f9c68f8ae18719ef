"""SSP and ASP: a run with faults learns as much as an undisturbed one, within a band."""

from __future__ import annotations

import math
from collections.abc import Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge


def check_quality(compared: Mapping[str, tuple[float, float]], *, band: float) -> Verdict:
    """`compared`: by the name of a measure, what came out, and what does undisturbed."""
    violations = [
        f"{name} is {held:.6g}, undisturbed {due:.6g}: they differ by more than {band:g}"
        for name, (held, due) in compared.items()
        if not (math.isfinite(held) and abs(held - due) <= band)
    ]
    return judge(violations, checked=len(compared), what="measures")

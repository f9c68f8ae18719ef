"""BSP is bitwise reproducible: a run with faults ends with the bytes of an undisturbed one."""

from __future__ import annotations

from collections.abc import Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge


def check_identity(held: Mapping[str, str], undisturbed: Mapping[str, str]) -> Verdict:
    """Both: digests of the model's parts by name, after the same clocks of the same programs."""
    names = sorted(held.keys() | undisturbed.keys())
    violations = [
        f"{name} is {held.get(name, 'missing')}, undisturbed {undisturbed.get(name, 'missing')}"
        for name in names
        if held.get(name) != undisturbed.get(name)
    ]
    return judge(violations, checked=len(names), what="tables")

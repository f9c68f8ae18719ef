"""What is judged of a whole run, beside what its workload judges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from resilient_ps.chaos.checkers.verdict import HOLDS, Verdict, judge
from resilient_ps.chaos.checkers.writers import check_epochs
from resilient_ps.chaos.faults.leadership import Leadership
from resilient_ps.chaos.result import Judged, RunVerdict


def of_leadership(held: Leadership, *, may_roll_back: bool) -> list[Judged]:
    """What etcd held while the run went on."""
    verdicts = {"epochs only grow": check_epochs(held.records)}
    if not may_roll_back:
        verdicts["no shard is lost"] = judge(
            _rollbacks(held.incarnations), checked=len(held.incarnations), what="configurations"
        )
    return [judged(name, verdict) for name, verdict in verdicts.items()]


def _rollbacks(incarnations: Sequence[int]) -> list[str]:
    """Faults leave a copy of every shard: a cluster that went back had no reason to."""
    if len(set(incarnations)) < 2:
        return []
    return [f"the cluster was rolled back: its incarnations were {list(incarnations)}"]


def of_list(name: str, violations: Iterable[str], what: str = "processes") -> Judged:
    """A checker that has found these."""
    found = list(violations)
    return judged(name, judge(found, checked=1, what=what) if found else HOLDS)


def judged(checker: str, verdict: Verdict) -> Judged:
    """A verdict under the checker's name."""
    return Judged(checker, verdict.outcome, verdict.reasons)


def overall(all_judged: Sequence[Judged], problems: Sequence[str]) -> tuple[RunVerdict, str]:
    """The verdict of the run, and why it is unknown where it is.

    A violation stands, whatever else went wrong; a run that went wrong proves nothing else.
    """
    outcomes = [each.outcome for each in all_judged]
    if "false" in outcomes:
        return "violated", ""
    if problems:
        return "unknown", "; ".join(problems)
    undecided = [each for each in all_judged if each.outcome != "true"]
    if undecided:
        first = undecided[0]
        return "unknown", f"{first.checker}: {'; '.join(first.reasons) or 'undecided'}"
    if not all_judged:
        return "unknown", "nothing was judged"
    return "held", ""

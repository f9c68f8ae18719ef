"""Tasks of a graph as promised: each takes effect once, after its predecessors, and as a whole.

What is known: `Run`s (each time that a holder began with a task, what it saw then, and what came of
it), what tables hold in the end, and what etcd said of progress when. Each task adds 1 to marks of
its own, which lie on several shards, and its token to a number of its own.

* once: in the end all marks of all tasks are 1;
* one token: the number is the token of one of the task's runs; of the one whose tick was
  acknowledged, if one was (an older holder's late write would change it);
* in order: whoever begins with a task sees all marks of the tasks that it comes after;
* not yet done: it sees none of the task's own marks;
* alone: what tasks of an exclusive group share does not change while one of them runs;
* progress: etcd says that a step is done only when it is on all shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from resilient_ps.chaos.checkers.verdict import Verdict, judge

Task: TypeAlias = tuple[int, int]
"""Rank (a lane of the graph) and step."""

End: TypeAlias = Literal["ticked", "lost", "unknown"]


@dataclass(slots=True)
class Run:
    """A holder has begun with a task. `incarnation`: of the cluster.

    `missing`: marks of predecessors that were not 1; `own`: those of the task itself, which should
    not be there yet. `shared`: what an exclusive group shares, at the beginning and before the end.
    `end`: its tick was acknowledged; the task was granted to another, or rolled back; or neither is
    known.
    """

    holder: str
    task: Task
    token: int
    incarnation: int
    begun_ns: int
    missing: tuple[Task, ...] = ()
    own: tuple[int, ...] = ()
    shared: list[int] = field(default_factory=list)
    end: End = "unknown"

    def __str__(self) -> str:
        rank, step = self.task
        return (
            f"step {step} of lane {rank} in the hands of {self.holder} (token {self.token}), begun "
            f"at {self.begun_ns / 1e9:.3f} s"
        )


class Claim(NamedTuple):
    """etcd says that a lane has done all steps up to `done`; `held`: the least of what each shard
    had ticked then, on the replica that was ahead."""

    at_ns: int
    rank: int
    done: int
    held: int


def check_once(marks: Mapping[Task, Iterable[int]]) -> Verdict:
    """`marks`: of every task of the graph, as they are in the end."""
    wrong = {task: tuple(held) for task, held in marks.items()}
    found = [
        f"the marks of step {step} of lane {rank} are {held}, not 1 each"
        for (rank, step), held in sorted(wrong.items())
        if set(held) != {1}
    ]
    return judge(found, checked=len(wrong), what="tasks")


def check_tokens(runs: Iterable[Run], held: Mapping[Task, int], incarnation: int) -> Verdict:
    """`held`: by task, its number in the end. `incarnation`: the last one of the cluster."""
    granted: dict[Task, set[int]] = {}
    ended: dict[Task, Run] = {}
    found: list[str] = []
    for run in runs:
        granted.setdefault(run.task, set()).add(run.token)
        if run.end == "ticked" and run.incarnation == incarnation:
            other = ended.setdefault(run.task, run)
            if other.token != run.token:
                found.append(f"{run} was ended, and so was {other}")
    for task, token in sorted(held.items()):
        rank, step = task
        if token not in granted.get(task, set()):
            found.append(f"step {step} of lane {rank} holds {token}, which nobody was granted")
        elif task in ended and ended[task].token != token:
            found.append(f"{ended[task]} was ended, but token {token} is there")
    return judge(found, checked=len(held), what="tasks")


def check_order(runs: Iterable[Run]) -> Verdict:
    """Has everybody begun with what its task comes after, and not with what it had done already?"""
    seen = list(runs)
    return judge(_out_of_order(seen), checked=len(seen), what="tasks that were begun")


def _out_of_order(runs: Iterable[Run]) -> Iterator[str]:
    for run in runs:
        for rank, step in run.missing:
            yield f"{run}, did not see all of step {step} of lane {rank}"
        if any(run.own):
            yield f"{run}, saw its own marks {run.own}"


def check_alone(runs: Iterable[Run]) -> Verdict:
    """Of tasks of an exclusive group no two run at the same time."""
    whole = [run for run in runs if len(run.shared) > 1]
    found = [f"{run}, saw {run.shared}" for run in whole if len(set(run.shared)) > 1]
    return judge(found, checked=len(whole), what="tasks of an exclusive group")


def check_progress(claims: Iterable[Claim]) -> Verdict:
    """etcd is never ahead of the shards."""
    seen = list(claims)
    found = [
        f"at {claim.at_ns / 1e9:.3f} s etcd said that lane {claim.rank} had done step "
        f"{claim.done}, a shard had come to {claim.held}"
        for claim in seen
        if claim.held < claim.done
    ]
    return judge(found, checked=len(seen), what="steps that were recorded")

"""What etcd says is a checkpoint can be restored, from its first moment on, as long as it says so.

Judged is what lay in the object store when etcd first named a checkpoint, what was needed when
objects were deleted, and what is there in the end. What a fault has damaged is excused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from resilient_ps.chaos.checkers.verdict import Verdict, judge


class Publication(NamedTuple):
    """etcd names a checkpoint. `problem`: what was wrong with it then; `excused`: by a fault.

    `etcd`: how often etcd had been lost before. What is found in the store is named again then.
    """

    world_ns: int
    id: str
    problem: str = ""
    excused: bool = False
    etcd: int = 0


class Sweep(NamedTuple):
    """A process deletes objects. `needed`: those of them that were needed then, and by whom."""

    world_ns: int
    process: str
    deleted: int
    needed: tuple[tuple[str, str], ...] = ()


def check_published(
    publications: Iterable[Publication], in_the_end: Mapping[str, str] | None = None
) -> Verdict:
    """`in_the_end`: by id, what is wrong with checkpoints that are good according to etcd."""
    seen = list(publications)
    violations = [
        f"checkpoint {each.id} was published at {each.world_ns / 1e9:.3f} s, though {each.problem}"
        for each in seen
        if each.problem and not each.excused
    ]
    times = Counter((each.id, each.etcd) for each in seen)
    twice = sorted({id for (id, _), count in times.items() if count > 1})
    violations += [f"checkpoint {name} was published twice" for name in twice]
    ends = in_the_end or {}
    violations += [f"checkpoint {name} cannot be used: {why}" for name, why in ends.items() if why]
    return judge(violations, checked=len(seen), what="checkpoints")


def check_swept(sweeps: Iterable[Sweep]) -> Verdict:
    """Nothing was deleted that anybody needed. Where nothing was deleted, that holds."""
    violations = [
        f"{sweep.process} deleted {name} at {sweep.world_ns / 1e9:.3f} s, which {who} needs"
        for sweep in sweeps
        for name, who in sweep.needed
    ]
    return judge(violations, checked=1, what="deletions")

"""Incarnations of the cluster only grow, and every worker is told when one ends.

Two sources are judged: every configuration that etcd held (`check_incarnations`), also after etcd
itself was lost: a number that was used once is never used again, because the object store keeps a
marker for each; and what processes saw (`check_told`): they take nothing from another incarnation
than the one in which they believe to be, and after a rollback no call succeeds any more that
begins in the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History


class Configured(NamedTuple):
    """etcd got a configuration. `etcd`: which one, counted from 0: they may be lost.

    `marked`: did the object store hold the incarnation's marker?
    """

    world_ns: int
    incarnation: int
    etcd: int
    marked: bool


class Rollback(NamedTuple):
    """From this moment on the cluster is in this incarnation."""

    world_ns: int
    incarnation: int


def check_incarnations(configured: Iterable[Configured]) -> Verdict:
    """`configured` in the order of time. Every incarnation is above all before it, and marked."""
    seen = list(configured)
    violations: list[str] = []
    for before, after in pairwise(seen):
        where = f"incarnation {after.incarnation} at {after.world_ns / 1e9:.3f} s: "
        if after.incarnation < before.incarnation:
            violations.append(where + f"it was {before.incarnation} before")
        if after.etcd != before.etcd and after.incarnation == before.incarnation:
            violations.append(where + "it was used before etcd was lost")
    violations += [
        f"incarnation {each.incarnation} at {each.world_ns / 1e9:.3f} s: it has no marker"
        for each in seen
        if not each.marked
    ]
    return judge(violations, checked=len(seen), what="configurations")


def rollbacks_of(configured: Iterable[Configured]) -> list[Rollback]:
    """When the incarnation changed."""
    return [
        Rollback(after.world_ns, after.incarnation)
        for before, after in pairwise(configured)
        if after.incarnation != before.incarnation
    ]


def check_told(
    history: History,
    rollbacks: Iterable[Rollback],
    lives: Mapping[str, int],
    *,
    settle_ns: int,
) -> Verdict:
    """`lives`: by process, the incarnation in which it believes to be. A process that goes on in
    another one has another name.

    `settle_ns`: how long after a rollback a server may still not have heard of it.
    """
    ends_ns: dict[int, int] = {}  # by incarnation: when the cluster left it
    for rollback in rollbacks:
        for incarnation in range(1, rollback.incarnation):
            ends_ns.setdefault(incarnation, rollback.world_ns)
    violations: list[str] = []
    for sight in history.sights():
        for shard, position in enumerate(sight.shards):
            if position.epoch.incarnation > sight.incarnation:
                violations.append(
                    f"{sight.process} took an answer of shard {shard} in incarnation "
                    f"{position.epoch.incarnation} while it was in {sight.incarnation}"
                )
    for operation in history.operations():
        ended_ns = ends_ns.get(lives.get(operation.invoked.process, 0))
        late = ended_ns is not None and operation.invoked.at_ns > ended_ns + settle_ns
        if late and operation.outcome == "ok" and operation.invoked.action != "open":
            violations.append(
                f"a {operation.invoked.action} of {operation.invoked.process} succeeded, which "
                f"began {(operation.invoked.at_ns - (ended_ns or 0)) / 1e9:.3f} s after its "
                "incarnation had ended"
            )
    return judge(violations, checked=len(lives), what="processes")


def check_all_told(latest: Mapping[str, int], incarnation: int) -> Verdict:
    """`latest`: by rank's last process, in which incarnation it ended: it is the cluster's."""
    violations = [
        f"{process} has ended in incarnation {ended}, and the cluster is in {incarnation}"
        for process, ended in latest.items()
        if ended != incarnation
    ]
    return judge(violations, checked=len(latest), what="processes")

"""No answer after the sender's lease: by its own clock, and by what etcd still held.

A primary may answer as long as its lease is provably valid, by its own monotonic clock, counted
from when the last good renewal was sent. By then etcd has not let the lease end (a lease that is
armed again, because etcd changed its leader, ends later, never earlier): an answer that was sent
when etcd had given the lease away means that a successor may have been elected already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.checkers.writers import BY_ANYBODY
from resilient_ps.messages import Status


class Timed(Protocol):
    """An answer with the moments that matter. `world_ns`: the time of the world, or of etcd.

    `deadline_ns`: when the sender's lease ends by the sender's clock, `granted_ns`: when it ends
    by etcd's, both as known at the moment of sending; 0: there is none (any more).
    """

    @property
    def world_ns(self) -> int: ...
    @property
    def local_ns(self) -> int: ...
    @property
    def server(self) -> str: ...
    @property
    def shard(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def deadline_ns(self) -> int: ...
    @property
    def granted_ns(self) -> int: ...


def check_own_clock(answers: Iterable[Timed]) -> Verdict:
    """No primary's answer left after its sender's deadline, by the sender's clock."""
    violations: list[str] = []
    checked = 0
    for answer in answers:
        if answer.status in BY_ANYBODY:
            continue
        checked += 1
        if answer.local_ns > answer.deadline_ns:
            late_ns = answer.local_ns - answer.deadline_ns
            violations.append(_who(answer) + f"{_ms(late_ns)} after its lease, by its own clock")
    return judge(violations, checked=checked, what="answers of primaries")


def check_granted(answers: Iterable[Timed], *, tolerance_ns: int = 0) -> Verdict:
    """No primary's answer left after etcd had let its lease end.

    `tolerance_ns`: by how much a slow clock may stretch one lease.
    """
    violations: list[str] = []
    checked = 0
    for answer in answers:
        if answer.status in BY_ANYBODY:
            continue
        checked += 1
        if not answer.granted_ns:
            violations.append(_who(answer) + "when etcd did not hold its lease any more")
        elif answer.world_ns > answer.granted_ns + tolerance_ns:
            late_ns = answer.world_ns - answer.granted_ns
            violations.append(_who(answer) + f"{_ms(late_ns)} after its lease had ended in etcd")
    return judge(violations, checked=checked, what="answers of primaries")


def _who(answer: Timed) -> str:
    return f"{answer.server} answered for shard {answer.shard} at {_ms(answer.world_ns)}, "


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"

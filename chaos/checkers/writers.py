"""One writer per shard and epoch; epochs only grow.

Two sources are judged: what servers said (`check_writers`: who answered for a shard, in which
epoch), and what etcd held (`check_epochs`: every value that a shard's record had).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.ids import Epoch
from resilient_ps.messages import Status

BY_ANYBODY = frozenset({Status.NOT_OWNER, Status.ROLLED_BACK})
"""What servers answer that are not primary of the shard that they are asked for."""


class Spoken(Protocol):
    """A server's answer for a shard: who sent it, and in which epoch it says to be primary."""

    @property
    def world_ns(self) -> int: ...
    @property
    def shard(self) -> int: ...
    @property
    def process_id(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def lsn(self) -> int: ...


def check_writers(answers: Iterable[Spoken], elected: Mapping[tuple[int, Epoch], int]) -> Verdict:
    """`answers` in the order of time; `elected`: by (shard, epoch), the process that etcd named.

    Some answers are made by anybody. Every other one is a primary's: in one epoch they
    all come from one process, the one that was elected, and a process's own epochs and lsns only
    grow (answers of one moment leave in any order: they go to several clients).
    """
    writers: dict[tuple[int, Epoch], int] = {}
    latest: dict[tuple[int, int], tuple[Epoch, int, int]] = {}
    violations: list[str] = []
    for answer in answers:
        if answer.status in BY_ANYBODY:
            continue
        shard, epoch, process = answer.shard, answer.epoch, answer.process_id
        writer = writers.setdefault((shard, epoch), process)
        if writer != process:
            violations.append(_in(shard, epoch) + f"processes {writer} and {process} both answered")
        before = latest.get((shard, process))
        back = before is not None and (epoch, answer.lsn) < before[:2]
        if before is not None and back and answer.world_ns > before[2]:
            violations.append(
                _in(shard, epoch) + f"process {process} answered at lsn {answer.lsn} "
                f"after epoch {_name(before[0])} lsn {before[1]}"
            )
        if not back:
            latest[shard, process] = epoch, answer.lsn, answer.world_ns
    violations += _unelected(writers, elected)
    return judge(dict.fromkeys(violations), checked=len(writers), what="answers of primaries")


def _unelected(
    writers: Mapping[tuple[int, Epoch], int], elected: Mapping[tuple[int, Epoch], int]
) -> Iterator[str]:
    if not elected:
        return  # this source is not there
    for (shard, epoch), process in writers.items():
        if elected.get((shard, epoch)) != process:
            yield _in(shard, epoch) + f"process {process} answered, which was not elected"


def check_epochs(records: Iterable[ShardRecord]) -> Verdict:
    """`records`: every value of every shard's record, in the order of etcd's revisions.

    The epoch only grows, and it grows with every change of the primary; a primary was in the
    in-sync set before it was elected.
    """
    latest: dict[int, ShardRecord] = {}
    violations: list[str] = []
    for record in records:
        before = latest.get(record.shard)
        if before is not None:
            violations += _steps(before, record)
        latest[record.shard] = record
    return judge(violations, checked=len(latest), what="records of shards")


def elected_by(records: Iterable[ShardRecord]) -> dict[tuple[int, Epoch], int]:
    """By (shard, epoch): the primary's process, as these records name it."""
    return {(r.shard, r.epoch): r.primary_process for r in records if r.primary}


def _steps(before: ShardRecord, after: ShardRecord) -> Iterator[str]:
    where = _in(after.shard, after.epoch)
    if after.epoch < before.epoch:
        yield where + f"the epoch was {_name(before.epoch)} before"
    if after.leader != before.leader and after.epoch <= before.epoch:
        yield where + f"the primary changed from {before.leader} to {after.leader}"
    elected = after.primary and after.leader != before.leader
    if elected and after.leader not in before.in_sync:
        yield where + f"{after.leader} was elected, which was not in sync: {before.in_sync}"


def _name(epoch: Epoch) -> str:
    return f"{epoch.incarnation}.{epoch.counter}"


def _in(shard: int, epoch: Epoch) -> str:
    return f"shard {shard}, epoch {_name(epoch)}: "

"""What a fault must not do: take a shard's last copy, or etcd's majority.

A shard's copies live in the memory of its in-sync members. A member is a process, not a name: a
server that was started anew holds nothing of what its predecessor held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.coordinator.standing import never_led


def last_copies(
    shards: Iterable[ShardRecord], victim: str, living: Mapping[str, int]
) -> tuple[int, ...]:
    """The shards that nobody would hold if the server `victim` ended.

    `living`: by server, the process that lives now (a paused one does), and is not about to end.
    Which process of the victim's name is the present one is not asked: it may be cut off from etcd.
    """
    return tuple(
        record.shard
        for record in shards
        if not never_led(record)
        and any(member.server == victim for member in record.in_sync)
        and not any(
            member.server != victim and living.get(member.server) == member.process
            for member in record.in_sync
        )
    )


def keeps_majority(running: Iterable[str], victim: str, members: int) -> bool:
    """Is more than half of so many members left when one of the `running` ones is gone?"""
    return len(set(running) - {victim}) > members // 2

"""Plans of the coordinator: who is on the ring, and which servers are to hold each shard.

Pure functions of what is in etcd. What is wanted changes in small steps: with every change of the
ring the shards are placed anew, starting from where they are, so that about 1/N of them move; and a
server is given another copy to make only when it has none under way. Shards with too few copies
come first. A shard whose in-sync members are all dead is left alone: nobody can copy it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from resilient_ps.coordinator.placement import Placement, place
from resilient_ps.coordinator.records import (
    ClusterConfig,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.ring import MAX_MEMBERS, RingMember, ring_of
from resilient_ps.coordinator.standing import Standing, never_led, standing_of
from resilient_ps.ids import Epoch

COPIES_UNDER_WAY = 1  # of one server


def next_ring(
    ring: RingRecord | None,
    servers: Sequence[ServerRecord],
    drains: Collection[str],
    gone: Collection[str],
) -> RingRecord | None:
    """The ring as it is to be; None where it is so already.

    Registered servers are on it, except those that are drained. Others stay until they are among
    the `gone`. A ring never becomes empty: then it stays as it is.
    """
    members = {m.server: m for m in (ring.members if ring is not None else ())}
    for name in sorted({*drains, *gone}):
        members.pop(name, None)
    for server in servers:
        if server.server not in drains and (server.server in members or len(members) < MAX_MEMBERS):
            members[server.server] = RingMember(server.server, server.weight, server.zone)
    wanted = tuple(sorted(members.values()))
    if not wanted or (ring is not None and wanted == ring.members):
        return None
    return RingRecord(1 if ring is None else ring.version + 1, wanted)


def first_records(
    config: ClusterConfig,
    ring: RingRecord,
    records: Sequence[ShardRecord],
    processes: Mapping[str, int],
    nonce: str,
) -> list[ShardRecord]:
    """The first records of shards that have none in this incarnation of the cluster, or whose first
    members died before any led it.

    All their members are in sync, because all begin with the same: nothing, or what a checkpoint
    holds; who is the primary, they decide.
    """
    held = {record.shard: record for record in present(records, config)}
    missing = {shard for shard in range(config.shards) if _is_missing(held.get(shard), processes)}
    living = tuple(member for member in ring.members if member.server in processes)
    if not missing or not living:
        return []
    current = tuple(
        () if shard in missing else held[shard].desired for shard in range(config.shards)
    )
    wanted = place(
        ring_of(living, config.vnodes),
        config.shards,
        config.replicas,
        load_factor=1.0,
        current=current,
    )
    return [
        ShardRecord(
            shard=shard,
            epoch=Epoch(config.incarnation, 0),
            primary="",
            primary_process=0,
            in_sync=tuple(Member(server, processes[server]) for server in wanted[shard]),
            desired=wanted[shard],
            ring_version=ring.version,
            nonce=nonce,
        )
        for shard in sorted(missing)
    ]


def present(records: Sequence[ShardRecord], config: ClusterConfig) -> list[ShardRecord]:
    """The records of this incarnation of the cluster: others are void."""
    return [record for record in records if record.epoch.incarnation == config.incarnation]


def _is_missing(record: ShardRecord | None, processes: Mapping[str, int]) -> bool:
    if record is None:
        return True
    return never_led(record) and not standing_of(record, processes, 1).living


def next_desired(
    config: ClusterConfig,
    ring: RingRecord,
    records: Sequence[ShardRecord],
    processes: Mapping[str, int],
) -> list[ShardRecord]:
    """The records whose `desired` is to change now, the most urgent first.

    Apart from `desired` and `ring_version` they are as they were, their nonce included: it still
    tells whose transaction chose the in-sync set.
    """
    copies = min(config.replicas, len(ring.members))
    records = [record for record in present(records, config) if record.shard < config.shards]
    standings = {record.shard: standing_of(record, processes, copies) for record in records}
    target = _target(config, ring, records, standings)
    room = _room(records, standings, processes)
    changed = []
    for record in sorted(records, key=lambda r: (_urgency(standings[r.shard], copies), r.shard)):
        standing = standings[record.shard]
        if not standing.living:
            continue
        living = {member.server for member in standing.living}
        desired = step_towards(record.desired, target[record.shard], room, living)
        if desired != record.desired:
            room -= set(desired) - set(record.desired)
            changed.append(replace(record, desired=desired, ring_version=ring.version))
    return changed


def step_towards(
    desired: tuple[str, ...],
    target: tuple[str, ...],
    room: Collection[str],
    living: Collection[str],
) -> tuple[str, ...]:
    """The way from `desired` to `target`, as far as the servers that have `room` let it go.

    Servers that have to go stay in the place of those that cannot come yet, the living ones first.
    """
    coming = [server for server in target if server not in desired]
    waiting = [server for server in coming if server not in room]
    if not waiting:
        return target
    if len(waiting) == len(coming):
        return desired
    going = [server for server in desired if server not in target]
    going.sort(key=lambda server: (server not in living, server != desired[0]))
    servers = [server for server in target if server not in waiting] + going[: len(waiting)]
    first = next(s for s in (target[0], *desired[:1], servers[0]) if s in servers)
    return (first, *(server for server in servers if server != first))


def _target(
    config: ClusterConfig,
    ring: RingRecord,
    records: Sequence[ShardRecord],
    standings: Mapping[int, Standing],
) -> Placement:
    """Where all shards are to be in the end: kept where they are, as far as that is balanced."""
    held: list[tuple[str, ...]] = [()] * config.shards
    for record in records:
        others = (member.server for member in standings[record.shard].living)
        held[record.shard] = tuple(dict.fromkeys((*record.desired, *others)))
    wanted = ring_of(ring.members, config.vnodes)
    return place(wanted, config.shards, config.replicas, current=tuple(held))


def _room(
    records: Sequence[ShardRecord],
    standings: Mapping[int, Standing],
    processes: Mapping[str, int],
) -> set[str]:
    """The servers that may be given one more copy to make."""
    under_way = Counter(
        server
        for record in records
        if standings[record.shard].living
        for server in standings[record.shard].learning
    )
    return {server for server in processes if under_way[server] < COPIES_UNDER_WAY}


def _urgency(standing: Standing, copies: int) -> int:
    return min(len(standing.living), copies)

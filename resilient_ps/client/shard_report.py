"""How each shard stands: its replicas, and what is wrong with it, for `resilient-ps status`.

Two sources: the shards' records in etcd, which say who may serve and who holds what, and what each
server that answered says of its replicas. Servers may be of another version: fields may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.coordinator.standing import never_led, standing_of
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import NO_EPOCH, Epoch

ShardState = Literal["ok", "moving", "under-replicated", "leaderless", "lost", "unplaced"]


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One copy of a shard. `role`: as its server tells, or `dead` or `silent`.

    `lsn`: the log that it holds; `lag`: entries that the primary holds beyond it. `copied_bytes`:
    of a learner, how much of the state it has been sent. `wanted`: it is to hold the shard.
    """

    server: str
    role: str
    in_sync: bool
    wanted: bool
    lsn: int | None = None
    lag: int | None = None
    copied_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShardReport:
    """`trouble` says why nobody serves it, and the remedy; "" where its primary lives.

    `in_sync` are the servers that hold everything, `desired` those that are to hold it, the one
    that is to be primary first. `copies`: in-sync copies that live.
    """

    shard: int
    state: ShardState
    primary: str
    epoch: str
    lsn: int | None
    copies: int
    in_sync: tuple[str, ...]
    desired: tuple[str, ...]
    replicas: tuple[ReplicaReport, ...]
    trouble: str = ""


def shard_reports(view: ClusterView, shards: int, told: Mapping[str, Any]) -> list[ShardReport]:
    """One report per shard. `told`: by server its status, or why there is none."""
    copies = wanted_copies(view)
    replicas = _told_replicas(told)
    records = {record.shard: record for record in view.shards}
    return [
        _report(view, records[number], copies, replicas.get(number, {}))
        if number in records
        else _unplaced(number)
        for number in range(shards)
    ]


def wanted_copies(view: ClusterView) -> int:
    """How many copies each shard is to have: as many as asked for, and as there are servers."""
    servers = view.ring.members if view.ring is not None else view.servers
    asked = view.config.replicas if view.config is not None else 1
    return min(asked, len(servers))


def _told_replicas(told: Mapping[str, Any]) -> dict[int, dict[str, dict[str, Any]]]:
    """By shard and server: what the server says of its replica."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for server, status in sorted(told.items()):
        for replica in status.get("shards", ()) if isinstance(status, dict) else ():
            found.setdefault(int(replica["shard"]), {})[server] = replica
    return found


def _report(
    view: ClusterView, record: ShardRecord, copies: int, told: Mapping[str, dict[str, Any]]
) -> ShardReport:
    standing = standing_of(record, view.processes, copies)
    primary = told.get(record.primary, {})
    return ShardReport(
        shard=record.shard,
        state=standing.state,
        primary=record.primary,
        epoch=_epoch_text(record.epoch),
        lsn=_count(primary, "lsn"),
        copies=len(standing.living),
        in_sync=tuple(member.server for member in record.in_sync),
        desired=record.desired,
        replicas=tuple(_replicas(view, record, told)),
        trouble=_trouble(view, record, standing.state),
    )


def _unplaced(shard: int) -> ShardReport:
    trouble = f"shard {shard} has no primary yet"
    return ShardReport(shard, "unplaced", "", _epoch_text(NO_EPOCH), None, 0, (), (), (), trouble)


def _replicas(
    view: ClusterView, record: ShardRecord, told: Mapping[str, dict[str, Any]]
) -> Iterator[ReplicaReport]:
    primary = told.get(record.primary, {})
    end = _count(primary, "last")
    followers = {str(f.get("server")): f for f in primary.get("followers", ())}
    living = standing_of(record, view.processes, 1).living
    members = {member.server: member for member in record.in_sync}
    others = [server for server, replica in told.items() if replica.get("role") != "empty"]
    first = [record.primary] if record.primary else []
    for server in dict.fromkeys((*first, *members, *record.desired, *others)):
        replica, follower = told.get(server, {}), followers.get(server, {})
        lsn = _count(replica, "last")
        if server == record.primary:
            role = "primary" if members[server] in living else "dead"
        else:
            role = _role(view, members.get(server), server, replica)
        yield ReplicaReport(
            server=server,
            role=role,
            in_sync=server in members,
            wanted=server in record.desired,
            lsn=lsn,
            lag=None if end is None or lsn is None else max(0, end - lsn),
            copied_bytes=_count(follower, "copied_bytes") if follower.get("copying") else None,
        )


def _role(view: ClusterView, member: Member | None, server: str, replica: Mapping[str, Any]) -> str:
    process = view.processes.get(server)
    if process is None or (member is not None and member.process != process):
        return "dead"
    return str(replica.get("role", "silent"))


def _trouble(view: ClusterView, record: ShardRecord, state: str) -> str:
    at = f"shard {record.shard} (epoch {_epoch_text(record.epoch)})"
    if state == "lost":
        return _loss(view, record, at)
    if state != "leaderless":
        return ""
    if not record.primary:
        return f"{at} has no primary yet"
    return f"{at}: its primary {record.primary} {_fate(view, record.leader)}; another takes over"


def _loss(view: ClusterView, record: ShardRecord, at: str) -> str:
    fates = ", ".join(f"{member.server} {_fate(view, member)}" for member in record.in_sync)
    gone = [member.server for member in record.in_sync if member.server not in view.processes]
    text = f"{at} is LOST: of those that held it none lives ({fates})."
    if gone and not never_led(record):
        text += f" It comes back only if the process of {' or '.join(gone)} was paused or cut off."
    return (
        f"{text} Else what it held is gone: begin again with another --cluster; more --replicas "
        "survive more deaths"
    )


def _fate(view: ClusterView, member: Member) -> str:
    return "was restarted, empty" if member.server in view.processes else "is gone"


def _epoch_text(epoch: Epoch) -> str:
    return f"{epoch.incarnation}.{epoch.counter}"


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return int(value) if isinstance(value, int) else None

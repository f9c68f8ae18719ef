"""How each shard stands, as `status` tells it."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_ps.client.shard_report import ShardReport, shard_reports
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import (
    ClusterConfig,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.ring import RingMember
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import Unavailable
from resilient_ps.ids import Epoch

KEYS = ClusterKeys("c")
S1, S2, S3 = Member("s1", 11), Member("s2", 12), Member("s3", 13)


def view(record: ShardRecord | None, living: dict[str, int], replicas: int = 2) -> ClusterView:
    """A cluster of one shard; s1 to s3 are on the ring."""
    config = ClusterConfig("0123456789abcdef", 1, 1, 1, replicas, 1, 64, "s1")
    ring = RingRecord(1, tuple(RingMember(name) for name in ("s1", "s2", "s3")))
    values = {KEYS.config: config.to_bytes(), KEYS.ring: ring.to_bytes()}
    if record is not None:
        values[KEYS.shard(0)] = record.to_bytes()
    for name, process in living.items():
        server = ServerRecord(name, process, "h", 7000, "", "", 1.0, 5, "0.1", 1, "host")
        values[KEYS.server(name)] = server.to_bytes()
    made = ClusterView(KEYS)
    made.load([KeyValue(key, value, 1, 1, 1) for key, value in values.items()], 9)
    return made


def record(*in_sync: Member, desired: tuple[str, ...] = ("s1", "s2")) -> ShardRecord:
    """The first one leads."""
    return ShardRecord(0, Epoch(1, 4), *in_sync[0], in_sync, desired, 1, "n")


ALL = {"s1": 11, "s2": 12, "s3": 13}


def report(
    found: ShardRecord | None, living: dict[str, int] | None = None, told: Any = None
) -> ShardReport:
    (made,) = shard_reports(view(found, ALL if living is None else living), 1, told or {})
    return made


def primary(**more: Any) -> dict[str, Any]:
    shard = {"shard": 0, "role": "primary", "epoch": [1, 4], "lsn": 18, "last": 20, **more}
    return {"shards": [shard]}


@pytest.mark.parametrize(
    ("found", "living", "state", "copies"),
    [
        (record(S1, S2), ALL, "ok", 2),
        (record(S1, S2, desired=("s2", "s1")), ALL, "moving", 2),
        (record(S1, S2, desired=("s1", "s3")), ALL, "moving", 2),
        (record(S1, S2, S3, desired=("s1", "s3")), ALL, "moving", 3),
        (record(S1), ALL, "under-replicated", 1),
        (record(S1, S2), {"s1": 11}, "under-replicated", 1),
        (record(S1, S2), {"s1": 11, "s2": 99}, "under-replicated", 1),
        (record(S1, S2), {"s2": 12}, "leaderless", 1),
        (record(S1, S2), {"s1": 99, "s2": 98}, "lost", 0),
        (record(S1), {}, "lost", 0),
        (ShardRecord(0, Epoch(1, 0), "", 0, (S1, S2), (), 1, "n"), ALL, "leaderless", 2),
        (None, ALL, "unplaced", 0),
    ],
)
def test_the_worst_that_is_true_of_a_shard_is_its_state(
    found: ShardRecord | None, living: dict[str, int], state: str, copies: int
) -> None:
    made = report(found, living)
    assert (made.state, made.copies) == (state, copies)
    served = state in ("ok", "moving", "under-replicated")
    assert (made.trouble == "") == served


def test_replicas_come_with_their_roles_and_lag_the_primary_first() -> None:
    told = {
        "s1": primary(
            followers=[{"server": "s3", "in_sync": False, "copying": True, "copied_bytes": 4_096}]
        ),
        "s2": {"shards": [{"shard": 0, "role": "backup", "lsn": 17, "last": 19}]},
        "s3": {"shards": [{"shard": 0, "role": "learner", "lsn": 3, "last": 5}]},
    }
    made = report(record(S1, S2, desired=("s1", "s3")), told=told)
    assert (made.lsn, made.epoch, made.in_sync, made.desired) == (
        18,
        "1.4",
        ("s1", "s2"),
        ("s1", "s3"),
    )
    shown = [(r.server, r.role, r.in_sync, r.wanted, r.lag, r.copied_bytes) for r in made.replicas]
    assert shown == [
        ("s1", "primary", True, True, 0, None),
        ("s2", "backup", True, False, 1, None),
        ("s3", "learner", False, True, 15, 4_096),
    ]


def test_servers_that_say_nothing_or_less_are_shown_with_what_is_known() -> None:
    told = {"s1": {"shards": [{"shard": 0}]}, "s2": Unavailable("no answer"), "s3": {}}
    made = report(record(S1, S2), told=told)
    assert made.lsn is None
    shown = [(r.server, r.role, r.lsn, r.lag) for r in made.replicas]
    assert shown == [("s1", "primary", None, None), ("s2", "silent", None, None)]


def test_dead_members_are_shown_as_dead() -> None:
    made = report(record(S1, S2), {"s1": 11, "s2": 99}, {"s1": primary()})
    assert [(r.server, r.role) for r in made.replicas] == [("s1", "primary"), ("s2", "dead")]
    made = report(record(S1, S2), {"s2": 12})
    assert [(r.server, r.role) for r in made.replicas] == [("s1", "dead"), ("s2", "silent")]


def test_a_loss_is_told_with_what_became_of_each_member_and_the_remedy() -> None:
    certain = report(record(S1, S2), {"s1": 99, "s2": 98}).trouble
    assert "shard 0 (epoch 1.4) is LOST: of those that held it none lives" in certain
    assert "(s1 was restarted, empty, s2 was restarted, empty)" in certain
    assert "comes back" not in certain
    assert "begin again with another --cluster" in certain
    perhaps = report(record(S1, S2), {"s1": 99}).trouble
    assert "(s1 was restarted, empty, s2 is gone)" in perhaps
    assert "It comes back only if the process of s2 was paused or cut off." in perhaps


def test_a_shard_between_two_primaries_says_so() -> None:
    told = report(record(S1, S2), {"s2": 12}).trouble
    assert told == "shard 0 (epoch 1.4): its primary s1 is gone; another takes over"
    begun = ShardRecord(0, Epoch(1, 0), "", 0, (S1, S2), (), 1, "n")
    assert report(begun).trouble == "shard 0 (epoch 1.0) has no primary yet"

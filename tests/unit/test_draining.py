"""Draining a server, as users ask for it: marks, what is left, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilient_ps.client.draining import Draining
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Kv, Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import (
    ClusterConfig,
    DrainRecord,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.ring import RingMember
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound
from resilient_ps.ids import Epoch

KEYS = ClusterKeys("c")


def put(kv: Kv, key: bytes, value: bytes) -> None:
    kv.txn(Txn((), (Put(key, value),)))


def delete(kv: Kv, key: bytes) -> None:
    kv.txn(Txn((), (Delete(key),)))


def member(name: str) -> Member:
    return Member(name, 100 + int(name[1:]))


def shard(kv: Kv, number: int, in_sync: str, desired: str) -> None:
    """The first of `in_sync` leads."""
    members = tuple(member(name) for name in in_sync.split())
    wanted = tuple(desired.split())
    record = ShardRecord(number, Epoch(1, 1), *members[0], members, wanted, 1, "n")
    put(kv, KEYS.shard(number), record.to_bytes())


def cluster(servers: int = 3, *, replicas: int = 2, min_in_sync: int = 1) -> Kv:
    kv = MemoryClient(MemoryKv())
    config = ClusterConfig("0123456789abcdef", 1, 3, 1, replicas, min_in_sync, 64, "s1")
    put(kv, KEYS.config, config.to_bytes())
    put(kv, KEYS.coordinator_leader, b"{}")
    names = [f"s{number + 1}" for number in range(servers)]
    for name in names:
        process = member(name).process
        record = ServerRecord(name, process, "127.0.0.1", 7000, "", "", 1.0, 5, "0.1", 1, "host")
        put(kv, KEYS.server(name), record.to_bytes())
    put(kv, KEYS.ring, RingRecord(1, tuple(RingMember(name) for name in names)).to_bytes())
    if servers == 3:
        shard(kv, 0, "s1 s2", "s1 s2")
        shard(kv, 1, "s2 s3", "s2 s3")
        shard(kv, 2, "s3 s1", "s3 s1")
    return kv


def test_a_server_is_marked_and_what_it_holds_is_told() -> None:
    kv = cluster()
    report = Draining(kv, "c", "s2").begin()
    assert (report.state, report.alive) == ("draining", True)
    assert (report.primary_of, report.member_of, report.promised, report.left) == (1, 2, 0, 2)
    assert report.hints == ()
    (mark,) = kv.read(KEYS.drains, prefix=True).items
    assert DrainRecord.from_bytes(mark.value, mark.key).server == "s2"
    assert Draining(kv, "c", "s2").begin() == report  # marked already


def test_a_drain_ends_when_the_server_holds_nothing() -> None:
    kv = cluster()
    draining = Draining(kv, "c", "s2")
    draining.begin()
    looks = draining.wait(deadline_s=5)
    assert next(looks).left == 2
    shard(kv, 0, "s1 s3", "s1 s3")
    assert next(looks).left == 1
    shard(kv, 1, "s3 s1", "s3 s1")
    last = next(looks)
    assert (last.state, last.left) == ("drained", 0)
    assert list(looks) == []


def test_copies_that_it_was_to_make_are_counted() -> None:
    kv = cluster()
    shard(kv, 2, "s3 s1", "s3 s2")
    report = Draining(kv, "c", "s2").begin()
    assert (report.member_of, report.promised, report.left) == (2, 1, 3)


def test_a_wait_ends_at_its_deadline_and_the_mark_stays() -> None:
    kv = cluster()
    draining = Draining(kv, "c", "s2")
    draining.begin()
    delete(kv, KEYS.coordinator_leader)
    looks = draining.wait(deadline_s=0.01)
    next(looks)
    with pytest.raises(DeadlineExceeded, match=r"still holds 2 shards .* No coordinator"):
        next(looks)
    assert draining.report().state == "draining"


def test_a_wait_ends_when_somebody_takes_the_mark_away() -> None:
    kv = cluster()
    draining = Draining(kv, "c", "s2")
    draining.begin()
    looks = draining.wait(deadline_s=5)
    next(looks)
    Draining(kv, "c", "s2").cancel()
    with pytest.raises(BadInput, match="was cancelled"):
        next(looks)


def test_a_drain_can_be_taken_back_once() -> None:
    kv = cluster()
    draining = Draining(kv, "c", "s2")
    draining.begin()
    assert draining.cancel().state == "serving"
    with pytest.raises(BadInput, match="server 's2' is not being drained"):
        draining.cancel()


def test_a_dead_server_may_be_drained_so_that_nobody_waits_for_it() -> None:
    kv = cluster()
    delete(kv, KEYS.server("s2"))
    report = Draining(kv, "c", "s2").begin()
    assert (report.state, report.alive, report.lost) == ("draining", False, 0)
    shard(kv, 0, "s2", "s2")
    assert Draining(kv, "c", "s2").report().lost == 1
    assert "1 of its shards are lost" in Draining(kv, "c", "s2").report().hints[-1]


@pytest.mark.parametrize(
    ("kv", "name", "error", "says"),
    [
        (cluster, "s9", NotFound, "no server 's9'; servers: s1, s2, s3"),
        (cluster, "no good", BadInput, "cannot name a server"),
        (lambda: cluster(1), "s1", BadInput, "is the last one that is not drained"),
        (lambda: cluster(2, min_in_sync=2), "s1", BadInput, "fewer than 2 hold"),
    ],
)
def test_what_cannot_be_drained_is_refused(
    kv: Callable[[], Kv], name: str, error: type[Exception], says: str
) -> None:
    store = kv()
    with pytest.raises(error, match=says):
        Draining(store, "c", name).begin()
    assert store.read(KEYS.drains, prefix=True).items == ()


def test_the_last_server_that_is_not_drained_stays() -> None:
    kv = cluster()
    Draining(kv, "c", "s1").begin()
    report = Draining(kv, "c", "s2").begin()
    assert report.hints == ("Other servers: s3. So shards will have 1 copy, not 2.",)
    with pytest.raises(BadInput, match="server 's3' is the last one"):
        Draining(kv, "c", "s3").begin()


def test_an_unknown_cluster_is_named() -> None:
    with pytest.raises(NotFound, match="no cluster 'other' in this etcd; clusters: c"):
        Draining(cluster(), "other", "s1").begin()

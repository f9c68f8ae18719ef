"""When a shard is lost: all its members are missing for the grace time, and nobody leads it."""

from __future__ import annotations

from dataclasses import replace

from candidates import KEYS, Etcd

from resilient_ps.coordinator.kv import Read, Txn
from resilient_ps.coordinator.loss import Losses
from resilient_ps.coordinator.memory import Compacted
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import Epoch

GRACE_NS = 10
S1, S2 = Member("s1", 101), Member("s2", 102)
LED = ShardRecord(0, Epoch(1, 4), *S1, (S1, S2), ("s1", "s2"), 1, "n")


def seen(*living: str, record: ShardRecord = LED, leader: bool = False) -> ClusterView:
    etcd, view = Etcd(), ClusterView(KEYS)
    etcd.configure(shards=1)
    etcd.put(KEYS.shard(0), record.to_bytes())
    if leader:
        etcd.put(KEYS.leader(0), b"somebody")
    for name in living:
        etcd.server(name)
    found = etcd.model.apply(Read(KEYS.prefix, prefix=True), 0)
    view.load(found.items, found.revision)
    return view


def lost(view: ClusterView, *times_ns: int) -> list[list[int]]:
    losses = Losses(view, GRACE_NS)
    return [losses.found(at_ns) for at_ns in times_ns]


def test_a_shard_is_lost_when_its_members_have_been_missing_for_the_grace_time() -> None:
    assert lost(seen("s3"), 5, 14, 15, 30) == [[], [], [0], [0]]


def test_one_living_member_is_enough() -> None:
    assert lost(seen("s2"), 0, 100) == [[], []]


def test_a_restarted_server_is_no_member() -> None:
    restarted = replace(LED, in_sync=(Member("s1", 7),), primary_process=7)
    assert lost(seen("s1", record=restarted), 0, 100) == [[], [0]]


def test_who_comes_back_in_time_gets_the_whole_time_again() -> None:
    view = seen("s3")
    losses = Losses(view, GRACE_NS)
    assert losses.found(0) == []
    back = seen("s2")
    view.load(tuple(back.items.values()), 9)
    assert losses.found(9) == []
    view.load(tuple(seen("s3").items.values()), 10)
    assert [losses.found(at_ns) for at_ns in (11, 20, 21)] == [[], [], [0]]


def test_a_shard_with_a_leader_key_is_not_lost() -> None:
    assert lost(seen("s3", leader=True), 0, 100) == [[], []]


def test_what_is_known_of_lost_shards_follows_every_change() -> None:
    """Of a record, of a leader key, and of the servers: each look equals one at everything."""
    etcd, view = Etcd(), ClusterView(KEYS)
    etcd.configure(shards=3)
    etcd.server("s3")
    losses = Losses(view, GRACE_NS)
    watch = etcd.model.watch(KEYS.prefix, 1)

    def leaderless() -> list[int]:
        batches = etcd.model.poll(watch)
        assert not isinstance(batches, Compacted)
        for batch in batches:
            view.apply(batch)
        found = losses.leaderless()
        assert found == Losses(view, GRACE_NS).leaderless()
        return found

    assert leaderless() == []
    for number in (2, 0, 1, 3):  # there is no shard 3
        etcd.put(KEYS.shard(number), replace(LED, shard=number).to_bytes())
    assert leaderless() == [0, 1, 2]
    etcd.put(KEYS.leader(1), b"somebody")
    assert leaderless() == [0, 2]
    etcd.put(KEYS.shard(2), replace(LED, shard=2, in_sync=(S1, Member("s3", 103))).to_bytes())
    assert leaderless() == [0]
    etcd.delete(KEYS.leader(1))
    assert leaderless() == [0, 1]
    etcd.server("s2")
    assert leaderless() == []
    etcd.delete(KEYS.server("s2"))
    etcd.delete(KEYS.shard(0))
    assert leaderless() == [1]


def test_what_was_never_led_or_belongs_to_another_incarnation_cannot_be_lost() -> None:
    never = replace(LED, epoch=Epoch(1, 0), primary="", primary_process=0)
    void = replace(LED, epoch=Epoch(2, 4))
    assert lost(seen("s3", record=never), 0, 100) == [[], []]
    assert lost(seen("s3", record=void), 0, 100) == [[], []]


def test_all_times_begin_anew_when_it_is_dropped() -> None:
    losses = Losses(seen("s3"), GRACE_NS)
    losses.found(0)
    losses.drop()
    assert [losses.found(at_ns) for at_ns in (12, 22)] == [[], [0]]


def test_its_guards_hold_while_the_shard_is_as_it_was_and_nobody_leads_it() -> None:
    etcd, view = Etcd(), ClusterView(KEYS)
    etcd.put(KEYS.shard(0), LED.to_bytes())
    found = etcd.model.apply(Read(KEYS.prefix, prefix=True), 0)
    view.load(found.items, found.revision)
    guards = Losses(view, GRACE_NS).guards(0)
    assert etcd.model.apply(Txn(guards, ()), 0).succeeded
    etcd.put(KEYS.leader(0), b"somebody")
    assert not etcd.model.apply(Txn(guards, ()), 0).succeeded
    etcd.delete(KEYS.leader(0))
    etcd.put(KEYS.shard(0), LED.to_bytes())
    assert not etcd.model.apply(Txn(guards, ()), 0).succeeded

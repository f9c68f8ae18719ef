"""The ring and the desired servers in etcd: grace times, drains, and who may change them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from candidates import KEYS, Candidate, Etcd

from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import MAX_TXN_OPS, KvCall, KvFailed, Txn
from resilient_ps.coordinator.reconciliation import DESIRED_REF, RING_REF
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.errors import Unavailable
from resilient_ps.ids import Epoch

GRACE_S = 10
WISHES = ClusterWishes(grace_s=GRACE_S)


def cluster(servers: int = 3, shards: int = 6, replicas: int = 2) -> Candidate:
    """The coordinator of a cluster that is at rest; the first member of each shard leads it."""
    etcd = Etcd()
    etcd.configure(shards, servers, replicas)
    for number in range(servers):
        etcd.server(f"s{number + 1}")
    candidate = Candidate(etcd, wishes=WISHES)
    candidate.settle()
    for record in candidate.view.shards:
        leader = record.in_sync[0]
        led = replace(
            record, epoch=Epoch(1, 1), primary=leader.server, primary_process=leader.process
        )
        etcd.put(KEYS.shard(record.shard), led.to_bytes())
    candidate.settle()
    return candidate


def calls(candidate: Candidate) -> list[KvCall]:
    return [effect for effect in candidate.effects if isinstance(effect, KvCall)]


def look_for(candidate: Candidate, seconds: int) -> None:
    """Time passes; whatever is asked for is done."""
    for _ in range(seconds):
        candidate.look()
        candidate.perform()


def copied(candidate: Candidate, number: int) -> None:
    """The shard's primary has brought about what is desired."""
    old = candidate.etcd.shard(number)
    members = tuple(Member(name, 100 + int(name[1:])) for name in old.desired)
    new = replace(old, in_sync=members, primary=members[0][0], primary_process=members[0][1])
    candidate.etcd.put(KEYS.shard(number), new.to_bytes())


def to_rest(candidate: Candidate) -> list[ShardRecord]:
    for _ in range(40):
        look_for(candidate, 2)
        for record in candidate.view.shards:
            if {member.server for member in record.in_sync} != set(record.desired):
                copied(candidate, record.shard)
    candidate.see()
    return candidate.view.shards


def test_the_ring_is_written_before_the_first_shard() -> None:
    etcd = Etcd()
    etcd.configure(shards=2, servers=2)
    etcd.server("s1")
    candidate = Candidate(etcd)
    candidate.settle()
    assert etcd.ring() is None
    etcd.server("s2")
    candidate.look()
    assert [call.ref for call in calls(candidate)] == [RING_REF]
    candidate.perform()
    assert etcd.members() == ["s1", "s2"]
    assert etcd.get(KEYS.shard(0)) is None


def test_a_server_that_is_gone_leaves_the_ring_after_the_grace_time() -> None:
    candidate = cluster()
    candidate.etcd.delete(KEYS.server("s2"))
    look_for(candidate, GRACE_S)
    assert candidate.etcd.members() == ["s1", "s2", "s3"]
    look_for(candidate, 2)
    assert candidate.etcd.members() == ["s1", "s3"]
    assert candidate.etcd.ring().version == 2  # type: ignore[union-attr]


def test_who_comes_back_within_the_grace_time_has_all_of_it_again() -> None:
    candidate = cluster()
    for _ in range(3):
        candidate.etcd.delete(KEYS.server("s2"))
        look_for(candidate, GRACE_S)
        candidate.etcd.server("s2")
        look_for(candidate, 1)
    assert candidate.etcd.members() == ["s1", "s2", "s3"]


def test_grace_times_begin_anew_when_the_coordinator_loses_its_lease() -> None:
    candidate = cluster()
    candidate.etcd.delete(KEYS.server("s2"))
    look_for(candidate, GRACE_S)
    candidate.controller.look(0, candidate.now_ns)
    look_for(candidate, GRACE_S)
    assert candidate.etcd.members() == ["s1", "s2", "s3"]
    look_for(candidate, 2)
    assert candidate.etcd.members() == ["s1", "s3"]


def test_a_server_that_came_back_unseen_stays_on_the_ring() -> None:
    candidate = cluster()
    candidate.etcd.delete(KEYS.server("s2"))
    look_for(candidate, GRACE_S)
    candidate.look()
    candidate.etcd.server("s2")
    assert candidate.perform() == [False]
    assert candidate.etcd.members() == ["s1", "s2", "s3"]


def test_a_drained_server_loses_its_place_at_once_and_its_shards_one_by_one() -> None:
    candidate = cluster()
    candidate.etcd.drain("s2")
    look_for(candidate, 1)
    assert candidate.etcd.members() == ["s1", "s3"]
    records = to_rest(candidate)
    assert all(set(record.desired) == {"s1", "s3"} for record in records)
    assert {record.ring_version for record in records} <= {1, 2}


def test_the_mark_of_a_drain_goes_when_the_server_has_been_gone_for_the_grace_time() -> None:
    candidate = cluster()
    candidate.etcd.drain("s2")
    to_rest(candidate)
    candidate.etcd.delete(KEYS.server("s2"))
    look_for(candidate, GRACE_S)
    assert candidate.etcd.get(KEYS.drain("s2")) is not None
    look_for(candidate, 2)
    assert candidate.etcd.get(KEYS.drain("s2")) is None
    candidate.etcd.server("s2")
    look_for(candidate, 1)
    assert candidate.etcd.members() == ["s1", "s2", "s3"]


def test_only_the_desired_servers_of_a_record_change() -> None:
    candidate = cluster()
    before = {record.shard: record for record in candidate.view.shards}
    candidate.etcd.server("s4")
    look_for(candidate, 4)
    after = {number: candidate.etcd.shard(number) for number in before}
    changed = [number for number in before if after[number] != before[number]]
    assert changed
    for number in changed:
        old = before[number]
        again = replace(after[number], desired=old.desired, ring_version=old.ring_version)
        assert again == old


@pytest.mark.parametrize("key", ["coordinator", "shard", "config"])
def test_a_plan_fails_where_something_changed_meanwhile(key: str) -> None:
    candidate = cluster()
    candidate.etcd.server("s4")
    look_for(candidate, 1)  # the ring
    candidate.look()
    (call,) = calls(candidate)
    assert call.ref == DESIRED_REF
    assert isinstance(call.request, Txn)
    put = call.request.success[0]
    changed = {
        "coordinator": KEYS.coordinator_leader,
        "shard": put.key,
        "config": KEYS.config,
    }[key]
    value = candidate.etcd.get(changed)
    assert value is not None
    candidate.etcd.put(changed, value)
    assert candidate.perform() == [False]


def test_a_plan_whose_answer_was_lost_is_made_anew() -> None:
    candidate = cluster()
    candidate.etcd.server("s4")
    look_for(candidate, 1)
    candidate.look()
    (call,) = calls(candidate)
    assert candidate.look() == []  # one at a time
    failed = KvFailed(call.ref, Unavailable("no answer"), unknown=True)
    candidate.controller.handle(failed, candidate.now_ns)
    candidate.look()
    (again,) = calls(candidate)
    assert again.request == call.request


def test_first_records_rely_on_their_members_being_those_that_live() -> None:
    etcd = Etcd()
    etcd.configure(shards=2, servers=1)
    etcd.server("s1")
    candidate = Candidate(etcd)
    look_for(candidate, 2)  # election, ring
    candidate.look()
    etcd.delete(KEYS.server("s1"))
    etcd.server("s1")  # restarted
    assert candidate.perform() == [False]
    assert etcd.get(KEYS.shard(0)) is None


def test_first_records_that_do_not_fit_one_transaction_follow_without_a_pause() -> None:
    etcd = Etcd()
    etcd.configure(shards=250, servers=1)
    etcd.server("s1")
    candidate = Candidate(etcd)
    look_for(candidate, 2)  # election, ring
    candidate.look()
    placed = []
    while candidate.perform():
        candidate.see()
        placed.append(len(candidate.view.shards))
        candidate.effects = candidate.controller.look(candidate.lease, candidate.now_ns)
    assert len(placed) == 3
    assert placed[-1] == 250


def test_many_servers_that_vanish_and_come_keep_within_a_transaction() -> None:
    candidate = cluster(servers=60, shards=30)
    for number in range(45):
        candidate.etcd.delete(KEYS.server(f"s{number + 1}"))
        candidate.etcd.server(f"s{number + 200}")
    for _ in range(GRACE_S + 10):
        candidate.look()
        for call in calls(candidate):
            assert isinstance(call.request, Txn)
            assert len(call.request.compares) <= MAX_TXN_OPS
            assert len(call.request.success) <= MAX_TXN_OPS
        candidate.perform()
    assert len(candidate.etcd.members()) == 60


def test_a_ring_that_cannot_be_written_is_reported_once() -> None:
    candidate = cluster()
    value = candidate.etcd.get(KEYS.server("s1"))
    assert value is not None
    for number in range(700):
        name = f"{'x' * 90}{number}"
        text = value.replace(b'"s1"', f'"{name}"'.encode())
        candidate.etcd.put(KEYS.server(name), text)
    candidate.look()
    assert candidate.logs() == ["the ring cannot be changed"]
    candidate.look()
    assert candidate.logs() == []
    assert candidate.etcd.members() == ["s1", "s2", "s3"]


def test_records_of_another_incarnation_are_written_anew_without_their_leader_keys() -> None:
    candidate = cluster(shards=60)
    etcd = candidate.etcd
    for number in range(60):
        etcd.put(KEYS.leader(number), b"a primary of before")
    config = etcd.get(KEYS.config)
    assert config is not None
    etcd.put(KEYS.config, config.replace(b'"incarnation":1', b'"incarnation":2'))
    for _ in range(8):
        candidate.look()
        for call in calls(candidate):
            assert isinstance(call.request, Txn)
            assert len(call.request.compares) <= MAX_TXN_OPS
            assert len(call.request.success) <= MAX_TXN_OPS
        candidate.perform()
    for number in range(60):
        record = etcd.shard(number)
        assert (record.epoch, record.primary, len(record.in_sync)) == (Epoch(2, 0), "", 2)
        assert etcd.get(KEYS.leader(number)) is None

"""Transactions on a shard's record: only the right one can make them, and only once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, LeaseRevoke, Put, Read, Txn, TxnResult
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.coordinator.repeats import is_self_closing, nonce_puts
from resilient_ps.errors import NotFound
from resilient_ps.ids import Epoch
from resilient_ps.replication.claims import Claim, Known, campaign, change, hand_over

KEYS = ClusterKeys("c")
A, B, C = Member("a", 1), Member("b", 2), Member("c", 3)
NONCE = "0123456789abcdef"
RECORD = ShardRecord(5, Epoch(1, 7), "a", 1, (A, B), ("a", "b"), 3, "before")


class Etcd:
    """Holds RECORD, led by a under its lease, and a configuration."""

    def __init__(self, record: ShardRecord = RECORD) -> None:
        self.kv = MemoryKv()
        self.leases = {member: self.kv.grant(5, 0).lease for member in (A, B, C)}
        self.put(KEYS.config, b"config")
        self.put(KEYS.shard(5), record.to_bytes())
        if record.primary:
            self.put(KEYS.leader(5), b"{}", self.leases[record.leader])

    def put(self, key: bytes, value: bytes, lease: int = 0) -> None:
        self.kv.apply(Txn((), (Put(key, value, lease),)), 0)

    def item(self, key: bytes) -> KeyValue | None:
        items = self.kv.apply(Read(key), 0).items
        return items[0] if items else None

    @property
    def known(self) -> Known:
        shard, config = self.item(KEYS.shard(5)), self.item(KEYS.config)
        assert shard is not None
        assert config is not None
        leader = self.item(KEYS.leader(5))
        at = (0, 0) if leader is None else (leader.mod_revision, leader.lease)
        record = ShardRecord.from_bytes(shard.value, shard.key)
        return Known(record, shard.mod_revision, *at, config.mod_revision)

    def end_lease(self, member: Member) -> None:
        self.kv.apply(LeaseRevoke(self.leases[member]), 0)

    def perform(self, claim: Claim) -> TxnResult:
        return self.kv.apply(claim.txn, 0)


def test_without_a_leader_a_member_becomes_primary_of_the_next_epoch() -> None:
    etcd = Etcd()
    etcd.end_lease(A)
    claim = campaign(KEYS, etcd.known, B, etcd.leases[B], 1, NONCE)
    assert etcd.perform(claim).succeeded
    known = etcd.known
    assert known.record == claim.record
    assert (known.record.leader, known.record.epoch) == (B, Epoch(1, 8))
    assert known.record.in_sync == (B,)
    assert known.leader_lease == etcd.leases[B]
    assert (known.record.desired, known.record.ring_version) == (("a", "b"), 3)


@pytest.mark.parametrize(("least", "in_sync"), [(1, (B,)), (2, (A, B))])
def test_the_dead_primary_is_dropped_where_enough_are_left(
    least: int, in_sync: tuple[Member, ...]
) -> None:
    etcd = Etcd()
    etcd.end_lease(A)
    assert campaign(KEYS, etcd.known, B, 1, least, NONCE).record.in_sync == in_sync


def test_a_primary_that_lost_its_lease_and_wins_again_stays_in_sync_with_all() -> None:
    etcd = Etcd()
    etcd.end_lease(A)
    claim = campaign(KEYS, etcd.known, A, etcd.leases[B], 1, NONCE)
    assert (claim.record.in_sync, claim.record.epoch) == ((A, B), Epoch(1, 8))


def test_the_first_primary_leads_with_all_the_others_in_sync() -> None:
    etcd = Etcd(replace(RECORD, primary="", primary_process=0, epoch=Epoch(1, 0)))
    claim = campaign(KEYS, etcd.known, A, etcd.leases[A], 1, NONCE)
    assert etcd.perform(claim).succeeded
    assert (claim.record.in_sync, claim.record.epoch) == ((A, B), Epoch(1, 1))


def test_of_two_campaigns_one_succeeds_and_neither_succeeds_twice() -> None:
    etcd = Etcd(replace(RECORD, in_sync=(A, B, C)))
    etcd.end_lease(A)
    known = etcd.known
    first = campaign(KEYS, known, B, etcd.leases[B], 1, NONCE)
    second = campaign(KEYS, known, C, etcd.leases[C], 1, NONCE[::-1])
    assert [etcd.perform(claim).succeeded for claim in (first, second, first)] == [
        True, False, False,
    ]  # fmt: skip


def test_a_refused_claim_reads_what_stands_there_instead() -> None:
    etcd = Etcd()
    claim = change(KEYS, etcd.known, (A,), NONCE)
    etcd.put(KEYS.shard(5), replace(RECORD, ring_version=4).to_bytes())
    shard, leader = etcd.perform(claim).results
    assert ShardRecord.from_bytes(shard.items[0].value, b"").ring_version == 4  # type: ignore[union-attr]
    assert leader.items[0].lease == etcd.leases[A]  # type: ignore[union-attr]


def test_a_leader_key_is_taken_over_while_it_hangs_on_the_lease_of_the_dead_process() -> None:
    etcd = Etcd()
    claim = campaign(KEYS, etcd.known, B, etcd.leases[B], 1, NONCE)
    assert etcd.perform(claim).succeeded
    assert etcd.known.leader_lease == etcd.leases[B]


def test_a_leader_key_under_another_lease_is_not_taken_over() -> None:
    etcd = Etcd()
    claim = campaign(KEYS, etcd.known, B, etcd.leases[B], 1, NONCE)
    etcd.put(KEYS.leader(5), b"{}", etcd.leases[C])
    assert not etcd.perform(claim).succeeded


def test_a_campaign_of_a_dead_leader_fails_when_its_key_has_gone_and_the_next_succeeds() -> None:
    etcd = Etcd()
    claim = campaign(KEYS, etcd.known, B, etcd.leases[B], 1, NONCE)
    etcd.end_lease(A)
    assert not etcd.perform(claim).succeeded
    assert etcd.perform(campaign(KEYS, etcd.known, B, etcd.leases[B], 1, NONCE)).succeeded


def test_the_in_sync_set_is_changed_by_the_primary_and_nothing_else_with_it() -> None:
    etcd = Etcd()
    before = etcd.known
    assert etcd.perform(change(KEYS, before, (A, C), NONCE)).succeeded
    after = etcd.known
    assert after.record == replace(RECORD, in_sync=(A, C), nonce=NONCE)
    assert after.leader_revision == before.leader_revision


@pytest.mark.parametrize("lost", ["lease", "another leads", "record", "config"])
@pytest.mark.parametrize("kind", ["change", "hand over"])
def test_it_fails_when_anything_that_it_relies_on_has_changed(kind: str, lost: str) -> None:
    etcd = Etcd()
    if kind == "change":
        claim = change(KEYS, etcd.known, (A,), NONCE)
    else:
        claim = hand_over(KEYS, etcd.known, B, etcd.leases[B], NONCE)
    match lost:
        case "lease":
            etcd.end_lease(A)
        case "another leads":
            etcd.put(KEYS.leader(5), b"{}", etcd.leases[A])
        case "record":
            etcd.put(KEYS.shard(5), RECORD.to_bytes())
        case "config":
            etcd.put(KEYS.config, b"config")
    assert not etcd.perform(claim).succeeded


def test_a_hand_over_gives_epoch_and_leader_key_to_the_heir_and_keeps_all_in_sync() -> None:
    etcd = Etcd()
    assert etcd.perform(hand_over(KEYS, etcd.known, B, etcd.leases[B], NONCE)).succeeded
    known = etcd.known
    assert (known.record.leader, known.record.epoch) == (B, Epoch(1, 8))
    assert known.record.in_sync == (A, B)
    assert known.leader_lease == etcd.leases[B]


def test_nothing_is_handed_to_an_heir_without_a_lease() -> None:
    etcd = Etcd()
    claim = hand_over(KEYS, etcd.known, B, etcd.leases[B], NONCE)
    etcd.end_lease(B)
    with pytest.raises(NotFound):
        etcd.perform(claim)
    assert etcd.known.record == RECORD


def test_all_claims_may_be_sent_again_and_are_recognised_by_their_nonce() -> None:
    etcd = Etcd()
    known = etcd.known
    claims = [
        campaign(KEYS, known, B, 1, 1, NONCE),
        change(KEYS, known, (A,), NONCE),
        hand_over(KEYS, known, B, 1, NONCE),
    ]
    for claim in claims:
        assert is_self_closing(claim.txn)
        assert [put.key for put in nonce_puts(claim.txn, claim.nonce)] == [KEYS.shard(5)]
        assert claim.over == known.revision

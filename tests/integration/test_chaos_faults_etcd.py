"""Faults on what etcd keeps: its history, file, room, leases, and all its members at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from struck import AtWork, at_work

from resilient_ps.chaos.live.faults.etcd import NO_SPACE, READ_ANEW
from resilient_ps.chaos.live.maintenance import Maintenance
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.scene import Skipped
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.errors import Unavailable

pytestmark = pytest.mark.skipif(find_etcd() is None, reason="no etcd on the PATH")

PLAN = ClusterPlan(servers=2, workers=0, replicas=2, etcd=1, store="", shards=2)
WATCH_GIVES_UP_S = 4.0


@pytest.fixture(scope="module")
def work() -> Iterator[AtWork]:
    with at_work(PLAN) as working:
        yield working


def test_a_server_that_missed_compacted_history_reads_everything_anew(work: AtWork) -> None:
    fault = work.strike("etcd-compact", "s1", lasts_s=WATCH_GIVES_UP_S)
    assert "s1 noticed" in fault.evidence()
    assert READ_ANEW in work.scene.party("s1").log.read_text()
    assert work.scene.records.look().drains == []  # the marks are gone


def test_a_member_is_defragmented_and_nobody_is_the_worse_for_it(work: AtWork) -> None:
    assert "e0 was defragmented" in work.strike("etcd-defrag", "e0").evidence()


def test_without_room_in_etcd_primaries_go_on_and_nothing_moves(work: AtWork) -> None:
    before = work.scene.records.epochs()
    fault = work.fault("etcd-no-space")
    with work.struck(fault, 1.5 * work.scene.lease_ttl_s), closing(EtcdKv(work.scene.etcd)) as kv:
        with pytest.raises(Unavailable, match=NO_SPACE):
            kv.txn(Txn((), (Put(b"/test", b""),)))
        work.wait_until_all_answer()
    assert work.scene.records.epochs() == before
    assert NO_SPACE in fault.evidence()
    with Maintenance(work.scene.etcd) as member:
        assert member.out_of_space() == []


def test_a_server_that_lost_its_lease_without_room_in_etcd_is_back_when_there_is(
    work: AtWork,
) -> None:
    with work.struck(work.fault("etcd-no-space")):
        revoked = work.fault("lease-revoke", "s1")
        revoked.inject()
    assert "had another one" in revoked.evidence()


def test_a_server_whose_lease_is_revoked_takes_another_one(work: AtWork) -> None:
    fault = work.strike("lease-revoke", "s2")
    assert "had another one" in fault.evidence()


def test_etcd_is_killed_as_a_whole_and_comes_back_with_its_data(work: AtWork) -> None:
    incarnation = work.scene.records.look().config
    fault = work.strike("etcd-restart", lasts_s=1.0)
    assert "other processes now" in fault.evidence()
    assert work.scene.records.look().config == incarnation
    work.scene.claims.claim("e0")  # nobody has it any more
    work.scene.claims.release("e0")


def test_a_server_that_is_dead_is_not_struck(work: AtWork) -> None:
    victim = work.scene.party("s1")
    victim.kill()
    try:
        for kind in ("etcd-compact", "lease-revoke"):
            fault = work.fault(kind, "s1")
            with pytest.raises(Skipped, match="s1 is dead"):
                fault.inject()
            fault.heal()
            assert fault.evidence() == ""
    finally:
        victim.restart()
    work.settle()

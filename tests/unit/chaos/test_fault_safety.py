"""What faults must leave: a copy of each shard, and the majority of etcd."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_ps.chaos.faults.safety import keeps_majority, last_copies
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.ids import Epoch

LIVING = {"s1": 11, "s2": 12, "s3": 13}


def shard(number: int, *members: Member, led: bool = True) -> ShardRecord:
    first = members[0]
    return ShardRecord(
        shard=number,
        epoch=Epoch(1, 1 if led else 0),
        primary=first.server if led else "",
        primary_process=first.process if led else 0,
        in_sync=members,
        desired=tuple(member.server for member in members),
        ring_version=1,
        nonce="",
    )


def lost(shards: Sequence[ShardRecord], victim: str, *doomed: str) -> tuple[int, ...]:
    living = {name: process for name, process in LIVING.items() if name not in doomed}
    return last_copies(shards, victim, living)


def test_a_shard_with_another_living_member_survives() -> None:
    assert lost([shard(0, Member("s1", 11), Member("s2", 12))], "s1") == ()


def test_the_only_member_holds_the_last_copy() -> None:
    shards = [shard(0, Member("s1", 11), Member("s2", 12)), shard(1, Member("s1", 11))]
    assert lost(shards, "s1") == (1,)


def test_a_member_that_is_about_to_end_is_no_other_copy() -> None:
    assert lost([shard(0, Member("s1", 11), Member("s2", 12))], "s1", "s2") == (0,)


def test_a_server_that_was_started_anew_holds_nothing_of_its_predecessor() -> None:
    assert lost([shard(0, Member("s1", 11), Member("s2", 7))], "s1") == (0,)


def test_a_victim_that_is_no_member_endangers_nothing() -> None:
    assert lost([shard(0, Member("s1", 11))], "s3") == ()


def test_a_victim_counts_as_a_member_whichever_process_it_is() -> None:
    """It may be cut off from etcd, which then names an older process, or none."""
    assert lost([shard(0, Member("s1", 99))], "s1") == (0,)


def test_a_shard_that_nobody_ever_led_holds_nothing() -> None:
    assert lost([shard(0, Member("s1", 11), led=False)], "s1") == ()


def test_etcd_keeps_its_majority_while_more_than_half_of_all_members_are_left() -> None:
    assert keeps_majority(["e0", "e1", "e2"], "e0", 3)
    assert not keeps_majority(["e0", "e1"], "e0", 3)
    assert keeps_majority(["e1", "e2"], "e0", 3)  # it is not among them any more
    assert not keeps_majority(["e0"], "e0", 1)

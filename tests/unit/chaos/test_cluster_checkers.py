"""Checkers of the cluster as a whole: writers, epochs, leases, replicas, places, bounds."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from histories import why

from resilient_ps.chaos.checkers.bounds import ClusterSize, check_bounds, check_growth
from resilient_ps.chaos.checkers.identity import check_identity
from resilient_ps.chaos.checkers.layout import check_layout
from resilient_ps.chaos.checkers.leases import check_granted, check_own_clock
from resilient_ps.chaos.checkers.replicas import ReplicaState, check_replicas
from resilient_ps.chaos.checkers.verdict import HOLDS
from resilient_ps.chaos.checkers.writers import check_epochs, check_writers, elected_by
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.ids import Epoch
from resilient_ps.messages import Status


class Said(NamedTuple):
    """An answer of server s1."""

    process_id: int
    epoch: Epoch
    lsn: int
    shard: int = 0
    status: Status = Status.OK
    server: str = "s1"
    world_ns: int = 1_000
    local_ns: int = 5_000
    deadline_ns: int = 6_000
    granted_ns: int = 2_000


FIRST, SECOND = Epoch(1, 1), Epoch(1, 2)
SAID = Said(7, FIRST, 3)

# -- one writer per epoch


def test_one_process_answers_in_each_epoch() -> None:
    said = [SAID, Said(7, FIRST, 3), Said(8, SECOND, 4), Said(7, SECOND, 9, shard=1)]
    elected = {(0, FIRST): 7, (0, SECOND): 8, (1, SECOND): 7}
    assert check_writers(said, elected) == HOLDS
    assert check_writers(said, {}) == HOLDS


def test_two_processes_in_one_epoch_are_convicted() -> None:
    verdict = check_writers([SAID, Said(8, FIRST, 3)], {})
    assert "shard 0, epoch 1.1: processes 7 and 8 both answered" in why(verdict)


def test_an_answer_that_names_another_owner_is_no_primary_s() -> None:
    said = [SAID, Said(8, FIRST, 3, status=Status.NOT_OWNER)]
    assert check_writers(said, {(0, FIRST): 7}) == HOLDS


@pytest.mark.parametrize("later", [Said(7, FIRST, 2), Said(7, Epoch(1, 0), 9)])
def test_a_process_that_goes_back_is_convicted(later: Said) -> None:
    assert check_writers([SAID, later], {}) == HOLDS  # in the same moment, to two clients
    later = later._replace(world_ns=1_001)
    assert "after epoch 1.1 lsn 3" in why(check_writers([SAID, later], {}))


def test_a_process_that_was_not_elected_is_convicted() -> None:
    assert "which was not elected" in why(check_writers([SAID], {(0, FIRST): 9}))
    assert "which was not elected" in why(check_writers([SAID], {(0, SECOND): 7}))


def test_without_answers_nothing_is_told() -> None:
    assert check_writers([], {}).outcome == "unknown"


# -- epochs in etcd

A, B, C = Member("a", 1), Member("b", 2), Member("c", 3)


def record(epoch: Epoch, primary: Member | None, *in_sync: Member, shard: int = 0) -> ShardRecord:
    name, process = primary or ("", 0)
    desired = tuple(member.server for member in in_sync)
    return ShardRecord(shard, epoch, name, process, in_sync, desired, 1, "n")


BORN = record(Epoch(1, 0), None, A, B)


def test_an_epoch_grows_with_every_change_of_the_primary() -> None:
    records = [BORN, record(FIRST, A, A, B), record(FIRST, A, A, B, C), record(SECOND, C, C, B)]
    assert check_epochs(records) == HOLDS
    assert elected_by(records) == {(0, FIRST): 1, (0, SECOND): 3}


def test_an_epoch_that_falls_is_convicted() -> None:
    records = [BORN, record(SECOND, A, A, B), record(FIRST, A, A)]
    assert "epoch 1.1: the epoch was 1.2 before" in why(check_epochs(records))


def test_another_primary_in_the_same_epoch_is_convicted() -> None:
    records = [BORN, record(FIRST, A, A, B), record(FIRST, B, A, B)]
    assert "the primary changed" in why(check_epochs(records))


def test_a_primary_that_was_not_in_sync_is_convicted() -> None:
    records = [BORN, record(FIRST, A, A, B), record(SECOND, C, B, C)]
    assert "was elected, which was not in sync" in why(check_epochs(records))


def test_a_restarted_process_is_not_the_member_that_it_was() -> None:
    again = Member("a", 9)
    records = [BORN, record(FIRST, A, A, B), record(SECOND, again, again, B)]
    assert "was elected, which was not in sync" in why(check_epochs(records))


def test_shards_have_epochs_of_their_own() -> None:
    records = [record(SECOND, A, A), record(FIRST, B, B, shard=1)]
    assert check_epochs(records) == HOLDS


# -- leases


def test_an_answer_within_the_lease_is_right() -> None:
    assert check_own_clock([SAID, SAID._replace(local_ns=6_000)]) == HOLDS
    assert check_granted([SAID, SAID._replace(world_ns=2_000)]) == HOLDS


def test_an_answer_after_the_lease_is_convicted_by_the_sender_s_clock() -> None:
    late = SAID._replace(local_ns=6_000_006_000, deadline_ns=5_000_006_000)
    assert "s1 answered for shard 0 at 0.001 ms, 1000.000 ms after its lease" in why(
        check_own_clock([late])
    )


def test_an_answer_after_etcd_let_the_lease_end_is_convicted() -> None:
    late = SAID._replace(world_ns=2_500)
    assert "after its lease had ended in etcd" in why(check_granted([late]))
    assert check_granted([late], tolerance_ns=500) == HOLDS
    gone = SAID._replace(granted_ns=0)
    assert "etcd did not hold its lease any more" in why(check_granted([gone]))


def test_whoever_says_that_he_is_no_owner_needs_no_lease() -> None:
    late = SAID._replace(status=Status.NOT_OWNER, local_ns=9_000, granted_ns=0)
    assert check_own_clock([SAID, late]) == HOLDS
    assert check_granted([SAID, late]) == HOLDS
    assert check_own_clock([late]).outcome == "unknown"


# -- replicas


def replica(server: str, lsn: int, digest: str, shard: int = 0) -> ReplicaState:
    return ReplicaState(shard, server, lsn, digest)


def test_replicas_with_equal_digests_are_identical() -> None:
    states = [replica("a", 5, "x"), replica("b", 5, "x"), replica("a", 9, "y", 1)]
    assert check_replicas(states) == HOLDS


def test_replicas_that_differ_at_one_lsn_are_convicted() -> None:
    states = [replica("a", 5, "x"), replica("b", 4, "z"), replica("c", 5, "y")]
    assert "shard 0 at lsn 5: replicas differ: a x, c y" in why(check_replicas(states))


def test_replicas_that_lag_behind_tell_nothing() -> None:
    verdict = check_replicas([replica("a", 5, "x"), replica("b", 4, "y")])
    assert verdict.outcome == "unknown"
    assert "a at lsn 5, b at lsn 4" in verdict.reasons[0]


def test_single_replicas_tell_nothing() -> None:
    assert check_replicas([replica("a", 5, "x")]).outcome == "unknown"


# -- places


def layout(*records: ShardRecord, replicas: int = 2, lost: tuple[int, ...] = ()) -> str:
    verdict = check_layout(records, [A, B, C], replicas=replicas, lost=lost)
    return verdict.outcome if verdict.outcome != "false" else why(verdict)


def test_shards_with_living_primaries_and_all_members_are_where_they_belong() -> None:
    assert layout(record(FIRST, A, A, B), record(FIRST, B, B, C), record(FIRST, C, C, A)) == "true"
    assert layout(record(FIRST, A, A, B, C), replicas=5) == "true"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (record(FIRST, Member("a", 9), Member("a", 9), B), "the primary is a, which does not live"),
        (record(FIRST, None, A, B), "the primary is nobody"),
        (record(FIRST, A, A, Member("d", 4)), "in sync are the dead d"),
        (record(FIRST, A, A), "1 members are in sync, due are 2"),
        (record(FIRST, A, A, B, C), "3 members are in sync, due are 2"),
    ],
)
def test_a_shard_that_is_not_as_it_should_be_is_convicted(wrong: ShardRecord, text: str) -> None:
    assert text in layout(wrong)


def test_a_member_that_is_not_desired_is_convicted() -> None:
    wrong = ShardRecord(0, FIRST, "a", 1, (A, B), ("a", "c"), 1, "n")
    assert "in sync but not desired are b" in layout(wrong)


def test_primaries_that_are_spread_unevenly_are_convicted() -> None:
    records = [record(FIRST, A, A, B, shard=n) for n in range(2)]
    assert "a of 2, b of 0, c of 0" in layout(*records)


def test_when_a_shard_was_lost_nothing_is_told() -> None:
    assert layout(record(FIRST, None, A), lost=(0,)) == "unknown"


# -- bounds and growth


def test_limits_depend_on_the_size_of_the_cluster() -> None:
    small = ClusterSize(servers=3, shards=4, replicas=2, ranks=3, clients=3).limits()
    large = ClusterSize(servers=6, shards=8, replicas=2, ranks=6, clients=6).limits()
    assert all(large[kind] > small[kind] > 0 for kind in small)
    assert check_bounds(small, small) == HOLDS
    more = small | {"leases": small["leases"] + 1}
    assert f"{more['leases']} leases, possible are {small['leases']}" in why(
        check_bounds(more, small)
    )


def test_counters_without_limits_tell_nothing() -> None:
    assert check_bounds({"cats": 3}, {"dogs": 2}).outcome == "unknown"


def test_what_grows_with_the_run_is_convicted() -> None:
    assert check_growth({"leases": 3}, {"leases": 3}) == HOLDS
    assert check_growth({"leases": 3}, {"leases": 4}, slack=1) == HOLDS
    assert "leases have grown from 3 to 9" in why(check_growth({"leases": 3}, {"leases": 9}))


# -- identity


def test_models_are_identical_part_by_part() -> None:
    assert check_identity({"a": "x"}, {"a": "x"}) == HOLDS
    assert "a is y, undisturbed x" in why(check_identity({"a": "y"}, {"a": "x"}))
    assert "b is missing, undisturbed x" in why(check_identity({}, {"b": "x"}))
    assert check_identity({}, {}).outcome == "unknown"

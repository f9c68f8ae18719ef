"""Elections and logs: who becomes primary, and what the others hold, drop and apply."""

from __future__ import annotations

import pytest
from replica_group import KEYS, MS, SECOND_NS, Group, led

from resilient_ps.coordinator.kv import Delete, LeaseRevoke, Txn
from resilient_ps.guards import Guards
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import AppendedPart, AppendPart, Command, Entry, Held, Kind, Status
from resilient_ps.replication.replica import EXIT_DIVERGED

# -- elections


def test_the_first_of_the_desired_campaigns_at_once_and_the_others_after_their_turns() -> None:
    group = Group("a", "b", "c", desired="bca")
    for name in "abc":
        group.see(name)
    assert [len(group.claims(name)) for name in "abc"] == [0, 1, 0]
    group.timers(after_ns=50 * MS)
    assert [len(group.claims(name)) for name in "abc"] == [0, 1, 1]
    group.timers(after_ns=50 * MS)
    assert [len(group.claims(name)) for name in "abc"] == [1, 1, 1]


def test_of_two_that_campaign_one_wins_and_the_other_follows() -> None:
    group = Group("a", "b")
    for name in "ab":
        group.see(name)
    group.timers()
    won, lost = group.call("b"), group.call("a")
    assert won is not None
    assert won.succeeded
    assert lost is not None
    assert not lost.succeeded
    group.settle()
    assert (group.record.leader, group.record.epoch) == (group.sides["b"].home.me, Epoch(1, 1))
    assert [group.role(name) for name in "ab"] == ["backup", "primary"]


def test_who_waited_for_its_turn_in_vain_is_at_rest_and_waits_for_it_again_next_time() -> None:
    group = Group("a", "b", "c")
    group.see("c")
    rests = [group.sides["c"].replica.at_rest]
    group.see("a")
    group.settle()
    rests.append(group.sides["c"].replica.at_rest)
    assert rests == [False, True]
    group.bury(group.kill("a"))
    group.see("c")
    assert group.claims("c") == []


def test_a_dead_primary_is_dropped_from_the_in_sync_set_by_its_successor() -> None:
    group = led("a", "b", "c")
    group.bury(group.kill("a"))
    group.see("b")
    group.settle()
    assert group.record.leader == group.sides["b"].home.me
    assert [member.server for member in group.record.in_sync] == ["b", "c"]
    assert group.record.epoch == Epoch(1, 2)
    assert group.serves("b")


def test_a_dead_primary_is_not_dropped_where_too_few_would_be_left() -> None:
    group = led("a", "b", min_in_sync=2)
    group.bury(group.kill("a"))
    group.see("b")
    group.settle()
    assert [member.server for member in group.record.in_sync] == ["a", "b"]
    assert group.role("b") == "primary"
    assert not group.serves("b")


def test_who_is_not_in_sync_does_not_campaign() -> None:
    group = led("a", "b", "c", in_sync="ab")
    group.bury(group.kill("a"))
    group.see("c")
    group.timers("c", after_ns=SECOND_NS)
    assert group.claims("c") == []


def test_without_a_lease_or_while_it_stops_nobody_campaigns() -> None:
    group = led("a", "b", "c")
    group.bury(group.kill("a"))
    group.expire("b")
    group.sides["c"].home.stopping = True
    for name in "bc":
        group.see(name)
    group.timers(after_ns=SECOND_NS)
    assert group.claims("b") == group.claims("c") == []
    group.register("b")
    group.timers("b")
    assert len(group.claims("b")) == 1


@pytest.mark.parametrize("by", ["the watch", "a repeat"])
def test_a_campaign_whose_answer_was_lost_is_recognised_by(by: str) -> None:
    group = Group("a", "b")
    group.see("a")
    group.call("a", lost=True)
    assert group.role("a") == "backup"
    if by == "the watch":
        group.see("a")
    else:
        group.timers("a", after_ns=200 * MS)
        repeated = group.call("a")
        assert repeated is not None
        assert not repeated.succeeded
    assert group.role("a") == "primary"
    assert group.sides["a"].replica.epoch == group.record.epoch == Epoch(1, 1)


def test_a_campaign_that_never_reached_etcd_is_sent_again_unchanged() -> None:
    group = Group("a", "b")
    group.see("a")
    (first,) = group.claims("a")
    group.call("a", late=True)
    group.timers("a", after_ns=200 * MS)
    assert group.claims("a") == [first]
    group.settle()
    assert group.serves("a")


def test_a_lost_lease_ends_the_leadership_and_nobody_leads_twice_in_an_epoch() -> None:
    group = led("a", "b")
    before = group.known()
    group.expire("a")
    group.timers("a")
    assert group.role("a") == "backup"
    group.register("a")
    group.see("a", before)  # the watch lags
    assert group.role("a") == "backup"
    group.see("a")
    group.settle()
    assert group.serves("a")
    assert group.record.epoch == Epoch(1, 2)
    assert len(group.record.in_sync) == 2


def test_what_was_known_before_a_later_record_is_not_listened_to() -> None:
    group = led("a", "b")
    old = group.known()
    group.bury(group.kill("a"))
    group.see("b")
    group.settle()
    group.see("b", old)
    assert group.serves("b")


# -- fast failover


def test_who_finds_the_primary_dead_campaigns_while_its_leader_key_is_there() -> None:
    group = led("a", "b", "c")
    dead = group.kill("a")
    lease = dead.home.lease
    assert group.sides["b"].replica.follows(lease)
    group._perform("b", group.sides["b"].replica.on_dead(lease, group.now_ns))
    group.settle()
    assert group.record.leader == group.sides["b"].home.me
    assert [member.server for member in group.record.in_sync] == ["b", "c"]
    assert group.serves("b")


def test_a_living_primary_that_was_taken_for_dead_gets_nothing_committed_any_more() -> None:
    group = led("a", "b")
    old = group.push("a", 1)
    lease = group.sides["a"].home.lease
    group._perform("b", group.sides["b"].replica.on_dead(lease, group.now_ns))
    group.call("b")
    group.deliver("a", "b")
    assert group.parts["b", "a"][-1] == AppendedPart(0, Epoch(1, 2), 1, Held.STALE, 0)
    assert group.status(old) is None
    group.settle()
    assert group.status(old) is Status.NOT_OWNER
    assert group.pushed("b") == []
    assert group.record.leader == group.sides["b"].home.me


def test_the_dead_mark_is_of_one_leadership_not_of_a_lease() -> None:
    group = led("a", "b", "c")
    lease = group.sides["a"].home.lease
    for name in "bc":  # a lives, and both take it for dead
        group._perform(name, group.sides[name].replica.on_dead(lease, group.now_ns))
    group.settle()
    group.run(6)  # it is copied to, and handed the shard back
    assert group.record.leader == group.sides["a"].home.me
    epoch = group.record.epoch
    group.run(3)
    assert group.record.epoch == epoch


def test_a_campaign_against_a_dead_process_fails_when_another_one_leads_already() -> None:
    group = led("a", "b", "c")
    dead = group.kill("a")
    for name in "bc":
        replica = group.sides[name].replica
        group._perform(name, replica.on_dead(dead.home.lease, group.now_ns))
    group.timers("c")
    group.call("b")
    result = group.call("c")
    assert result is not None
    assert not result.succeeded
    group.settle()
    assert group.record.leader == group.sides["b"].home.me


# -- following


def forked(winner: str) -> tuple[Group, list[int]]:
    """Two pushes reach b but not c, then a dies, and one of the two is elected."""
    group = led("a", "b", "c", desired="abc" if winner == "b" else "acb")
    pushes = [group.push("a", 1), group.push("a", 2)]
    group.deliver("a", "b", 2)
    group.bury(group.kill("a"))
    group.see(winner)
    return group, pushes


def test_what_the_new_primary_holds_is_committed_with_its_first_entry() -> None:
    group, pushes = forked("b")
    group.call("b")
    assert len(group.sides["b"].replica.log) == 3
    assert group.pushed("b") == []
    assert not group.serves("b")
    group.settle()
    group.timers()
    group.settle()
    assert group.pushed("b") == group.pushed("c") == [1, 2]
    assert group.alike()
    assert [group.status(push) for push in pushes] == [None, None]


def test_a_repeat_of_an_inherited_push_is_answered_and_not_applied_again() -> None:
    group, _ = forked("b")
    group.settle()
    again = group.push("b", 2)
    assert group.status(again) is Status.OK
    assert group.pushed("b") == [1, 2]


def test_what_the_new_primary_does_not_hold_is_dropped() -> None:
    group, _ = forked("c")
    assert group.sides["b"].replica.log.last == 6
    group.settle()
    assert group.sides["b"].replica.log.end == Position(Epoch(1, 2), 5)
    push = group.push("c", 1)
    group.settle()
    group.timers()
    group.settle()
    assert group.status(push) is Status.OK
    assert group.pushed("b") == group.pushed("c") == [1]
    assert group.alike()


def test_a_backup_applies_only_what_it_has_verified_in_the_present_epoch() -> None:
    group, _ = forked("c")
    group.call("c")
    group.parts["c", "b"].clear()
    agreed = AppendPart(0, Epoch(1, 2), 9, Position(Epoch(1, 1), 4), 6)  # says: 6 is committed
    group.bring("c", "b", agreed)
    assert group.parts["b", "c"].pop() == AppendedPart(0, Epoch(1, 2), 9, Held.HELD, 4)
    assert group.sides["b"].replica.log.applied == 4
    assert group.pushed("b") == []


def test_negative_control_without_log_matching_a_backup_keeps_a_suffix_that_nobody_has() -> None:
    group = led("a", "b", "c", desired="acb", guards=Guards(log_matching=False))
    group.push("a", 1)
    group.push("a", 2)
    group.deliver("a", "b", 2)
    group.bury(group.kill("a"))
    group.see("c")
    group.settle()
    group.push("c", 1)
    group.settle()
    group.timers()
    group.settle()
    assert not group.alike()


def test_parts_of_an_earlier_epoch_are_refused_and_their_sender_steps_down() -> None:
    group = led("a", "b", "c")
    push = group.push("a", 1)
    group.expire("a")
    group.see("b")
    group.call("b")
    group.deliver("a", "b")
    stale = group.parts["b", "a"][-1]
    assert stale == AppendedPart(0, Epoch(1, 2), 1, Held.STALE, 0)
    group.bring("b", "a", stale)
    assert group.sides["a"].replica.leading is None
    assert group.status(push) is Status.NOT_OWNER


def test_what_comes_late_from_an_earlier_stream_is_not_answered() -> None:
    group = led("a", "b")
    group.push("a", 1)
    late = group.parts["a", "b"][0]
    group.cut("a", "b")
    group.timers("a")
    group.deliver("a", "b")
    group.parts["b", "a"].clear()
    group.bring("a", "b", late)
    assert not group.parts["b", "a"]
    assert group.sides["b"].replica.log.last == 5


@pytest.mark.parametrize(
    "entries",
    [
        [Entry(Position(Epoch(1, 1), 6), Command(Kind.EPOCH))],
        [Entry(Position(Epoch(1, 9), 5), Command(Kind.EPOCH))],
        [Entry(Position(Epoch(1, 1), 5), Command(Kind.EPOCH))] * 2,
        [Entry(Position(Epoch(0, 1), 5), Command(Kind.EPOCH))],
    ],
    ids=["gap", "later epoch", "twice", "epoch falls"],
)
def test_entries_that_do_not_follow_each_other_are_ignored(entries: list[Entry]) -> None:
    group = led("a", "b")
    part = AppendPart(0, Epoch(1, 1), 9, Position(Epoch(1, 1), 4), 4, tuple(entries))
    group.bring("a", "b", part)
    assert group.sides["b"].logs[-1] == "entries out of order are ignored"
    assert not group.parts["b", "a"]
    assert group.sides["b"].replica.log.last == 4


def test_a_replica_that_would_have_to_drop_an_applied_entry_ends_its_process() -> None:
    group = led("a", "b")
    other = Entry(Position(Epoch(1, 2), 4), Command(Kind.EPOCH))
    part = AppendPart(0, Epoch(1, 2), 1, Position(Epoch(1, 1), 3), 4, (other,))
    group.bring("a", "b", part)
    exited = group.sides["b"].exit
    assert exited is not None
    assert exited.code == EXIT_DIVERGED
    assert not group.parts["b", "a"]


def test_a_member_hears_of_its_primary_before_etcd_tells_it_of_the_shard() -> None:
    group = Group("a", "b")
    group.see("a")
    group.call("a")
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.serves("a")
    assert group.sides["b"].replica.known is None


def test_a_member_that_is_left_out_throws_its_state_away_and_ends_if_it_is_named_again() -> None:
    group = led("a", "b")
    before = group.record
    group.wish("a")
    group.settle()
    assert group.role("b") == "empty"
    assert [member.server for member in group.record.in_sync] == ["a"]
    group._put(KEYS.shard(0), before.to_bytes())
    group.see("b")
    exited = group.sides["b"].exit
    assert exited is not None
    assert exited.code == EXIT_DIVERGED


def test_not_owner_names_the_process_that_is_primary_where_it_is_known() -> None:
    group = led("a", "b")
    answer = group.sides["b"].replica.not_owner("no")
    me = group.sides["a"].home.me
    assert (answer.status, answer.value, answer.at.epoch) == (
        Status.NOT_OWNER, me.process, Epoch(1, 1),
    )  # fmt: skip
    assert group.sides["a"].replica.not_owner("no").value == 0
    assert Group("a").sides["a"].replica.not_owner("no").value == 0


def test_a_leader_key_that_vanished_ends_the_leadership() -> None:
    group = led("a", "b")
    group.kv.apply(LeaseRevoke(group.sides["a"].home.lease), group.now_ns)
    group.see("a")
    assert group.role("a") == "backup"
    assert group.sides["a"].logs[-1] == "primary steps down"


def test_a_leader_key_that_vanished_while_the_lease_goes_on_is_campaigned_for_at_once() -> None:
    group = led("a", "b")
    group.kv.apply(Txn((), (Delete(KEYS.leader(0)),)), group.now_ns)
    group.see("a")
    assert group.role("a") == "backup"
    assert len(group.claims("a")) == 1
    group.settle()
    assert group.serves("a")
    assert group.record.epoch == Epoch(1, 2)

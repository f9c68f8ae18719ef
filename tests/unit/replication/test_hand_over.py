"""A primary gives its shard to another in-sync member: nothing is lost, nobody waits for long."""

from __future__ import annotations

from replica_group import Group, led

from resilient_ps.coordinator.kv import LeaseRevoke
from resilient_ps.ids import Epoch
from resilient_ps.messages import Status
from resilient_ps.replication.leading import HAND_OVER_NS


def wished(pushes: int = 3) -> Group:
    """a leads, b is in sync, and b is to lead: a knows."""
    group = led("a", "b")
    for n in range(1, pushes + 1):
        group.push("a", n)
    group.settle()
    group.wish("ba")
    group.see("a")
    return group


def test_the_first_of_the_desired_is_given_the_shard_under_its_own_lease() -> None:
    group = wished()
    assert len(group.claims("a")) == 1
    group.call("a")
    heir = group.sides["b"].home
    assert group.record.leader == heir.me
    assert group.record.epoch == Epoch(1, 2)
    assert group.known().leader_lease == heir.lease
    assert len(group.record.in_sync) == 2
    group.settle()
    assert [group.role(name) for name in "ab"] == ["backup", "primary"]
    assert group.serves("b")
    assert group.pushed("b") == [1, 2, 3]


def test_what_is_pending_is_finished_first_and_what_is_new_is_sent_to_the_heir() -> None:
    group = led("a", "b")
    pending = group.push("a", 1)
    group.wish("ba")
    group.see("a")
    assert group.claims("a") == []
    new = group.push("a", 2)
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(pending) is Status.OK
    assert len(group.claims("a")) == 1
    assert group.status(new) is None  # it waits for the heir to lead
    group.call("a")
    assert group.status(new) is Status.NOT_OWNER
    group.settle()
    assert group.pushed("b") == [1]


def test_after_it_clients_are_sent_to_the_heir() -> None:
    group = wished()
    group.call("a")
    answer = group.sides["a"].replica.not_owner("moved")
    assert (answer.value, answer.at.epoch) == (group.sides["b"].home.me.process, Epoch(1, 2))


def test_with_the_answer_lost_the_heir_leads_and_the_old_one_steps_down() -> None:
    group = wished()
    group.call("a", lost=True)
    assert group.serves("a")
    group.see("b")
    assert group.role("b") == "primary"
    assert not group.serves("b")  # the old one is in sync, and has not heard of it
    group.deliver("b", "a")
    assert group.role("a") == "backup"
    group.settle()
    assert group.serves("b")
    push = group.push("b", 4)
    group.settle()
    assert group.status(push) is Status.OK


def test_while_the_outcome_is_unknown_for_long_writes_go_on_and_none_is_lost() -> None:
    group = wished()
    group.call("a", lost=True)  # it was carried out
    parked = group.push("a", 4)
    assert group.status(parked) is None
    group.timers("a", after_ns=HAND_OVER_NS + 1)
    assert group.status(parked) is Status.BUSY
    push = group.push("a", 4)
    group.deliver("a", "b", count=len(group.parts["a", "b"]))
    group.see("b")  # b holds the push as an inherited entry
    group.settle()
    group.timers()
    group.settle()
    assert group.status(push) in (Status.OK, Status.NOT_OWNER)
    assert group.serves("b")
    assert group.pushed("b") == group.pushed("a") == [1, 2, 3, 4]


def test_a_hand_over_that_was_not_carried_out_is_tried_again() -> None:
    group = wished()
    group.call("a", late=True)
    group.timers("a", after_ns=HAND_OVER_NS + 1)
    group.settle()
    assert group.record.leader == group.sides["b"].home.me


def test_an_heir_that_is_behind_for_long_is_not_waited_for() -> None:
    group = led("a", "b")
    group.push("a", 1)
    group.wish("ba")
    group.see("a")
    group.timers("a", after_ns=HAND_OVER_NS)
    parked = group.push("a", 2)
    assert group.status(parked) is None
    group.timers("a", after_ns=1)
    assert group.status(parked) is Status.BUSY
    assert group.status(group.push("a", 2)) is None
    group.timers("a", after_ns=HAND_OVER_NS // 2)
    assert group.status(group.push("a", 3)) is None
    group.run(3)
    assert group.record.leader == group.sides["b"].home.me


def test_an_heir_whose_lease_has_ended_is_given_nothing() -> None:
    group = wished()
    group.kv.apply(LeaseRevoke(group.sides["b"].home.lease), group.now_ns)
    group.call("a")
    assert group.record.leader == group.sides["a"].home.me
    push = group.push("a", 4)
    assert group.status(push) is None
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is Status.OK


def test_a_learner_is_handed_nothing_before_it_is_in_sync() -> None:
    group = led("a", "b", in_sync="a", desired="a")
    group.push("a", 1)
    group.wish("ba")
    group.see("a")
    assert group.claims("a") == []
    assert group.status(group.push("a", 2)) is Status.OK
    group.run(1)
    assert group.record.leader == group.sides["b"].home.me
    assert group.pushed("b") == [1, 2]


def test_who_stops_hands_over_to_another_member_and_not_to_one_that_stops_too() -> None:
    group = led("a", "b", "c")
    side = group.sides["a"]
    side.home.stopping = True
    side.home.leaving = frozenset({side.home.me, group.sides["b"].home.me})
    must = [side.replica.must_hand_over]
    group.timers("a")
    group.call("a")
    assert group.record.leader == group.sides["c"].home.me
    group.settle()
    must.append(side.replica.must_hand_over)
    assert must == [True, False]


def test_a_shard_is_not_handed_back_to_one_that_stops() -> None:
    group = led("a", "b")
    group.sides["a"].home.stopping = True
    leaving = frozenset({group.sides["a"].home.me})
    for side in group.sides.values():
        side.home.leaving = leaving
    group.run(1)
    assert group.record.leader == group.sides["b"].home.me
    assert group.record.epoch == Epoch(1, 2)


def test_alone_nobody_is_left_to_hand_over_to() -> None:
    group = led("a")
    group.sides["a"].home.stopping = True
    group.timers("a")
    assert group.claims("a") == []
    assert not group.sides["a"].replica.must_hand_over


def test_an_orderly_hand_over_takes_three_messages() -> None:
    group = wished(0)
    group.call("a")
    group.see("b")
    group.deliver("b", "a")
    group.deliver("a", "b")
    assert group.serves("b")


def test_a_member_that_is_about_to_end_is_left_out_before_it_is_gone() -> None:
    group = led("a", "b", "c")
    home = group.sides["a"].home
    home.leaving = frozenset({group.sides["b"].home.me})
    group.timers("a")
    group.call("a")
    assert {member.server for member in group.record.in_sync} == {"a", "c"}
    push = group.push("a", 1)
    group.deliver("a", "c")
    group.deliver("c", "a")
    assert group.status(push) is Status.OK
    group.run(2)
    assert home.sending == set()  # nor is it given a copy
    assert {member.server for member in group.record.in_sync} == {"a", "c"}

"""A primary: when its entries are committed, and how the in-sync set changes under it."""

from __future__ import annotations

from typing import Any

import pytest
from replica_group import KEYS, ME, MS, SECOND_NS, TTL_S, Group, led

from resilient_ps.guards import Guards
from resilient_ps.ids import Epoch
from resilient_ps.messages import NO_KEYS, AppendPart, Part, Status
from resilient_ps.replication.home import PENDING_BYTES_MAX
from resilient_ps.waiting import Origin, WaitingPull


def in_sync(group: Group) -> str:
    """The servers in sync by etcd, in order."""
    return "".join(sorted(member.server for member in group.record.in_sync))


# -- commitment


def test_an_entry_is_applied_and_answered_when_all_in_sync_members_hold_it() -> None:
    group = led("a", "b", "c")
    push = group.push("a", 1)
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is None
    assert group.pushed("a") == []
    group.deliver("a", "c")
    group.deliver("c", "a")
    assert group.status(push) is Status.OK
    assert group.pushed("a") == [1]


def test_negative_control_without_waiting_for_backups_a_push_is_answered_at_once() -> None:
    group = led("a", "b", guards=Guards(wait_for_backups=False))
    assert group.status(group.push("a", 1)) is Status.OK


def test_backups_are_told_what_is_committed_with_the_next_entry_or_by_the_timer() -> None:
    group = led("a", "b")
    group.push("a", 1)
    group.settle()
    assert group.pushed("b") == []
    group.push("a", 2)
    group.settle()
    assert group.pushed("b") == [1]
    group.timers("a")
    group.settle()
    assert group.pushed("b") == [1, 2]


def test_an_answer_carries_the_epoch_and_lsn_at_which_it_was_given() -> None:
    group = led("a", "b")
    push = group.push("a", 1)
    group.settle()
    assert group.replies[push].at == (Epoch(1, 1), 5)


def test_alone_in_sync_a_primary_answers_at_once() -> None:
    group = led("a")
    assert group.status(group.push("a", 1)) is Status.OK
    assert group.sides["a"].replica.log.applied == 5


def test_what_changes_nothing_is_answered_without_an_entry_while_nothing_is_pending() -> None:
    group = led("a", "b")
    group.push("a", 1)
    group.settle()
    assert group.status(group.push("a", 1)) is Status.OK
    assert group.status(group.push("a", 9)) is Status.GAP
    assert group.sides["a"].replica.log.last == 5


def test_a_repeat_of_a_pending_push_is_answered_when_the_original_is_committed() -> None:
    group = led("a", "b")
    first, again = group.push("a", 1), group.push("a", 1)
    assert group.status(again) is None
    group.settle()
    assert [group.status(first), group.status(again)] == [Status.OK, Status.OK]
    assert group.pushed("a") == [1]


def test_negative_control_a_repeat_may_be_answered_before_the_original_is_committed() -> None:
    group = led("a", "b", guards=Guards(repeat_after_commit=False))
    group.push("a", 1)
    assert group.status(group.push("a", 1)) is Status.OK
    assert group.pushed("a") == []


def test_too_much_that_waits_for_the_backups_is_refused() -> None:
    group = led("a", "b")
    log = group.sides["a"].replica.log
    group.push("a", 1)
    log.nbytes = PENDING_BYTES_MAX + 1
    assert group.status(group.push("a", 2)) is Status.BUSY
    log.nbytes = 0
    group.settle()
    assert group.status(group.push("a", 2)) is None


def test_a_connection_that_broke_is_followed_by_what_was_not_acknowledged() -> None:
    group = led("a", "b")
    pushes = [group.push("a", n) for n in (1, 2)]
    group.deliver("a", "b")
    group.cut("a", "b")  # the acknowledgement of the first is lost too
    pushes.append(group.push("a", 3))
    assert not group.parts["a", "b"]  # all in one, at the timer
    group.timers("a")
    (part,) = group.parts["a", "b"]
    assert isinstance(part, AppendPart)
    assert [entry.at.lsn for entry in part.entries] == [5, 6, 7]
    group.settle()
    group.timers("a")
    group.settle()
    assert [group.status(push) for push in pushes] == [Status.OK] * 3
    assert group.alike()


# -- leaving members out


def test_a_dead_backup_is_left_out_before_anything_is_acknowledged_without_it() -> None:
    group = led("a", "b")
    push = group.push("a", 1)
    dead = group.kill("b")
    group.timers("a", after_ns=SECOND_NS)
    assert group.claims("a") == []
    group.bury(dead)
    group.timers("a")
    assert len(group.claims("a")) == 1
    assert group.status(push) is None
    group.call("a", lost=True)
    assert in_sync(group) == "a"
    assert group.status(push) is None  # nothing is known of it
    group.timers("a", after_ns=SECOND_NS)
    group.call("a")  # refused, because it was carried out: read back
    assert group.status(push) is Status.OK


def test_a_claim_that_never_reached_etcd_is_sent_again_unchanged() -> None:
    group = led("a", "b")
    group.bury(group.kill("b"))
    group.timers("a")
    (first,) = group.claims("a")
    group.call("a", late=True)
    group.timers("a")
    assert group.claims("a") == []  # not at once
    group.timers("a")
    assert group.claims("a") == [first]


def test_while_the_outcome_of_leaving_out_is_unknown_the_others_do_not_suffice() -> None:
    group = led("a", "b", "c")
    push = group.push("a", 1)
    group.deliver("a", "b")
    group.deliver("b", "a")
    group.bury(group.kill("c"))
    group.timers("a")
    group.call("a", late=True)
    group.push("a", 2)
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is None
    group.run(1)
    assert group.status(push) is Status.OK
    assert in_sync(group) == "ab"


def test_who_was_to_be_left_out_but_was_not_is_still_waited_for() -> None:
    group = led("a", "b")
    group.sides["a"].home.refused.add(group.sides["b"].home.me)
    group.timers("a")
    group.call("a", late=True)  # nothing has changed
    group.sides["a"].home.refused.clear()
    push = group.push("a", 1)
    assert group.status(push) is None
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is Status.OK


def test_a_silent_backup_is_left_out_after_a_while_and_one_that_owes_nothing_is_not() -> None:
    group = led("a", "b")
    group.timers("a", after_ns=10 * TTL_S * SECOND_NS)
    assert group.claims("a") == []
    group.push("a", 1)
    group.timers("a", after_ns=TTL_S * SECOND_NS)
    assert group.claims("a") == []
    group.timers("a", after_ns=1)
    assert len(group.claims("a")) == 1


def test_a_backup_that_answers_slowly_is_not_silent() -> None:
    group = led("a", "b")
    for n in range(1, 5):
        group.push("a", n)
    for _ in range(3):
        group.timers("a", after_ns=(TTL_S - 1) * SECOND_NS)
        group.deliver("a", "b")
        group.deliver("b", "a")
    group.timers("a", after_ns=(TTL_S - 1) * SECOND_NS)
    assert group.claims("a") == []


def test_a_backup_whose_port_is_closed_is_left_out_at_once() -> None:
    group = led("a", "b")
    group.push("a", 1)
    group.kill("b")
    home = group.sides["a"].home
    home.refused.add(next(member for member in home.leases if member.server == "b"))
    group.timers("a")
    group.call("a")
    assert in_sync(group) == "a"


def test_below_the_least_number_nobody_is_left_out_and_everything_waits() -> None:
    group = led("a", "b", min_in_sync=2)
    push = group.push("a", 1)
    group.bury(group.kill("b"))
    group.run(20)
    assert in_sync(group) == "ab"
    assert group.status(push) is Status.BUSY  # and why
    assert group.pushed("a") == []


def test_a_restarted_member_is_swapped_for_its_dead_process_in_one_transaction() -> None:
    group = led("a", "b", min_in_sync=2)
    push = group.push("a", 1)
    dead = group.kill("b")
    group.bury(dead)
    group.timers("a")
    revision = group.known().revision
    new = group.start("b")
    group.run(2)
    assert group.status(push) is Status.BUSY
    again = group.push("a", 1)
    group.settle()
    assert group.status(again) is Status.OK
    assert group.record.in_sync == (group.sides["a"].home.me, new.home.me)
    assert group.known().revision == revision + 1
    assert group.pushed("b") == [1]


def test_a_new_primary_that_needs_another_member_takes_one_in_before_it_serves() -> None:
    group = led("a", "b", "c", in_sync="ab", desired="ab", min_in_sync=2)
    push = group.push("a", 1)
    group.deliver("a", "b")
    group.bury(group.kill("a"))
    group.see("b")
    group.settle()
    assert not group.serves("b")
    new = group.start("a")
    group.run(2)
    assert group.serves("b") or group.serves("a")
    assert set(group.record.in_sync) == {new.home.me, group.sides["b"].home.me}
    assert group.pushed("a") == group.pushed("b") == [1]
    assert group.status(push) is None


def test_fewer_in_sync_than_demanded_take_no_writes_but_grow() -> None:
    group = led("a", "b", in_sync="a", desired="a")
    for side in group.sides.values():
        side.home.min_in_sync = 2
    assert group.status(group.push("a", 1)) is Status.BUSY
    group.wish("ab")
    group.run(1)
    push = group.push("a", 1)
    group.settle()
    assert group.status(push) is Status.OK


# -- growing


def learnt(**options: Any) -> Group:
    """b has taken a whole copy in; the claim that makes it a member is on its way to etcd."""
    group = led("a", "b", in_sync="a", desired="a", **options)
    group.wish("ab")
    group.see("a")
    for _ in range(100):
        if group.claims("a"):
            break
        for pair in (("a", "b"), ("b", "a")):
            group.deliver(*pair, count=len(group.parts[pair]))
        group.timers("a", after_ns=MS)
    assert len(group.claims("a")) == 1
    assert in_sync(group) == "a"
    return group


def test_a_learner_counts_from_the_moment_at_which_its_claim_is_sent() -> None:
    group = learnt()
    push = group.push("a", 1)
    assert group.status(push) is None
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is Status.OK


def test_negative_control_a_learner_counts_only_after_growth() -> None:
    group = learnt(guards=Guards(count_before_growth=False))
    assert group.status(group.push("a", 1)) is Status.OK
    group.call("a", lost=True)
    assert in_sync(group) == "ab"  # and it does not hold what was answered
    assert group.status(group.push("a", 2)) is Status.OK


def test_after_an_unknown_outcome_the_learner_is_counted_until_it_is_settled() -> None:
    group = learnt()
    group.call("a", late=True)
    push = group.push("a", 1)
    group.timers("a")
    assert group.status(push) is None
    group.settle()
    assert group.status(push) is Status.OK
    assert in_sync(group) in ("a", "ab")
    group.run(1)
    assert in_sync(group) == "ab"


def test_a_growth_that_is_refused_leaves_no_entry_waiting_for_the_learner() -> None:
    group = learnt()
    push = group.push("a", 1)
    group.config = group._put(KEYS.config, b"another")  # its guard does not hold any more
    refused = group.call("a")
    assert refused is not None
    assert not refused.succeeded
    group.timers("a")
    assert group.status(push) is Status.OK


def test_a_member_that_grew_may_be_elected_and_has_everything() -> None:
    group = learnt()
    push = group.push("a", 1)
    group.call("a", lost=True)
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.status(push) is Status.OK
    group.bury(group.kill("a"))
    group.see("b")
    group.settle()
    assert group.serves("b")
    assert group.pushed("b") == [1]


def test_a_learner_that_is_counted_and_dies_is_left_out_and_its_successor_takes_a_copy() -> None:
    group = learnt()
    push = group.push("a", 1)
    group.call("a", lost=True)
    group.bury(group.kill("b"))
    new = group.start("b")
    group.timers("a")
    assert group.status(push) is None
    group.run(3)
    assert group.status(push) is Status.OK
    assert group.record.in_sync == (group.sides["a"].home.me, new.home.me)
    assert group.sides["a"].home.sending == set()
    assert group.alike()


@pytest.mark.parametrize("lag", [False, True], ids=["at once", "before it was left out"])
def test_a_restarted_backup_is_copied_to_and_no_slot_for_copies_is_lost(*, lag: bool) -> None:
    group = led("a", "b")
    dead = group.kill("b")
    if lag:
        group.bury(dead)
        group.start("b")  # before the primary has looked
        group.timers("a", after_ns=MS)
    else:
        group.bury(dead)
        group.timers("a", after_ns=MS)
        group.start("b")
    group.run(2)
    assert in_sync(group) == "ab"
    assert group.sides["b"].home.me in group.record.in_sync
    assert group.sides["a"].home.sending == set()
    push = group.push("a", 1)
    group.run(0.2)
    assert group.status(push) is Status.OK
    assert group.alike()


def test_who_is_not_desired_is_left_out_once_all_the_desired_are_in_sync() -> None:
    group = led("a", "b", "c", in_sync="ab", desired="ab")
    group.wish("ac")
    group.see("a")
    assert group.claims("a") == []
    assert in_sync(group) == "ab"
    group.run(1)
    assert in_sync(group) == "ac"
    assert group.role("b") == "empty"
    assert group.pushed("c") == group.pushed("a")


# -- the end of a leadership


def test_who_waits_for_a_primary_that_steps_down_is_sent_elsewhere() -> None:
    group = led("a", "b")
    push = group.push("a", 1)
    waiting = group.sides["a"].shard.waiting
    waiting.add(WaitingPull(Origin("client:1", 99), ME, 2, 1, Part(0), NO_KEYS, 2**60))
    group.expire("a")
    group.timers("a")
    assert group.status(push) is group.status(99) is Status.NOT_OWNER
    assert len(waiting) == 0


def test_it_has_a_status() -> None:
    group = led("a", "b")
    group.push("a", 1)
    group.settle()
    told = group.sides["a"].replica.status()
    assert (told["role"], told["epoch"], told["lsn"], told["last"]) == ("primary", [1, 1], 5, 5)
    assert told["followers"] == [
        {"server": "b", "in_sync": True, "lsn": 5, "copied_bytes": 0, "copying": False}
    ]
    assert group.sides["b"].replica.status()["role"] == "backup"

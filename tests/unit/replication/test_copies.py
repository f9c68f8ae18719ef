"""State copies from a primary to a learner, with entries in between, and what goes wrong."""

from __future__ import annotations

from replica_group import MS, SECOND_NS, TTL_S, Group, led

from resilient_ps.ids import Epoch
from resilient_ps.messages import AppendedPart, Copied, Copy, Held, Status
from resilient_ps.replication.home import Home
from resilient_ps.replication.streams import COPY_PAUSE_NS


def asked(pushes: int = 20) -> Group:
    """a leads alone, with some pushes; b is to hold the shard too, and a knows."""
    group = led("a", "b", in_sync="a", desired="a")
    for n in range(1, pushes + 1):
        group.push("a", n)
    group.wish("ab")
    group.see("a")
    return group


def begun(group: Group) -> int:
    """How many copies the primary has begun."""
    return group.sides["a"].logs.count("copy begins")


def test_a_desired_server_is_given_a_copy_and_becomes_a_member() -> None:
    group = asked()
    group.run(1)
    assert [member.server for member in group.record.in_sync] == ["a", "b"]
    assert group.role("b") == "backup"
    assert group.alike()
    assert begun(group) == 1
    assert group.sides["a"].home.sending == set()
    assert group.sides["b"].home.taking == {}


def test_entries_between_the_pieces_are_in_the_copy_once() -> None:
    group = asked(20)
    pushed = 20
    while len(group.record.in_sync) == 1:
        for pair in (("a", "b"), ("b", "a")):
            if group.parts[pair]:
                group.deliver(*pair)
        pushed += 1
        group.push("a", pushed)
        group.timers("a", after_ns=MS)
        if group.claims("a"):
            group.call("a")
        assert pushed < 100
    group.run(0.3)
    assert group.pushed("b") == group.pushed("a") == list(range(1, pushed + 1))
    assert group.alike()


def test_a_pending_entry_at_the_beginning_of_a_copy_is_not_lost() -> None:
    group = led("a", "b", "c", in_sync="ab", desired="ab")
    group.push("a", 1)  # b is slow
    group.wish("abc")
    group.see("a")
    for _ in range(6):
        for pair in (("a", "c"), ("c", "a")):
            group.deliver(*pair, count=len(group.parts[pair]))
        group.timers("a", after_ns=MS)
    assert group.sides["c"].replica.log.last == 5
    group.run(0.5)
    assert group.pushed("c") == [1]
    assert group.alike()


def test_a_copy_whose_connection_broke_begins_anew_after_a_pause() -> None:
    group = asked()
    old = list(group.parts["a", "b"])
    group.deliver("a", "b")
    assert group.role("b") == "learner"
    group.cut("a", "b")
    group.timers("a")
    assert not group.parts["a", "b"]
    assert group.sides["a"].home.sending == set()
    group.timers("a", after_ns=COPY_PAUSE_NS)
    assert begun(group) == 2
    group.deliver("a", "b")
    group.parts["b", "a"].clear()
    for part in old:  # read from the old connection
        group.bring("a", "b", part)
    assert not group.parts["b", "a"]
    group.cut("a", "b")
    group.run(2)
    assert group.alike()
    assert len(group.record.in_sync) == 2


def test_a_whole_copy_survives_a_broken_connection() -> None:
    group = asked()
    for _ in range(100):
        if group.sides["a"].replica.leading and group.claims("a"):
            break
        for pair in (("a", "b"), ("b", "a")):
            group.deliver(*pair, count=len(group.parts[pair]))
        group.timers("a", after_ns=MS)
    group.call("a", late=True)  # the claim has not come through
    group.push("a", 21)
    group.cut("a", "b")
    group.run(1)
    assert begun(group) == 1
    assert len(group.record.in_sync) == 2
    assert group.alike()


def test_a_learner_that_may_have_seen_a_record_that_its_primary_missed_is_copied_to_anew() -> None:
    group = asked()
    for _ in range(20):
        for pair in (("a", "b"), ("b", "a")):
            group.deliver(*pair, count=len(group.parts[pair]))
    group.wish("a")
    unwanted = group.known()
    group.wish("ab")
    group.see("a")  # it has missed the one before
    group.see("b", unwanted)
    assert group.role("b") == "empty"
    group.run(1)
    assert begun(group) == 2
    assert len(group.record.in_sync) == 2
    assert group.sides["b"].exit is None
    assert group.alike()


def test_a_copy_that_stands_still_begins_anew() -> None:
    group = asked()
    group.parts["a", "b"].clear()  # a silent partition
    group.timers("a", after_ns=TTL_S * SECOND_NS + 1)
    assert group.sides["a"].home.sending == set()
    group.timers("a", after_ns=COPY_PAUSE_NS)
    assert begun(group) == 2
    group.run(1)
    assert group.alike()


def test_a_learner_takes_one_copy_at_a_time() -> None:
    group = asked()
    taking = group.sides["b"].home.taking
    taking[7] = group.now_ns
    group.deliver("a", "b")
    (answer,) = group.parts["b", "a"]
    assert answer == AppendedPart(0, Epoch(1, 1), 1, Held.BUSY, 0)
    group.settle()
    assert group.sides["a"].home.sending == set()  # another shard may have the slot meanwhile
    del taking[7]
    group.run(2)
    assert group.alike()


def test_a_copy_whose_source_is_silent_keeps_nobody_out() -> None:
    group = asked()
    group.sides["b"].home.taking[7] = group.now_ns - TTL_S * SECOND_NS - 1
    group.settle()
    assert group.role("b") in ("learner", "backup")
    group.run(1)
    assert len(group.record.in_sync) == 2


def test_one_server_sends_one_copy_at_a_time() -> None:
    group = led("a", "b", "c", in_sync="a", desired="a")
    group.wish("abc")
    group.see("a")
    assert group.parts["a", "b"]
    assert not group.parts["a", "c"]
    group.run(2)
    assert len(group.record.in_sync) == 3
    assert group.alike()


def test_a_copy_keeps_to_its_rate() -> None:
    group = asked(1)
    home: Home = group.sides["a"].home
    home.copy_bytes_per_s = 16  # one row of 16 bytes a second
    group.settle()
    copied = group.sides["a"].leading.status()["followers"]
    assert copied == [
        {"server": "b", "in_sync": False, "lsn": 0, "copied_bytes": 16, "copying": True}
    ]
    group.timers(after_ns=999 * MS)
    group.settle()
    assert len(group.record.in_sync) == 1
    group.timers(after_ns=MS)
    group.run(0.2)
    assert len(group.record.in_sync) == 2


def test_a_piece_that_does_not_fit_ends_the_copy_and_another_one_begins() -> None:
    group = asked()
    head = group.parts["a", "b"][0]
    assert isinstance(head, Copy)
    group.deliver("a", "b")
    group.parts["b", "a"].clear()
    wrong = Copy(0, head.epoch, head.attempt, head.lsn, 1, Copied.ROWS, 99, text=b"[0,1,true]")
    group.bring("a", "b", wrong)
    assert group.sides["b"].logs[-1] == "copy given up"
    assert group.role("b") == "empty"
    answer = group.parts["b", "a"][-1]
    assert isinstance(answer, AppendedPart)
    assert answer.held is Held.EMPTY
    group.run(3)
    assert group.alike()


def test_an_old_record_does_not_make_a_learner_throw_its_copy_away() -> None:
    group = led("a", "b", in_sync="a", desired="a")
    old = group.known()  # b has no place in it
    group.wish("ab")
    group.see("a")
    group.deliver("a", "b")
    group.see("b", old)
    assert group.role("b") == "learner"
    group.run(1)
    assert begun(group) == 1
    assert group.alike()


def test_a_learner_that_is_not_wanted_any_more_throws_its_copy_away() -> None:
    group = asked()
    group.deliver("a", "b")
    group.wish("a")
    group.settle()
    assert group.role("b") == "empty"
    assert group.sides["b"].home.taking == {}
    assert group.sides["a"].home.sending == set()


def test_a_learner_follows_the_next_primary_with_a_new_copy() -> None:
    group = led("a", "b", "c", in_sync="ab", desired="ab")
    group.push("a", 1)
    group.settle()
    group.wish("abc")
    group.see("a")
    group.deliver("a", "c")
    assert group.role("c") == "learner"
    group.bury(group.kill("a"))
    group.run(2)
    assert group.record.leader == group.sides["b"].home.me
    assert {member.server for member in group.record.in_sync} == {"b", "c"}
    assert group.pushed("c") == [1]
    assert group.alike()


def test_pieces_of_an_earlier_primary_are_refused() -> None:
    group = asked()
    head, rows = list(group.parts["a", "b"])[:1], list(group.parts["a", "b"])[1:]
    group.bring("a", "b", head[0])
    group.sides["b"].replica.on_copy(
        Copy(0, Epoch(1, 7), 1, 0, 5, Copied.END), group.now_ns
    )  # somebody leads in a later epoch
    group.parts["b", "a"].clear()
    group.bring("a", "b", rows[0] if rows else head[0])
    assert group.parts["b", "a"][-1] == AppendedPart(0, Epoch(1, 7), 1, Held.STALE, 0)


def test_a_member_that_says_that_it_has_nothing_is_left_out_and_copied_to() -> None:
    group = asked()
    group.run(1)
    follower = group.sides["a"].leading.followers[group.sides["b"].home.me]
    empty = AppendedPart(0, Epoch(1, 1), follower.attempt, Held.EMPTY, 0)
    group.bring("b", "a", empty)
    assert len(group.claims("a")) == 1
    group.call("a")
    assert [member.server for member in group.record.in_sync] == ["a"]
    push = group.push("a", 21)
    assert group.status(push) is Status.OK
    group.run(2)
    assert len(group.record.in_sync) == 2
    assert group.alike()

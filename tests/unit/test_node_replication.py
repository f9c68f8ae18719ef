"""A server and another one that holds its shards too: streams, failover, and the orderly end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from served_node import KEYS, RECORD, SECOND_NS, Served, numbers, open_table, serving, statuses

from resilient_ps.coordinator.kv import Read
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.ids import Epoch, Position
from resilient_ps.machine import Drop, Exit, MessageArrived, PeerLost, StopAsked, TimerFired
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Ask,
    Command,
    Copied,
    Copy,
    Entry,
    Held,
    Hello,
    Kind,
    Part,
    Refuse,
    Request,
    Status,
    Welcome,
)
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

ME, OTHER = Member("s1", 77), Member("s2", 88)
DIALLED, DIALS = "server:s2", "client:9"


def with_other(shard: int, *, leads: Member) -> tuple[Served, int]:
    """A node that holds a shard together with s2; and the lease of s2."""
    served = serving()
    lease = served.model.grant(60, served.now_ns).lease
    served.put(
        KEYS.server("s2"), replace(RECORD, server="s2", process=88, lease=lease).to_bytes(), lease
    )
    epoch = Epoch(1, 1) if leads == ME else Epoch(1, 2)
    wanted = ("s1", "s2") if leads == ME else ("s2", "s1")
    record = ShardRecord(shard, epoch, *leads, (ME, OTHER), wanted, 1, "n")
    if leads == OTHER:
        served.put(KEYS.leader(shard), b"{}", lease)
    served.put(KEYS.shard(shard), record.to_bytes())
    return served, lease


def record_of(served: Served, shard: int) -> ShardRecord:
    (item,) = served.model.apply(Read(KEYS.shard(shard)), served.now_ns).items
    return ShardRecord.from_bytes(item.value, item.key)


def sent_to(served: Served, peer: str) -> list[Any]:
    return [send.message for send in served.sent if send.peer == peer]


def holds(served: Served, peer: str = DIALLED) -> None:
    """s2 says that it holds all that it was sent last."""
    appends = [message for message in sent_to(served, DIALLED) if isinstance(message, Append)]
    answers = tuple(
        AppendedPart(part.shard, part.epoch, part.attempt, Held.HELD, _last(part))
        for append in appends
        for part in append.parts
    )
    served.sent.clear()
    served.handle(MessageArrived(peer, Appended(answers)))


def _last(part: AppendPart) -> int:
    return part.entries[-1].at.lsn if part.entries else part.prev.lsn


def write(served: Served, shard: int) -> None:
    """A client opens a table; nothing is expected yet."""
    text = SparseSpec("t", 1, "int64", Sum()).to_json().encode()
    served.says(Request(Kind.OPEN_TABLE, 9, (Part(shard),), 1, table=1, text=text))


def answers(served: Served) -> list[Status]:
    told = [send.message for send in served.sent if isinstance(send.message, Answer)]
    return [status for answer in told for status in statuses(answer)]


# -- the primary's side


def test_an_answer_waits_for_the_other_server_and_ends_with_the_lease() -> None:
    served, _ = with_other(0, leads=ME)
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    write(served, 0)
    (append,) = sent_to(served, DIALLED)
    assert isinstance(append, Append)
    assert answers(served) == []
    holds(served)
    assert answers(served) == [Status.OK]
    assert served.sent[-1].until_ns == served.node.membership.deadline_ns


@pytest.mark.parametrize(
    "greeting", [None, Welcome("s2", 87, 1, 9), Welcome("s3", 88, 1, 9)],
    ids=["nobody", "another process", "another server"],
)  # fmt: skip
def test_only_the_process_that_the_connection_named_can_acknowledge(
    greeting: Welcome | None,
) -> None:
    served, _ = with_other(0, leads=ME)
    if greeting is not None:
        served.handle(MessageArrived(DIALLED, greeting))
    write(served, 0)
    holds(served)
    assert answers(served) == []


def test_a_client_cannot_pass_for_a_server_that_was_dialled() -> None:
    served, _ = with_other(0, leads=ME)
    write(served, 0)
    refusal = served.says(Welcome("s2", 88, 1, 9), "client:5")
    assert isinstance(refusal[0], Refuse)
    write(served, 0)
    holds(served, "client:5")
    assert answers(served) == []


def test_connections_to_a_process_that_was_replaced_are_dropped() -> None:
    served, _ = with_other(0, leads=ME)
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    served.others.clear()
    served.put(KEYS.server("s2"), replace(RECORD, server="s2", process=89, lease=1).to_bytes())
    assert [effect for effect in served.others if isinstance(effect, Drop)] == [
        Drop(DIALLED, "its process has been replaced")
    ]


def test_a_backup_whose_dial_is_refused_is_left_out() -> None:
    served, _ = with_other(0, leads=ME)
    served.handle(PeerLost(DIALLED, refused=True))
    assert record_of(served, 0).in_sync == (ME,)
    assert statuses(open_table(served, 0)) == [Status.OK]


def test_a_broken_connection_alone_leaves_nobody_out() -> None:
    served, _ = with_other(0, leads=ME)
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    served.handle(PeerLost(DIALLED))
    assert record_of(served, 0).in_sync == (ME, OTHER)


# -- the backup's side


def test_an_append_is_answered_on_its_connection_with_all_its_parts() -> None:
    served, lease = with_other(2, leads=OTHER)
    assert numbers(served) == [0, 1, 3]
    served.says(Hello(PROTOCOL, "c", "server s2", "s2", 88, lease), DIALS)
    prev = Position(Epoch(1, 1), 1)
    entry = Entry(Position(Epoch(1, 2), 2), Command(Kind.EPOCH))
    parts = (
        AppendPart(2, Epoch(1, 2), 1, prev, 1, (entry,)),
        AppendPart(3, Epoch(1, 0), 1, prev, 1),  # an old one: we lead it
        AppendPart(99, Epoch(1, 2), 1, prev, 1),  # there is no such shard
    )
    assert served.says(Append(parts), DIALS) == [
        Appended(
            (
                AppendedPart(2, Epoch(1, 2), 1, Held.HELD, 2),
                AppendedPart(3, Epoch(1, 1), 1, Held.STALE, 0),
            )
        )
    ]


def test_nothing_is_appended_for_who_has_not_greeted() -> None:
    served, _ = with_other(2, leads=OTHER)
    (refusal, _) = served.says(Append(()), "client:5")
    assert isinstance(refusal, Refuse)


# -- failover


def test_a_primary_whose_port_is_closed_is_succeeded_before_its_lease_ends() -> None:
    served, lease = with_other(2, leads=OTHER)
    served.says(Hello(PROTOCOL, "c", "server s2", "s2", 88, lease), DIALS)
    served.handle(PeerLost(DIALS))
    assert sent_to(served, DIALLED) == [Ask(0, "ping")]  # dials it
    assert numbers(served) == [0, 1, 3]
    served.handle(PeerLost(DIALLED, refused=True))
    assert numbers(served) == [0, 1, 2, 3]
    record = record_of(served, 2)
    assert (record.leader, record.epoch, record.in_sync) == (ME, Epoch(1, 3), (ME,))


def test_a_primary_that_answers_the_dial_stays() -> None:
    served, lease = with_other(2, leads=OTHER)
    served.says(Hello(PROTOCOL, "c", "server s2", "s2", 88, lease), DIALS)
    served.handle(PeerLost(DIALS))
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, lease)))
    served.handle(PeerLost(DIALLED))
    served.handle(PeerLost(DIALLED))
    assert record_of(served, 2).leader == OTHER


def test_a_process_that_leads_under_another_lease_is_not_taken_for_the_dead_one() -> None:
    served, lease = with_other(2, leads=OTHER)
    served.says(Hello(PROTOCOL, "c", "server s2", "s2", 87, lease + 1), DIALS)
    served.handle(PeerLost(DIALS))
    assert sent_to(served, DIALLED) == []
    served.handle(PeerLost(DIALLED, refused=True))
    assert record_of(served, 2).leader == OTHER


def test_when_the_leader_key_goes_with_its_lease_the_backup_takes_over() -> None:
    served, _ = with_other(2, leads=OTHER)
    served.model.expire(served.now_ns + 60 * SECOND_NS)  # of s2; ours too, as nobody renews
    for _ in range(4):
        served.now_ns += SECOND_NS
        for name in ("membership", "replicas"):
            served.handle(TimerFired(name))
    assert numbers(served) == [0, 1, 2, 3]
    assert record_of(served, 2).in_sync == (ME,)


# -- copies


def test_copies_of_many_shards_follow_one_another_without_waiting_for_the_timer() -> None:
    served, _ = with_other(0, leads=ME)
    for shard in range(4):
        record = replace(record_of(served, shard), in_sync=(ME,), desired=("s1", "s2"))
        served.put(KEYS.shard(shard), record.to_bytes())
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    taken: list[tuple[int, Copied]] = []
    while copies := [m for m in sent_to(served, DIALLED) if isinstance(m, Copy)]:
        served.sent.clear()
        assert len({piece.shard for piece in copies}) == 1  # one at a time
        for piece in copies:
            taken.append((piece.shard, piece.what))
            part = AppendedPart(piece.shard, piece.epoch, piece.attempt, Held.COPIED, piece.number)
            served.handle(MessageArrived(DIALLED, Appended((part,))))
    whats = (Copied.HEAD, Copied.END)
    assert sorted(taken) == [(shard, what) for shard in range(4) for what in whats]


def test_a_learner_that_is_busy_is_not_asked_for_all_other_shards_at_once() -> None:
    served, _ = with_other(0, leads=ME)
    for shard in range(4):
        record = replace(record_of(served, shard), in_sync=(ME,), desired=("s1", "s2"))
        served.put(KEYS.shard(shard), record.to_bytes())
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    (head,) = [m for m in sent_to(served, DIALLED) if isinstance(m, Copy)]
    served.sent.clear()
    busy = AppendedPart(head.shard, head.epoch, head.attempt, Held.BUSY, 0)
    served.handle(MessageArrived(DIALLED, Appended((busy,))))
    assert [m for m in sent_to(served, DIALLED) if isinstance(m, Copy)] == []
    served.handle(TimerFired("replicas"))
    (next_head,) = [m for m in sent_to(served, DIALLED) if isinstance(m, Copy)]
    assert next_head.shard != head.shard


# -- the orderly end


def test_a_server_that_stops_hands_its_shards_over_before_it_exits() -> None:
    served, _ = with_other(0, leads=ME)
    served.handle(MessageArrived(DIALLED, Welcome("s2", 88, 1, 9)))
    write(served, 0)
    holds(served)
    served.others.clear()
    served.handle(StopAsked())
    assert record_of(served, 0).leader == OTHER
    served.now_ns += SECOND_NS // 10
    served.handle(TimerFired("replicas"))
    assert served.others == [Exit(0, "stopped on request")]


def test_a_server_that_stops_does_not_wait_for_ever_for_an_heir_that_is_behind() -> None:
    served, _ = with_other(0, leads=ME)
    write(served, 0)  # s2 never acknowledges it
    served.handle(StopAsked())
    assert served.others == []
    served.now_ns += 10 * SECOND_NS
    served.handle(TimerFired("replicas"))
    assert served.others == [Exit(0, "stopped on request")]

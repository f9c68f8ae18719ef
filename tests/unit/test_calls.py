"""Calls: who is sent what, when it is sent again, and which answers count."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from routings import routing

from resilient_ps.calls import (
    PATIENT_NS,
    RARELY_NS,
    RESEND_FIRST_NS,
    RESEND_MOST_NS,
    RESEND_TIMER,
    ROUTING_REF,
    SILENCE_NS,
    Call,
    Calls,
    Piece,
)
from resilient_ps.coordinator.kv import KvCall, Read
from resilient_ps.ids import NOWHERE, Epoch, Position, WorkerId
from resilient_ps.machine import Drop, Effect, Send, SetTimer
from resilient_ps.messages import Answer, Kind, PartAnswer, Request, Status, Values

S1, S2 = "server:s1", "server:s2"


def calls(owners: str = "s1 s2 s1 s2", **options: str) -> Calls:
    return Calls(routing(owners, **options), b"/prefix/")


def call(made: Calls, kind: Kind = Kind.TICK, shards: tuple[int, ...] = (0, 2, 1, 3)) -> Call:
    return Call(made.next_number(), kind, shards, WorkerId(1, 0, 1), clock=3)


def at(lsn: int, epoch: int = 1) -> Position:
    return Position(Epoch(1, epoch), lsn)


def ok(shard: int, lsn: int = 1) -> PartAnswer:
    return PartAnswer(shard, Status.OK, at(lsn))


def sent(effects: list[Effect]) -> list[tuple[str, int, tuple[int, ...]]]:
    """Every request that goes out: peer, number, shards."""
    found = []
    for effect in effects:
        if isinstance(effect, Send):
            request = effect.message
            assert isinstance(request, Request)
            found.append((effect.peer, request.request, tuple(p.shard for p in request.parts)))
    return found


def again(made: Calls, now_ns: int = 10**9) -> list[tuple[str, int, tuple[int, ...]]]:
    """What is sent when the pause is over and the routing has been read."""
    assert made.on_timer(now_ns) == [KvCall(ROUTING_REF, Read(b"/prefix/", prefix=True))]
    return sent(made.on_routing(None, now_ns))


def test_one_message_goes_to_each_server_with_a_part_for_each_shard() -> None:
    made = calls()
    effects = made.start(call(made), 0)
    assert sent(effects) == [(S1, 1, (0, 2)), (S2, 1, (1, 3))]


def test_a_call_is_complete_when_all_shards_have_answered() -> None:
    made = calls()
    first = call(made)
    made.start(first, 0)
    assert made.on_answer(Answer(1, (ok(0), ok(2))), 0) == (None, [])
    assert made.on_answer(Answer(1, (ok(1),)), 0) == (None, [])
    assert made.on_answer(Answer(1, (ok(3),)), 0) == (first, [])
    assert made.open == {}
    assert first.failure() is None


def test_keys_and_values_of_a_servers_shards_travel_in_one_piece() -> None:
    made = calls()
    one = call(made, Kind.PUSH)
    one.keys = np.arange(10, dtype=np.uint64)
    values = np.arange(10, dtype=np.float32)
    firsts = {0: (0, 3), 2: (3, 2), 1: (5, 4), 3: (9, 1)}
    one.pieces = {
        shard: Piece(first, count, (values[first : first + count],), count)
        for shard, (first, count) in firsts.items()
    }
    requests = [e.message for e in made.start(one, 0) if isinstance(e, Send)]
    assert [request.keys.tolist() for request in requests] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    made.on_peer_lost(S1, 0)
    made.on_timer(0)
    alone = [e.message.keys.tolist() for e in made.on_routing(None, 0) if isinstance(e, Send)]
    assert alone == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("status", [Status.NOT_OWNER, Status.GAP, Status.BUSY])
def test_some_answers_are_not_final(status: Status) -> None:
    made = calls("s1")
    first = call(made, shards=(0,))
    made.start(first, 0)
    done, effects = made.on_answer(Answer(1, (PartAnswer(0, status, text=b"why"),)), 5)
    assert done is None
    assert effects == [SetTimer(RESEND_TIMER, 5 + RESEND_FIRST_NS)]
    assert made.waits_for(first).endswith("on s1 at 127.0.0.1:7000: why")
    assert again(made) == [(S1, 1, (0,))]


def test_who_is_not_the_owner_is_heard_although_it_stands_nowhere() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    made.on_answer(Answer(1, (ok(0, 50),)), 0)
    made.start(call(made, shards=(0,)), 0)
    _, effects = made.on_answer(Answer(2, (PartAnswer(0, Status.NOT_OWNER, NOWHERE),)), 0)
    assert effects
    assert again(made) == [(S1, 2, (0,))]


def test_after_a_broken_connection_all_that_is_open_goes_out_again_in_order() -> None:
    made = calls()
    for _ in range(3):
        made.start(call(made, Kind.PUSH, (0, 1)), 0)
    made.on_answer(Answer(2, (ok(0),)), 0)
    effects = made.on_peer_lost(S1, 7)
    assert effects == [SetTimer(RESEND_TIMER, 7 + RESEND_FIRST_NS)]
    assert again(made) == [(S1, 1, (0,)), (S1, 3, (0,))]


def test_a_call_that_begins_during_the_pause_keeps_its_place_behind_the_others() -> None:
    made = calls()
    made.start(call(made, Kind.PUSH, (0, 1)), 0)
    made.on_peer_lost(S1, 0)
    effects = made.start(call(made, Kind.PUSH, (0, 1)), 0)
    assert sent(effects) == [(S2, 2, (1,))]
    assert again(made) == [(S1, 1, (0,)), (S1, 2, (0,))]


def test_identity_and_order_are_the_same_when_sent_again() -> None:
    made = calls("s1")
    one = call(made, Kind.PUSH, (0,))
    one.n, one.pieces = 7, {0: Piece(prev=5)}
    first = made.start(one, 0)[0]
    made.on_peer_lost(S1, 0)
    made.on_timer(0)
    second = made.on_routing(None, 0)[0]
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    for name in ("kind", "request", "worker", "clock", "n", "parts"):
        assert getattr(first.message, name) == getattr(second.message, name)


def test_a_new_owner_is_sent_what_the_old_one_did_not_answer() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    made.on_peer_lost(S1, 0)
    made.on_timer(0)
    assert sent(made.on_routing(routing("s2"), 0)) == [(S2, 1, (0,))]


def test_nothing_is_sent_while_nobody_serves_the_shard() -> None:
    made = calls("-")
    first = call(made, shards=(0,))
    assert sent(made.start(first, 0)) == []
    assert again(made) == []
    assert "has no primary yet" in made.waits_for(first)
    made.on_timer(0)
    assert sent(made.on_routing(routing("s1"), 0)) == [(S1, 1, (0,))]


def test_a_routing_with_another_number_of_shards_is_not_taken() -> None:
    made = calls("s1")
    made.on_routing(routing("s2 s2"), 0)
    assert made.routing.shards == 1


def test_pauses_grow_to_a_maximum_and_begin_anew_after_an_answer() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    pauses = []
    for _ in range(10):
        (timer,) = made.on_peer_lost(S1, 0)
        assert isinstance(timer, SetTimer)
        pauses.append(timer.at_ns)
        again(made, 0)
    assert pauses[0] == RESEND_FIRST_NS
    assert all(later == min(2 * earlier, RESEND_MOST_NS) for earlier, later in pairwise(pauses))
    assert pauses[-1] == RESEND_MOST_NS
    made.on_answer(Answer(1, (ok(0),)), 0)
    made.start(call(made, shards=(0,)), 0)
    assert made.on_peer_lost(S1, 0) == [SetTimer(RESEND_TIMER, RESEND_FIRST_NS)]


def test_a_call_that_waits_for_long_follows_its_shard_to_another_owner() -> None:
    made = calls()
    effects = made.start(call(made, Kind.PUSH, (0, 1)), 5)
    assert effects[-1] == SetTimer(RESEND_TIMER, 5 + SILENCE_NS)
    made.start(call(made, Kind.PUSH, (0,)), 6)
    made.on_answer(Answer(1, (ok(1),)), 7)
    assert made.on_timer(5 + SILENCE_NS) == [KvCall(ROUTING_REF, Read(b"/prefix/", prefix=True))]
    effects = made.on_routing(routing("s2 s2 s1 s2"), 5 + SILENCE_NS)
    assert sent(effects) == [(S2, 1, (0,)), (S2, 2, (0,))]


def test_a_call_that_waits_for_long_at_its_owner_is_not_sent_again() -> None:
    made = calls()
    made.start(call(made, Kind.PULL, (0, 1)), 0)
    made.on_timer(SILENCE_NS)
    effects = made.on_routing(routing("s1 s2 s1 s2"), SILENCE_NS)
    assert effects == [SetTimer(RESEND_TIMER, 2 * SILENCE_NS)]  # but it looks again
    made.on_timer(2 * PATIENT_NS)
    effects = made.on_routing(routing("s1 s2 s1 s2"), 2 * PATIENT_NS)
    assert effects == [SetTimer(RESEND_TIMER, 2 * PATIENT_NS + RARELY_NS)]


def test_nothing_wakes_up_for_calls_that_are_answered() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    made.on_answer(Answer(1, (ok(0),)), 0)
    assert made.start(call(made, shards=(0,)), SILENCE_NS // 2)[1:] == []  # the timer is set
    assert made.on_timer(SILENCE_NS) == [SetTimer(RESEND_TIMER, SILENCE_NS * 3 // 2)]
    made.on_answer(Answer(2, (ok(0),)), 0)
    assert made.on_timer(SILENCE_NS * 3 // 2) == []


def test_the_routing_is_read_once_at_a_time() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    made.on_peer_lost(S1, 0)
    assert len(made.on_timer(0)) == 1
    assert made.on_peer_lost(S1, 0) == []
    assert made.on_timer(0) == []


def test_what_was_seen_goes_out_with_requests_and_never_goes_back() -> None:
    made = calls("s1")
    made.start(call(made, shards=(0,)), 0)
    made.on_answer(Answer(1, (ok(0, 9),)), 0)
    second = call(made, shards=(0,))
    (send,) = made.start(second, 0)
    assert isinstance(send, Send)
    assert send.message.parts[0].seen == at(9)  # type: ignore[union-attr]
    done, effects = made.on_answer(Answer(2, (ok(0, 8),)), 0)
    assert done is None
    assert effects  # an older answer: the shard is asked again
    assert made.seen == [at(9)]
    assert again(made) == [(S1, 2, (0,))]
    assert made.on_answer(Answer(2, (ok(0, 9),)), 0)[0] is second


def test_answers_that_nobody_waits_for_are_dropped() -> None:
    made = calls()
    made.start(call(made, shards=(0, 1)), 0)
    assert made.on_answer(Answer(99, (ok(0),)), 0) == (None, [])
    made.on_answer(Answer(1, (ok(0, 3),)), 0)
    assert made.on_answer(Answer(1, (PartAnswer(0, Status.FENCED, at(4)),)), 0) == (None, [])
    made.abandon(1)
    assert made.on_answer(Answer(1, (ok(1),)), 0) == (None, [])
    assert made.on_peer_lost(S1, 0) == []


def test_the_failure_of_the_first_shard_is_told() -> None:
    made = calls()
    one = call(made, shards=(0, 1, 2))
    made.start(one, 0)
    parts = (PartAnswer(2, Status.LEFT, at(1)), ok(0), PartAnswer(1, Status.FENCED, at(1)))
    made.on_answer(Answer(1, parts), 0)
    failure = one.failure()
    assert failure is not None
    assert (failure.shard, failure.status) == (1, Status.FENCED)


def test_values_are_placed_for_parts_that_are_waited_for_only() -> None:
    made = calls("s1 s1")
    one = call(made, Kind.PULL, (0, 1))
    one.out = memoryview(bytearray(12))
    one.pieces = {0: Piece(0, 1, start=0, stop=8), 1: Piece(1, 1, start=8, stop=12)}
    made.start(one, 0)
    (view,) = made.places(1, [ok(0), ok(1)]) or []
    assert view.nbytes == 12
    made.on_answer(Answer(1, (ok(0),), placed=True), 0)
    assert made.places(1, [ok(0)]) is None
    assert made.places(2, [ok(1)]) is None


def test_many_waiting_shards_are_summed_up() -> None:
    made = calls("- " * 7)
    text = made.waits_for(call(made, shards=tuple(range(7))))
    assert text.endswith("and 3 more shards")


def pulling(made: Calls) -> Call:
    """A pull of two int64 rows, of shard 0 and of shard 1, that is under way."""
    one = call(made, Kind.PULL, (0, 1))
    one.out = memoryview(bytearray(16))
    one.pieces = {0: Piece(0, 1, start=0, stop=8), 1: Piece(1, 1, start=8, stop=16)}
    made.start(one, 0)
    return one


def rows(*values: int) -> tuple[Values, ...]:
    return (np.array(values, np.int64),)


def test_of_an_answer_that_is_outdated_in_part_the_rest_is_taken() -> None:
    made = calls("s1 s1")
    one = pulling(made)
    made.seen[0] = at(5)
    parts = (ok(0, 3), ok(1, 3))
    assert made.places(1, parts, S1) is None
    made.on_answer(Answer(1, parts, rows(10, 11)), 0, S1)
    assert one.pending == {0}
    assert np.frombuffer(one.out, np.int64).tolist() == [0, 11]


def test_an_answer_that_was_repeated_in_part_does_not_count_twice() -> None:
    made = calls("s1 s1")
    one = pulling(made)
    made.on_answer(Answer(1, (ok(0, 3),), rows(10)), 0, S1)
    made.on_answer(Answer(1, (ok(0, 4), ok(1, 4)), rows(20, 21)), 0, S1)
    assert one.done
    assert np.frombuffer(one.out, np.int64).tolist() == [10, 21]


def test_nothing_more_is_received_of_an_answer_that_another_one_has_overtaken() -> None:
    made = calls("s1 s1")
    one = pulling(made)
    parts = (ok(0), ok(1))
    assert made.places(1, parts, S1) is not None  # it is being received, and hangs
    assert made.places(1, parts, S2) is None
    done, effects = made.on_answer(Answer(1, parts, rows(10, 11)), 0, S2)
    assert done is one
    assert np.frombuffer(one.out, np.int64).tolist() == [10, 11]
    assert [effect.peer for effect in effects if isinstance(effect, Drop)] == [S1]


def test_nothing_is_received_for_a_call_that_was_given_up() -> None:
    made = calls("s1 s1")
    pulling(made)
    assert made.places(1, (ok(0), ok(1)), S1) is not None
    made.abandon(1)
    assert [drop.peer for drop in made.strays()] == [S1]
    assert made.strays() == []


def test_what_was_received_in_part_when_its_connection_broke_may_come_from_elsewhere() -> None:
    made = calls("s1 s1")
    pulling(made)
    assert made.places(1, (ok(0), ok(1)), S1) is not None
    made.on_peer_lost(S1, 0)
    assert made.places(1, (ok(0), ok(1)), S2) is not None
    made.abandon(1)
    assert [drop.peer for drop in made.strays()] == [S2]


@pytest.mark.parametrize("values", [(), rows(10), rows(10, 11, 12)])
def test_an_answer_with_other_values_than_were_asked_for_is_none(
    values: tuple[Values, ...],
) -> None:
    made = calls("s1 s1")
    one = pulling(made)
    done, effects = made.on_answer(Answer(1, (ok(0), ok(1)), values), 0, S1)
    assert done is None
    assert [effect.peer for effect in effects if isinstance(effect, Drop)] == [S1]
    assert one.pending == {0, 1}

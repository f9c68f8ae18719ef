"""The coordinator divides quotas: when, in which steps, and what it writes down."""

from __future__ import annotations

import json
from dataclasses import replace

from candidates import KEYS, Candidate, elected

from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.machine import MessageArrived
from resilient_ps.messages import Answer, Kind, PartAnswer, Request, Status
from resilient_ps.quotas import QUOTAS_MAX, Give, Settle, said_in


def quota(candidate: Candidate, path: str, rows_max: int | None, *, in_force: int = 0) -> None:
    record = NamespaceRecord(rows_max, None, in_force)
    candidate.etcd.put(KEYS.namespace(path), record.to_bytes())


def record_of(candidate: Candidate, path: str) -> NamespaceRecord:
    value = candidate.etcd.get(KEYS.namespace(path))
    assert value is not None
    return NamespaceRecord.from_bytes(value, b"")


def asked(candidate: Candidate) -> Request:
    (request,) = candidate.requests()
    return request


def settle(candidate: Candidate, used: list[list[int]]) -> Give:
    """Both shards settle with these rows (by quota, by shard); gives what is given."""
    request = asked(candidate)
    assert isinstance(said_in(request.text), Settle)
    parts = tuple(
        PartAnswer(
            part.shard,
            Status.OK,
            value=request.clock,
            text=json.dumps([[rows[part.shard], 0] for rows in used]).encode(),
        )
        for part in request.parts
    )
    answer = Answer(request.request, parts)
    candidate.effects = candidate.controller.handle(
        MessageArrived("server:s1", answer), candidate.now_ns
    )
    said = said_in(asked(candidate).text)
    assert isinstance(said, Give)
    return said


def divided(candidate: Candidate, used: list[list[int]]) -> Give:
    """A whole round, until it is in force."""
    given = settle(candidate, used)
    candidate.answer()
    candidate.perform()
    return given


def test_without_quotas_no_shard_is_asked_anything() -> None:
    candidate = elected()
    candidate.look()
    assert candidate.requests() == []


def test_a_new_quota_is_settled_given_and_in_force_then() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    request = asked(candidate)
    assert (request.kind, [part.shard for part in request.parts]) == (Kind.QUOTA, [0, 1])
    given = settle(candidate, [[30, 10]])
    assert given.given[0].used.rows == 40
    assert given.given[0].share.rows == 30
    assert record_of(candidate, "ctr").in_force == 0
    candidate.answer()
    assert candidate.logs() == ["quotas are in force"]
    assert candidate.perform() == [True]
    assert record_of(candidate, "ctr").in_force == 1


def test_a_changed_quota_begins_another_round_with_a_larger_number() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    first = asked(candidate).clock
    divided(candidate, [[0, 0]])
    quota(candidate, "ctr", 200)
    candidate.look()
    assert asked(candidate).clock > first
    assert divided(candidate, [[0, 0]]).given[0].share.rows == 100
    quota(candidate, "ctr", None)
    candidate.look()
    assert said_in(asked(candidate).text) == Settle({})
    divided(candidate, [])
    assert record_of(candidate, "ctr").in_force == 1
    assert candidate.requests() == []


def test_a_successors_rounds_have_larger_numbers() -> None:
    one = elected()
    quota(one, "ctr", 100)
    one.look()
    first = asked(one).clock
    one.etcd.server("s2")
    two = Candidate(one.etcd, "s2")
    one.etcd.delete(KEYS.coordinator_leader)
    two.look()
    while not two.requests():
        two.perform()
        two.look()
    assert two.controller.elected
    assert asked(two).clock > first
    one.look()
    assert not one.controller.elected
    assert one.requests() == []


def test_what_a_deposed_coordinator_had_begun_is_begun_anew() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100, in_force=1)
    candidate.look()
    assert asked(candidate).kind is Kind.QUOTA  # who knows what the one before has given away


def test_a_shard_that_knows_a_later_round_ends_this_one_and_another_begins() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    first = asked(candidate).clock
    candidate.answer(Status.REFUSED, text=b"round 7 has begun")
    assert candidate.logs() == ["quotas could not be divided"]
    assert record_of(candidate, "ctr").in_force == 0
    candidate.look()
    assert asked(candidate).clock > first


def use(candidate: Candidate, rows: dict[int, int], wants: dict[int, int]) -> None:
    """Both shards say what they use and want of the only quota."""
    candidate.look()
    request = asked(candidate)
    assert request.kind is Kind.USE
    parts = tuple(
        PartAnswer(
            part.shard,
            Status.OK,
            text=json.dumps([[[rows[part.shard], 0], [wants.get(part.shard, 0), 0]]]).encode(),
        )
        for part in request.parts
    )
    candidate.effects = candidate.controller.handle(
        MessageArrived("server:s1", Answer(request.request, parts)), candidate.now_ns
    )


def test_who_waits_gets_what_others_have_left() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    divided(candidate, [[0, 0]])
    use(candidate, {0: 10, 1: 10}, {})
    assert candidate.requests() == []  # there is enough everywhere
    use(candidate, {0: 50, 1: 0}, {0: 70})
    given = divided(candidate, [[50, 0]]).given[0]
    assert given.more[0].rows == 20
    assert given.share.rows == 15
    assert not given.short


def test_who_waits_for_more_than_there_is_is_told_so() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    divided(candidate, [[0, 0]])
    use(candidate, {0: 50, 1: 40}, {0: 70})
    given = divided(candidate, [[50, 40]]).given[0]
    assert (given.more, given.share.rows) == ({}, 5)
    assert given.short[0].rows == 15


def test_nonsense_of_a_shard_is_told_and_changes_nothing() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    candidate.answer(text=b"[[1]]")
    assert candidate.logs() == ["a shard says what it cannot"]
    assert record_of(candidate, "ctr").in_force == 0


def test_of_too_many_quotas_the_first_are_kept() -> None:
    candidate = elected()
    for number in range(QUOTAS_MAX + 3):
        quota(candidate, f"n{number:03d}", 10)
    candidate.look()
    said = said_in(asked(candidate).text)
    assert isinstance(said, Settle)
    assert len(said.most) == QUOTAS_MAX
    divided(candidate, [[0, 0]] * QUOTAS_MAX)
    assert record_of(candidate, "n000").in_force == 1
    assert record_of(candidate, f"n{QUOTAS_MAX + 1:03d}").in_force == 0


def test_nothing_is_divided_while_a_shard_has_no_primary() -> None:
    candidate = elected()
    lost = replace(candidate.etcd.shard(1), primary="", primary_process=0)
    candidate.etcd.put(KEYS.shard(1), lost.to_bytes())
    quota(candidate, "ctr", 100)
    candidate.look()
    assert candidate.requests() == []


def test_numbers_of_rounds_only_grow_though_a_round_was_given_up() -> None:
    candidate = elected()
    quota(candidate, "ctr", 100)
    candidate.look()
    first = asked(candidate).clock
    candidate.answer(text=b"[[1]]")  # nonsense: it is given up
    candidate.look()
    assert asked(candidate).clock > first

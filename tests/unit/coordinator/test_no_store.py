"""Cuts, where the coordinator has no object store."""

from __future__ import annotations

import json

from candidates import KEYS, Candidate, elected

from resilient_ps.coordinator.cuts import CutPlan, is_pending, is_wish
from resilient_ps.coordinator.records import IntentRecord
from resilient_ps.machine import Send
from resilient_ps.messages import Ask, Kind, Told

PLAN = CutPlan("1-1-3fa9c2d1", {"j": 7}, {"j": 1})


def put_cut(candidate: Candidate, number: int, **details: object) -> None:
    record = IntentRecord(number, "cut", "", 0, 0, "open", details=dict(details))
    candidate.etcd.put(KEYS.intent(number), record.to_bytes())


def test_a_wish_is_refused_with_the_remedy() -> None:
    candidate = elected()
    put_cut(candidate, 1, why="a test")
    candidate.look()
    assert candidate.perform() == [True]
    record = candidate.etcd.intent_record(1)
    assert record.state == "aborted"
    assert "start every server with the same --store" in record.result["why"]
    assert not is_pending(record)


def test_an_attempt_of_a_predecessor_that_had_one_is_given_up_on_all_shards() -> None:
    candidate = elected()
    put_cut(candidate, 1, **PLAN.details())
    candidate.look()
    (request,) = candidate.requests()
    assert (request.kind, request.n) == (Kind.ABORT, 1)
    candidate.answer()
    assert candidate.perform() == [True]
    assert candidate.etcd.intent_record(1).state == "aborted"


def test_joins_go_on_beside_it() -> None:
    candidate = elected()
    put_cut(candidate, 1, why="a test")
    candidate.etcd.intent(2, "join", 5, 0)
    candidate.look()
    (request,) = candidate.requests()
    assert (request.kind, request.n) == (Kind.JOIN, 2)


def test_it_says_that_there_is_no_store() -> None:
    candidate = elected()
    (sent,) = candidate.controller.on_ask("client:1", Ask(3, '{"checkpoints": {}}'), 0)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Told)
    told = json.loads(sent.message.body)
    assert (told["elected"], told["store"]) == (True, False)


def test_a_plan_is_read_as_it_was_written_and_makes_the_cut_that_shards_are_told() -> None:
    plan = CutPlan(
        "1-9-3fa9c2d1", {"a": 7, "b": 3}, {"a": 2, "b": 1, "c": 5}, ("c",), "1-8-0", 2, 1, True, "x"
    )
    intent = IntentRecord(9, "cut", "", 0, 0, "open", details=plan.details())
    assert CutPlan.of(IntentRecord.from_bytes(intent.to_bytes(), b"k")) == plan
    cut = plan.cut(9)
    assert (cut.number, cut.clocks, cut.resting) == (9, ((1, 3), (2, 7)), (5,))
    assert (cut.hold, cut.base) == (True, "1-8-0")
    wish = IntentRecord(9, "cut", "", 0, 0, "open", details={"why": "x"})
    assert CutPlan.of(wish) is None
    assert is_wish(wish)
    assert not is_wish(intent)

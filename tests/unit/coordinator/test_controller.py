"""The coordinator: election, configuration, placement and intents, with etcd's model behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from candidates import JOB, KEYS, Candidate, Etcd, elected

from resilient_ps.coordinator.controller import RETRY_NS, ClusterWishes
from resilient_ps.coordinator.intents import job_spec
from resilient_ps.coordinator.kv import KvCall, KvFailed
from resilient_ps.coordinator.mandate import CAMPAIGN_REF
from resilient_ps.coordinator.reconciliation import OPS_PER_TXN
from resilient_ps.coordinator.records import JobRecord, Member, counter_bytes
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.ids import Epoch
from resilient_ps.machine import SetTimer
from resilient_ps.messages import Kind, Status

# -- configuration and election


def test_nothing_is_done_without_a_lease_or_before_the_first_read() -> None:
    candidate = Candidate(Etcd())
    assert candidate.controller.look(candidate.lease, 0) == []
    candidate.see()
    assert candidate.controller.look(0, 0) == []


def test_of_two_configurations_the_first_one_wins() -> None:
    etcd = Etcd()
    one = Candidate(etcd, "s1", ClusterWishes(initial_servers=2, shards=6))
    two = Candidate(etcd, "s2", ClusterWishes(initial_servers=3))
    one.look()
    two.look()
    assert two.perform() == [True]
    assert one.perform() == [False]
    one.see()
    assert one.view.config is not None
    assert (one.view.config.created_by, one.view.config.shards) == ("s2", 12)


def test_of_two_candidates_one_is_elected() -> None:
    etcd = Etcd()
    etcd.configure()
    one, two = Candidate(etcd, "s1"), Candidate(etcd, "s2")
    one.look()
    two.look()
    assert (one.perform(), two.perform()) == ([True], [False])
    one.look()
    assert two.look() == []
    assert one.controller.elected
    assert not two.controller.elected


def test_a_candidate_campaigns_when_the_coordinator_is_gone() -> None:
    etcd = Etcd()
    etcd.configure()
    one, two = Candidate(etcd, "s1"), Candidate(etcd, "s2")
    one.settle()
    two.settle()
    etcd.delete(KEYS.coordinator_leader)
    (call,) = two.look()
    assert call.ref == CAMPAIGN_REF
    assert two.perform() == [True]
    two.look()
    assert two.controller.elected


def test_a_key_under_an_earlier_lease_is_not_our_election() -> None:
    candidate = elected()
    candidate.lease = candidate.etcd.model.grant(1000, 0).lease
    candidate.look()
    assert not candidate.controller.elected


def test_of_each_kind_one_transaction_is_under_way_at_a_time() -> None:
    candidate = Candidate(Etcd())
    assert len(candidate.look()) == 1
    assert candidate.look() == []
    effects = candidate.controller.handle(KvFailed(20, Unavailable("gone"), unknown=True), 5)
    assert SetTimer("coordinator", 5 + RETRY_NS) in effects
    assert len(candidate.look()) == 1


# -- placement


def test_shards_are_placed_when_enough_servers_are_there() -> None:
    etcd = Etcd()
    etcd.configure(shards=8, servers=2)
    etcd.server("s1")
    candidate = Candidate(etcd)
    candidate.settle()
    assert candidate.view.shards == []
    etcd.server("s2")
    candidate.settle()
    first = [record.desired[0] for record in candidate.view.shards]
    assert sorted(first) == ["s1"] * 4 + ["s2"] * 4
    for record in candidate.view.shards:
        assert record.in_sync == tuple(Member(s, 100 + int(s[1:])) for s in record.desired)
        assert (record.primary, record.primary_process, record.epoch) == ("", 0, Epoch(1, 0))
        assert record.ring_version == 1


def test_many_shards_are_placed_in_several_transactions() -> None:
    etcd = Etcd()
    etcd.configure(shards=250)
    etcd.server("s1")
    candidate = Candidate(etcd)
    candidate.look()
    candidate.perform()
    sizes = []
    while calls := [e for e in candidate.look() if isinstance(e, KvCall)]:
        sizes += [len(call.request.success) for call in calls]
        candidate.perform()
    assert len(sizes) == 4  # the ring, and three for the shards
    assert sum(sizes) == 251
    assert max(sizes) < OPS_PER_TXN
    assert [record.shard for record in candidate.view.shards] == list(range(250))


def test_a_deposed_coordinator_places_nothing() -> None:
    etcd = Etcd()
    etcd.configure()
    etcd.server("s1")
    old = Candidate(etcd)
    old.look()
    old.perform()  # elected
    old.look()
    old.perform()  # the ring
    old.look()
    etcd.delete(KEYS.coordinator_leader)
    assert old.perform() == [False]
    assert etcd.get(KEYS.shard(0)) is None


def test_shards_stay_where_they_are_while_the_ring_does() -> None:
    candidate = elected()
    before = candidate.view.shards
    candidate.etcd.put(KEYS.job("other"), replace(JOB, name="other").to_bytes())
    candidate.settle()
    assert candidate.view.shards == before


# -- intents


def run_leave(candidate: Candidate, ticked: int = 3) -> None:
    """Answer fence, redo and leave."""
    for kind in (Kind.FENCE, Kind.REDO, Kind.LEAVE):
        assert [request.kind for request in candidate.requests()] == [kind]
        candidate.answer(value=ticked)


def test_a_leave_is_executed_and_closed() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "leave", rank=1)
    candidate.look()
    run_leave(candidate)
    candidate.perform()
    record = candidate.etcd.intent_record(1)
    assert (record.state, record.result) == ("done", {"ticked": 3})


def test_a_join_answers_the_clock_before_the_first() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    assert [(r.kind, r.n, r.worker.rank) for r in candidate.requests()] == [(Kind.JOIN, 1, 7)]
    candidate.answer(value=5)
    candidate.perform()
    assert candidate.etcd.intent_record(1).result == {"ticked": 4}


def test_intents_are_executed_one_at_a_time_in_the_order_of_their_numbers() -> None:
    candidate = elected()
    candidate.etcd.intent(12, "join", rank=7)
    candidate.etcd.intent(3, "leave", rank=1)
    candidate.look()
    assert {request.n for request in candidate.requests()} == {3}
    candidate.look()
    assert candidate.requests() == []
    candidate.controller.look(0, 0)  # the script is given up with the lease ...
    candidate.look()
    assert {request.n for request in candidate.requests()} == {3}  # ... and begun again
    run_leave(candidate)
    candidate.perform()
    candidate.look()
    assert {request.n for request in candidate.requests()} == {12}


def test_answers_to_a_script_that_was_given_up_are_not_taken_for_those_of_the_next() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "leave", rank=1)
    candidate.look()
    (old,) = candidate.requests()
    candidate.controller.look(0, 0)
    candidate.look()
    (new,) = candidate.requests()
    assert new.request != old.request
    assert candidate.answer_to(old, value=9) == []
    candidate.answer_to(new, value=3)
    assert [request.kind for request in candidate.requests()] == [Kind.REDO]


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_deposed_coordinator_closes_no_intent(has_successor: bool) -> None:
    candidate = elected()
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    candidate.etcd.delete(KEYS.coordinator_leader)
    if has_successor:
        Candidate(candidate.etcd, "s2").settle()
    requests = candidate.requests()
    candidate.see()  # it knows of its end, but has not looked what to do
    candidate.answer_to(requests[0], value=5)
    assert candidate.effects == []
    assert candidate.etcd.intent_record(1).state == "open"


def test_a_coordinator_that_does_not_know_of_its_end_changes_nothing() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    candidate.etcd.delete(KEYS.coordinator_leader)
    candidate.answer(value=5)
    assert candidate.perform() == [False]
    assert candidate.etcd.intent_record(1).state == "open"


def test_a_leave_that_is_overtaken_by_a_new_process_draws_a_larger_number() -> None:
    candidate = elected()
    candidate.etcd.put(KEYS.rank("j", 1), counter_bytes(8))
    candidate.etcd.intent(1, "leave", rank=1, incarnation=4)
    candidate.look()
    candidate.answer(Status.FENCED, value=8)
    assert candidate.perform() == [True]
    assert candidate.etcd.get(KEYS.rank("j", 1)) == counter_bytes(9)
    assert candidate.etcd.intent_record(1).incarnation == 9
    candidate.look()
    assert {request.worker.incarnation for request in candidate.requests()} == {9}


def test_a_number_drawn_meanwhile_makes_the_redraw_fail_and_be_tried_again() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "leave", rank=1)
    candidate.look()
    candidate.answer(Status.FENCED, value=8)
    candidate.etcd.put(KEYS.rank("j", 1), counter_bytes(8))
    assert candidate.perform() == [False]
    assert SetTimer("coordinator", candidate.now_ns + RETRY_NS) in candidate.effects
    assert candidate.etcd.intent_record(1).incarnation == 4
    candidate.look()
    candidate.answer(Status.FENCED, value=8)
    assert candidate.perform() == [True]
    assert candidate.etcd.intent_record(1).incarnation == 9


def test_a_refusal_aborts_the_intent_and_says_why() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "leave", rank=1)
    candidate.look()
    candidate.answer(Status.UNKNOWN, text=b"rank 1 is not in job 'j'")
    candidate.perform()
    record = candidate.etcd.intent_record(1)
    assert (record.state, record.result) == ("aborted", {"why": "rank 1 is not in job 'j'"})


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (None, "there is no job 'j'"),
        (JobRecord(1, "j", "bsp:median", 2, "running"), "bsp:median"),
        (JobRecord(1, "j", "tasks", 2, "running"), "lanes neither join nor leave"),
    ],
)
def test_an_intent_without_a_usable_job_is_aborted(job: JobRecord | None, why: str) -> None:
    candidate = elected()
    candidate.etcd.delete(KEYS.job("j"))
    if job is not None:
        candidate.etcd.put(KEYS.job("j"), job.to_bytes())
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    candidate.perform()
    record = candidate.etcd.intent_record(1)
    assert record.state == "aborted"
    assert why in str(record.result)


def test_a_counter_that_cannot_be_read_aborts_the_intent() -> None:
    candidate = elected()
    candidate.etcd.put(KEYS.rank("j", 1), b"many")
    candidate.etcd.intent(1, "leave", rank=1)
    candidate.look()
    candidate.answer(Status.FENCED, value=8)
    candidate.perform()
    assert candidate.etcd.intent_record(1).state == "aborted"


def test_an_intent_that_was_removed_meanwhile_is_left_alone() -> None:
    candidate = elected()
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    (request,) = candidate.requests()
    candidate.etcd.delete(KEYS.intent(1))
    candidate.look()
    assert candidate.answer_to(request, value=5) == []
    assert candidate.look() == []


def test_an_intent_waits_until_all_shards_are_placed() -> None:
    etcd = Etcd()
    etcd.configure(shards=2, servers=2)
    etcd.server("s1")
    etcd.put(KEYS.job("j"), JOB.to_bytes())
    etcd.intent(1, "join", rank=7)
    candidate = Candidate(etcd)
    candidate.settle()
    assert candidate.requests() == []


def test_an_unreadable_record_of_a_server_does_not_stop_intents() -> None:
    candidate = elected()
    candidate.etcd.put(KEYS.server("s9"), b"\xff")
    candidate.etcd.intent(1, "join", rank=7)
    candidate.look()
    assert len(candidate.requests()) == 1


def test_a_jobs_record_is_its_specification() -> None:
    spec = job_spec(JOB)
    assert (spec.job, spec.name, spec.ranks) == (1, "j", 2)
    with pytest.raises(BadInput, match="job 'j' in etcd"):
        job_spec(JobRecord(1, "j", "nothing", 2, "running"))

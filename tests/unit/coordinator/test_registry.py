"""Who is heard of, for how long somebody was silent, and which ranks are evicted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from candidates import JOB, KEYS, Candidate, elected

from resilient_ps.coordinator.data_shards import DataShards, Grant
from resilient_ps.coordinator.eviction import EVICT_REF
from resilient_ps.coordinator.fields import INT64_MAX
from resilient_ps.coordinator.kv import KvCall
from resilient_ps.coordinator.records import IntentRecord, JobRecord, counter_bytes
from resilient_ps.coordinator.registry import (
    WORKERS_MAX,
    WORKERS_TOLD,
    Heartbeat,
    Seat,
    WorkerRegistry,
)
from resilient_ps.errors import BadInput
from resilient_ps.machine import Send
from resilient_ps.messages import Ask, Told

SECOND_NS = 10**9
SEAT = Seat("j", 3)
PATIENT = replace(JOB, evict_after_s=10.0)


def beat(seat: Seat = SEAT, incarnation: int = 1, pid: int = 7) -> Heartbeat:
    return Heartbeat(seat, incarnation, "box", pid)


def silent(registry: WorkerRegistry, incarnation: int, at_s: int, limit_s: int = 10) -> bool:
    """Is the rank silent for the limit, looked at every second up to then?"""
    found = registry.silent({SEAT: incarnation}, limit_s * SECOND_NS, at_s * SECOND_NS)
    return found == [SEAT]


# -- silence


def test_the_time_begins_when_the_rank_is_seen_for_the_first_time() -> None:
    registry = WorkerRegistry()
    assert not silent(registry, 1, at_s=100)
    assert not silent(registry, 1, at_s=109)
    assert silent(registry, 1, at_s=110)


def test_a_process_from_before_etcd_was_lost_is_forgotten_when_it_is_silent() -> None:
    """Incarnations of ranks begin at 1 again then: its own was larger."""
    registry = WorkerRegistry()
    silent(registry, 1, at_s=0)
    registry.hear(beat(incarnation=5), 0)
    for second in range(1, 30):
        registry.hear(beat(incarnation=1), second * SECOND_NS)
        assert not silent(registry, 1, at_s=second)


def test_what_is_heard_of_an_earlier_process_does_not_count_for_the_present_one() -> None:
    registry = WorkerRegistry()
    silent(registry, 2, at_s=0)
    registry.hear(beat(incarnation=2), 0)
    for second in range(1, 10):
        registry.hear(beat(incarnation=1), second * SECOND_NS)
        assert not silent(registry, 2, at_s=second)
    assert silent(registry, 2, at_s=10)


def test_whoever_is_heard_of_is_not_silent() -> None:
    registry = WorkerRegistry()
    silent(registry, 1, at_s=0)
    registry.hear(beat(), 8 * SECOND_NS)
    assert not silent(registry, 1, at_s=17)
    assert silent(registry, 1, at_s=18)


def test_an_earlier_process_of_the_rank_does_not_speak_for_a_later_one() -> None:
    registry = WorkerRegistry()
    silent(registry, 2, at_s=0)
    registry.hear(beat(incarnation=1), 9 * SECOND_NS)
    assert silent(registry, 2, at_s=10)
    registry.hear(beat(incarnation=2), 11 * SECOND_NS)
    registry.hear(beat(incarnation=1), 12 * SECOND_NS)
    assert registry.status(12 * SECOND_NS)["workers"][0]["incarnation"] == 2


def test_a_new_process_of_the_rank_has_the_whole_time() -> None:
    registry = WorkerRegistry()
    silent(registry, 1, at_s=0)
    assert not silent(registry, 2, at_s=9)
    assert not silent(registry, 2, at_s=18)
    assert silent(registry, 2, at_s=19)


def test_silence_does_not_count_while_nobody_was_listening() -> None:
    registry = WorkerRegistry()
    silent(registry, 1, at_s=0)
    for second in range(9):
        registry.look(second * SECOND_NS)
    registry.look(60 * SECOND_NS)  # we were paused ourselves
    assert not silent(registry, 1, at_s=60)
    assert not silent(registry, 1, at_s=69)
    assert silent(registry, 1, at_s=70)


def test_a_registry_that_was_dropped_knows_nobody() -> None:
    registry = WorkerRegistry()
    registry.hear(beat(), 0)
    silent(registry, 1, at_s=0)
    registry.drop()
    assert registry.status(0) == {"workers": [], "workers_left_out": 0}
    assert not silent(registry, 1, at_s=100)


def test_a_worker_that_ended_is_shown_no_more_and_its_rank_is_silent_from_then_on() -> None:
    registry = WorkerRegistry()
    silent(registry, 1, at_s=0)
    registry.hear(beat(), 3 * SECOND_NS)
    registry.part(beat(), 4 * SECOND_NS)
    assert registry.status(5 * SECOND_NS)["workers"] == []
    assert not silent(registry, 1, at_s=13)
    assert silent(registry, 1, at_s=14)
    registry.hear(beat(incarnation=3), 20 * SECOND_NS)
    registry.part(beat(incarnation=2), 21 * SECOND_NS)  # not the one that is running
    assert len(registry.status(0)["workers"]) == 1


def test_memory_and_answers_are_bounded() -> None:
    registry = WorkerRegistry()
    for number in range(WORKERS_MAX + 10):
        registry.hear(beat(Seat("j", number)), number)
    told = registry.status(0)
    assert len(told["workers"]) == WORKERS_TOLD
    assert told["workers_left_out"] == WORKERS_MAX - WORKERS_TOLD
    assert told["workers"][0]["rank"] == 10  # those heard of longest ago are forgotten
    registry.forget({"other": None})
    assert registry.status(0)["workers"] == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "a heartbeat is an object"),
        ({"job": ""}, "job is a name of 1 to 100"),
        ({"job": 3}, "job is a name"),
        ({"rank": -1}, "rank is a whole number from 0 to 65535"),
        ({"rank": True}, "rank is a whole number"),
        ({"incarnation": INT64_MAX + 1}, "incarnation is a whole number"),
        ({"host": None}, "host is a text"),
        ({"pid": "7"}, "pid is a whole number"),
    ],
)
def test_what_is_no_heartbeat_is_refused(fields: Any, says: str) -> None:
    good = {"job": "j", "rank": 0, "incarnation": 1, "host": "box", "pid": 1}
    with pytest.raises(BadInput, match=says):
        Heartbeat.from_json({**good, **fields} if isinstance(fields, dict) else fields)


def test_a_hosts_name_is_cut_to_something_that_can_be_told() -> None:
    told = Heartbeat.from_json(
        {"job": "j", "rank": 0, "incarnation": 1, "host": "\ud800ü" * 300, "pid": 1}
    )
    assert told.host == "?" * 100


# -- questions to the coordinator


def ask(candidate: Candidate, what: str) -> dict[str, Any]:
    (send,) = candidate.controller.on_ask("client:1", Ask(5, what), candidate.now_ns)
    assert isinstance(send, Send)
    assert isinstance(send.message, Told)
    assert (send.peer, send.message.request) == ("client:1", 5)
    return dict(json.loads(send.message.body))


HEARTBEAT = {"job": "j", "rank": 3, "incarnation": 1, "host": "box", "pid": 7}


def test_the_coordinator_tells_whom_it_has_heard_of() -> None:
    candidate = elected()
    assert ask(candidate, json.dumps({"heartbeat": HEARTBEAT})) == {"elected": True}
    candidate.now_ns += 2 * SECOND_NS
    told = ask(candidate, '{"workers": {}}')
    assert told["workers"] == [{**HEARTBEAT, "silent_s": 2.0}]
    ask(candidate, json.dumps({"goodbye": HEARTBEAT}))
    assert ask(candidate, '{"workers": {}}')["workers"] == []


def test_who_is_not_the_coordinator_says_so() -> None:
    candidate = elected()
    candidate.etcd.delete(KEYS.coordinator_leader)
    candidate.see()
    told = ask(candidate, json.dumps({"heartbeat": HEARTBEAT}))
    assert told == {"error": "s1 is not the coordinator", "elected": False}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("{", "no JSON"),
        ('{"heartbeat": ' * 290, "no JSON"),
        ("[" * 4_000, "no JSON"),
        ("{}", "one field"),
        ('{"a": 1, "b": 2}', "one field"),
        ('{"future": 1}', "knows nothing of 'future'"),
        ('{"heartbeat": 1}', "a heartbeat is an object"),
        ('{"a": "' + "x" * 30_000 + '"}', "characters; at most"),
    ],
)
def test_other_questions_are_answered_with_what_is_wrong(what: str, says: str) -> None:
    assert says in ask(elected(), what)["error"]


# -- eviction


def training(job: JobRecord = PATIENT) -> Candidate:
    """The coordinator of a cluster in which a process has taken rank 3 of a job."""
    candidate = elected()
    candidate.etcd.put(KEYS.job("j"), job.to_bytes())
    candidate.etcd.put(KEYS.rank("j", 3), counter_bytes(1))
    candidate.settle()
    return candidate


def pass_time(candidate: Candidate, seconds: int, *, heard: bool = False) -> list[IntentRecord]:
    """Time passes; the intents that there are then."""
    for _ in range(seconds):
        candidate.look()
        candidate.perform()
        if heard:
            ask(candidate, json.dumps({"heartbeat": HEARTBEAT}))
    candidate.see()
    return candidate.view.intents


def test_a_rank_that_is_silent_for_too_long_leaves_by_an_intent() -> None:
    candidate = training()
    assert pass_time(candidate, 9) == []
    (intent,) = pass_time(candidate, 3)
    assert (intent.kind, intent.job, intent.rank, intent.state) == ("leave", "j", 3, "open")
    assert intent.incarnation == 2  # the silent process is fenced by it
    assert candidate.etcd.get(KEYS.rank("j", 3)) == counter_bytes(2)
    assert candidate.etcd.get(KEYS.counter("intents")) == counter_bytes(1)
    assert len(pass_time(candidate, 30)) == 1


def test_a_rank_that_is_heard_of_stays() -> None:
    candidate = training()
    assert pass_time(candidate, 30, heard=True) == []
    assert pass_time(candidate, 9) == []
    assert len(pass_time(candidate, 3)) == 1


@pytest.mark.parametrize(
    "job", [JOB, replace(PATIENT, state="stopped"), replace(PATIENT, state="done")]
)
def test_jobs_that_do_not_say_so_or_do_not_run_evict_nobody(job: JobRecord) -> None:
    assert pass_time(training(job), 30) == []


def test_a_rank_that_has_finished_is_not_expected() -> None:
    candidate = training()
    candidate.etcd.put(KEYS.finished("j", 3), counter_bytes(1))
    assert pass_time(candidate, 30) == []


def test_a_rank_that_has_left_is_not_expected_until_somebody_takes_it_again() -> None:
    candidate = training()
    left = IntentRecord(1, "leave", "j", 3, 1, "done")
    candidate.etcd.put(KEYS.intent(1), left.to_bytes())
    candidate.etcd.put(KEYS.counter("intents"), counter_bytes(1))
    assert len(pass_time(candidate, 30)) == 1
    candidate.etcd.put(KEYS.rank("j", 3), counter_bytes(2))
    assert [i.number for i in pass_time(candidate, 14)] == [1, 2]


def test_a_process_that_takes_the_rank_meanwhile_makes_the_eviction_fail() -> None:
    candidate = training()
    pass_time(candidate, 9)
    while not any(isinstance(e, KvCall) and e.ref == EVICT_REF for e in candidate.look()):
        candidate.perform()
    assert "rank evicted" in candidate.logs()
    candidate.etcd.put(KEYS.rank("j", 3), counter_bytes(2))
    assert candidate.perform() == [False]
    assert pass_time(candidate, 9) == []


def test_a_rank_with_a_data_shard_in_hand_is_not_evicted_and_that_is_said_once() -> None:
    candidate = training()
    held = DataShards(1, "data", 4, 1, 1, 0, (Grant(0, 3, 1),))
    candidate.etcd.put(KEYS.data_shards("j"), held.to_bytes())
    logs: list[str] = []
    for _ in range(30):
        candidate.look()
        logs += candidate.logs()
        candidate.perform()
    assert logs == ["silent rank cannot be evicted"]
    candidate.see()
    assert candidate.view.intents == []


def test_a_new_coordinator_gives_every_rank_the_whole_time() -> None:
    candidate = training()
    pass_time(candidate, 9)
    candidate.etcd.delete(KEYS.coordinator_leader)
    successor = Candidate(candidate.etcd, "s2")
    successor.now_ns = candidate.now_ns
    successor.settle()
    assert pass_time(successor, 8) == []
    assert len(pass_time(successor, 4)) == 1


def test_evictions_of_several_ranks_follow_each_other() -> None:
    candidate = training()
    for rank in range(3):
        candidate.etcd.put(KEYS.rank("j", rank), counter_bytes(1))
    intents = pass_time(candidate, 20)
    assert sorted(intent.rank for intent in intents) == [0, 1, 2, 3]
    assert [intent.number for intent in intents] == [1, 2, 3, 4]

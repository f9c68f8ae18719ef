"""A server as a whole: greetings, leases, whose shards it serves, and bad records in etcd."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from served_node import (
    CLIENT,
    KEYS,
    LEASE_S,
    SECOND_NS,
    Served,
    ask,
    elsewhere,
    numbers,
    open_table,
    serving,
    statuses,
)

from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import (
    KvCall,
    KvReset,
    LeaseRefresh,
    Read,
    ReadResult,
)
from resilient_ps.ids import READER, Epoch, Position, WorkerId
from resilient_ps.machine import (
    Drop,
    Exit,
    PeerLost,
    Started,
    StopAsked,
    TimerFired,
)
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Ask,
    Hello,
    Kind,
    Part,
    PartAnswer,
    Refuse,
    Request,
    Status,
    Told,
    Welcome,
)

# -- coming up


def test_a_lone_server_creates_its_cluster_and_serves_all_shards() -> None:
    served = serving()
    status = served.node.status(served.now_ns)
    assert status["coordinator"]
    assert status["lease_s"] == LEASE_S
    assert status["connections"] == 1
    assert [shard["shard"] for shard in status["shards"]] == [0, 1, 2, 3]


def test_other_shards_than_the_clusters_are_asked_for_in_vain_and_it_says_so_once() -> None:
    served = Served(ClusterWishes(shards=8))
    config = ClusterWishes(shards=4).config("0123456789abcdef", "s0")
    served.put(KEYS.config, config.to_bytes())
    served.handle(Started())
    assert numbers(served) == [0, 1, 2, 3]
    (warned,) = [log for log in served.logs if "number of shards" in log.event]
    assert (warned.fields["shards"], warned.fields["asked_for"]) == (4, 8)
    assert "--shards" in str(warned.fields["remedy"])


def test_without_etcd_it_tries_again_and_serves_when_etcd_comes() -> None:
    served = Served()
    served.etcd_answers = False
    served.handle(Started())
    assert numbers(served) == []
    served.etcd_answers = True
    served.now_ns += SECOND_NS
    for name in ("membership", "view"):
        served.handle(TimerFired(name))
    assert numbers(served) == [0, 1, 2, 3]


# -- greetings


def test_a_greeting_is_answered_with_who_it_is() -> None:
    served = serving(greeted=False)
    assert served.says(Hello(PROTOCOL, "c", "a test")) == [Welcome("s1", 77, 1, lease=1)]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello(PROTOCOL, "other", "x"), "belongs to cluster 'c', not 'other'"),
        (Hello(PROTOCOL + 1, "c", "x"), "upgrade one of them"),
    ],
)
def test_who_wants_another_cluster_or_protocol_is_refused_and_dropped(
    hello: Hello, why: str
) -> None:
    served = serving(greeted=False)
    refuse, drop = served.says(hello)
    assert isinstance(refuse, Refuse)
    assert why in refuse.why
    assert isinstance(drop, Drop)
    assert isinstance(served.says(Ask(1, "status"))[0], Refuse)


@pytest.mark.parametrize("message", [Request(Kind.PULL, 1, (Part(0),)), Ask(1, "status")])
def test_nothing_is_answered_before_a_greeting(message: Any) -> None:
    served = serving(greeted=False)
    refuse, drop = served.says(message)
    assert refuse == Refuse("say Hello first")
    assert drop == Drop(CLIENT, "no greeting")


def test_a_peer_that_comes_back_must_greet_again() -> None:
    served = serving()
    served.handle(PeerLost(CLIENT))
    assert isinstance(served.says(Ask(1, "status"))[0], Refuse)


def test_its_status_is_told() -> None:
    (told,) = serving().says(Ask(4, "status"))
    assert isinstance(told, Told)
    assert told.request == 4
    assert json.loads(told.body)["server"] == "s1"


def test_a_coordinator_whose_lease_may_have_ended_sends_whoever_asks_elsewhere() -> None:
    """It may have been deposed, and would not hear of it: who stayed would stay for ever."""
    served = serving()
    question = Ask(5, '{"workers": {}}')
    (told,) = served.says(question)
    assert isinstance(told, Told)
    assert json.loads(told.body)["elected"] is True
    served.now_ns = served.node.membership.deadline_ns
    (told,) = served.says(question)
    assert isinstance(told, Told)
    assert json.loads(told.body)["elected"] is False


def test_answers_from_clients_are_ignored() -> None:
    served = serving()
    assert served.says(Answer(1, (PartAnswer(0, Status.OK),))) == []


# -- serving


def test_the_parts_of_a_request_are_answered_in_one_message() -> None:
    answer = open_table(serving(), 0, 2, 3)
    assert [part.shard for part in answer.parts] == [0, 2, 3]
    assert statuses(answer) == [Status.OK] * 3


def test_each_part_gets_its_own_keys_and_values() -> None:
    served = serving()
    open_table(served, 0, 1)
    text = JobSpec(1, "j", 1, BSP()).to_json().encode()
    me = WorkerId(1, 0, 1)
    ask(served, Kind.OPEN_JOB, 0, 1, worker=me, text=text)
    ask(served, Kind.FENCE, 0, 1, worker=me)
    keys, values = np.array([1, 2, 3], np.uint64), np.array([10, 20, 30], np.int64)
    parts = (Part(0, count=1, elements=1), Part(1, count=2, elements=2))
    served.says(
        Request(Kind.PUSH, 1, parts, 1, me, clock=1, n=1, table=1, keys=keys, values=(values,))
    )
    tick = Request(Kind.TICK, 2, (Part(0, prev=1), Part(1, prev=1)), 1, me, clock=1)
    assert statuses(served.says(tick)[0]) == [Status.OK] * 2
    pull = Request(
        Kind.PULL, 3, (Part(0, count=2), Part(1, count=2)), 1, READER, table=1,
        keys=np.array([1, 2, 3, 2], np.uint64),
    )  # fmt: skip
    (answer,) = served.says(pull)
    assert np.concatenate(answer.values).tolist() == [10, 0, 30, 20]


@pytest.mark.parametrize(
    ("shards", "keys", "together"),
    [((0, 1, 2), 120_000, [3]), ((0, 1, 2), 1_000, []), ((0,), 120_000, []), ((0, 0), 120_000, [])],
    ids=["large", "small", "one shard", "one shard twice"],
)
def test_only_different_shards_of_large_requests_are_worked_on_in_parallel(
    shards: tuple[int, ...], keys: int, together: list[int]
) -> None:
    served = serving()
    served.node._requests._all_rules = False  # the quick way has threads of its own
    open_table(served, 0, 1, 2)
    parts = tuple(Part(shard, count=keys // len(shards)) for shard in shards)
    pull = Request(Kind.PULL, 3, parts, 1, READER, table=1, keys=np.arange(keys, dtype=np.uint64))
    (answer,) = served.says(pull)
    assert [part.shard for part in answer.parts] == list(shards)
    assert served.together == together


def test_shards_of_elsewhere_and_of_a_later_position_are_not_its_own() -> None:
    served = serving()
    elsewhere = ask(served, Kind.TICK, 0, 99)
    assert statuses(elsewhere) == [Status.UNKNOWN, Status.NOT_OWNER]
    later = ask(served, Kind.TICK, 0, seen=Position(Epoch(1, 2), 0))
    assert statuses(later) == [Status.NOT_OWNER]


def test_past_its_lease_it_answers_nothing_but_not_owner() -> None:
    served = serving()
    served.etcd_answers = False
    served.now_ns += int(LEASE_S * SECOND_NS) - 1
    assert statuses(open_table(served, 0)) == [Status.OK]
    served.now_ns += 1
    answer = open_table(served, 0, 1)
    assert statuses(answer) == [Status.NOT_OWNER] * 2
    assert b"no valid lease" in answer.parts[0].text
    served.etcd_answers = True
    served.handle(TimerFired("membership"))
    assert statuses(open_table(served, 1)) == [Status.OK]


def test_a_shard_that_goes_to_another_is_dropped() -> None:
    served = serving()
    served.put(KEYS.shard(2), elsewhere(2))
    assert numbers(served) == [0, 1, 3]
    assert statuses(ask(served, Kind.TICK, 2)) == [Status.NOT_OWNER]


def test_the_shards_of_an_earlier_process_of_this_name_are_not_its_own() -> None:
    served = serving()
    served.put(KEYS.shard(2), elsewhere(2, process=76, server="s1"))
    assert 2 not in numbers(served)


def test_a_lost_lease_is_replaced_and_shards_are_kept() -> None:
    served = serving()
    shards = served.node.served()
    served.now_ns += 10 * SECOND_NS
    served.model.expire(served.now_ns)
    served.handle(TimerFired("membership"))
    assert [log.event for log in served.logs if log.level == "error"] == ["lease lost"]
    assert served.node.membership.may_answer(served.now_ns)
    served.now_ns += SECOND_NS
    served.handle(TimerFired("replicas"))
    assert [id(shard) for shard in served.node.served()] == [id(shard) for shard in shards]
    assert {shard.epoch for shard in shards} == {Epoch(1, 2)}


# -- waiting pulls


def waiting(served: Served, wait_s: float = 2.0) -> Request:
    """A pull of clock 2 that waits for the other rank."""
    open_table(served, 0)
    text = JobSpec(1, "j", 2, BSP()).to_json().encode()
    me = WorkerId(1, 0, 1)
    ask(served, Kind.OPEN_JOB, 0, worker=me, text=text)
    ask(served, Kind.FENCE, 0, worker=me)
    pull = Request(
        Kind.PULL, 5, (Part(0, count=1),), 1, me, clock=2, table=1,
        keys=np.array([1], np.uint64), wait_ns=int(wait_s * SECOND_NS),
    )  # fmt: skip
    assert served.says(pull) == []
    return pull


def test_a_waiting_pull_is_answered_at_its_deadline() -> None:
    served = serving()
    waiting(served)
    assert served.timers["pulls"] == served.now_ns + 2 * SECOND_NS
    served.now_ns = served.timers["pulls"]
    served.handle(TimerFired("pulls"))
    (send,) = served.sent
    assert send.peer == CLIENT
    assert statuses(send.message) == [Status.DEADLINE]  # type: ignore[arg-type]


def test_an_earlier_deadline_moves_the_timer_and_a_later_one_does_not() -> None:
    served = serving()
    waiting(served, wait_s=2)
    pull = waiting(served, wait_s=1)
    assert served.timers["pulls"] == served.now_ns + SECOND_NS
    served.says(replace(pull, request=6, wait_ns=3 * SECOND_NS))
    assert served.timers["pulls"] == served.now_ns + SECOND_NS


def test_past_the_lease_a_waiting_pull_is_turned_away() -> None:
    served = serving()
    waiting(served, wait_s=5)
    served.now_ns += 5 * SECOND_NS
    served.handle(TimerFired("pulls"))
    assert statuses(served.sent[-1].message) == [Status.NOT_OWNER]  # type: ignore[arg-type]


def test_the_pulls_of_a_dropped_shard_are_turned_away() -> None:
    served = serving()
    waiting(served)
    served.put(KEYS.shard(0), elsewhere(0))
    assert statuses(served.sent[-1].message) == [Status.NOT_OWNER]  # type: ignore[arg-type]


def test_the_pulls_of_a_lost_peer_are_forgotten() -> None:
    served = serving()
    waiting(served)
    served.handle(PeerLost(CLIENT))
    served.sent.clear()
    served.now_ns = served.timers["pulls"]
    served.handle(TimerFired("pulls"))
    assert served.sent == []


# -- bad records, and the end


def test_bad_values_in_etcd_are_logged_once_and_do_not_stop_it() -> None:
    served = serving()
    for key in (KEYS.server("s9"), KEYS.shard(1), KEYS.config, KEYS.intent(1), KEYS.job("j")):
        served.put(key, b"\x00 no record")
    bad = [log for log in served.logs if log.event == "bad record in etcd"]
    assert len(bad) == 5
    assert KEYS.shard(1).decode() in bad[1].fields["error"]
    assert numbers(served) == [0, 1, 2, 3]
    assert statuses(open_table(served, 0, 1)) == [Status.OK] * 2


def test_after_a_compaction_it_goes_on_from_what_was_read() -> None:
    served = serving()
    result = served.model.apply(Read(KEYS.prefix, prefix=True), served.now_ns)
    moved = {KEYS.shard(3): elsewhere(3)}
    items = tuple(
        replace(item, value=moved[item.key], mod_revision=result.revision + 1)
        if item.key in moved
        else item
        for item in result.items
    )
    served.handle(KvReset(31, items, result.revision + 1))
    assert numbers(served) == [0, 1, 2]


def test_a_stop_gives_the_lease_back_and_exits() -> None:
    served = serving()
    served.handle(StopAsked())
    assert served.others == [Exit(0, "stopped on request")]
    assert served.model.apply(Read(KEYS.server("s1")), served.now_ns).items == ()
    assert statuses(open_table(served, 0)) == [Status.NOT_OWNER]


def test_peers_are_found_by_the_names_in_their_records() -> None:
    served = serving()
    address = served.node.address_of("server:s1")
    assert address is not None
    assert (address.host, address.port) == ("127.0.0.1", 7000)
    assert served.node.address_of("server:s2") is None


def test_long_texts_travel_in_several_messages() -> None:
    parts = tuple(Part(shard) for shard in range(300)) * 20
    messages = serving().says(Request(Kind.TICK, 1, parts, 1, WorkerId(9, 0, 1)))
    assert len(messages) > 1
    assert sum(len(message.parts) for message in messages) == 6000


def test_it_renews_its_lease() -> None:
    served = serving()
    assert "membership" in served.timers
    served.now_ns = served.timers["membership"]
    effects = served.node.handle(TimerFired("membership"), served.now_ns)
    assert [type(e.request) for e in effects if isinstance(e, KvCall)] == [LeaseRefresh]
    assert isinstance(served.model.apply(Read(KEYS.config), served.now_ns), ReadResult)

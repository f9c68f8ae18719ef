"""A server whose cluster begins another incarnation: what was before is dropped, and stays so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from served_node import CLIENT, KEYS, SECOND_NS, Served, ask, numbers, serving, statuses

from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.coordinator.kv import Read
from resilient_ps.coordinator.records import ClusterConfig, Member, RestoreRecord, ShardRecord
from resilient_ps.ids import NOWHERE, Epoch, Position, WorkerId
from resilient_ps.machine import MessageArrived, TimerFired
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Append,
    Appended,
    AppendPart,
    Command,
    Entry,
    Held,
    Hello,
    Kind,
    Part,
    Request,
    Status,
)
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

ME, OTHER = Member("s1", 77), Member("s2", 88)
PEER = "client:9"


def config_of(served: Served) -> ClusterConfig:
    (item,) = served.model.apply(Read(KEYS.config), served.now_ns).items
    return ClusterConfig.from_bytes(item.value, item.key)


def begin(served: Served, incarnation: int = 2) -> None:
    """The configuration says so."""
    config = replace(config_of(served), incarnation=incarnation)
    served.put(KEYS.config, config.to_bytes())


def wait_in_vain(served: Served) -> None:
    """A pull that waits for another rank."""
    text = SparseSpec("t", 1, "int64", Sum()).to_json().encode()
    ask(served, Kind.OPEN_TABLE, 0, table=1, text=text)
    job, me = JobSpec(1, "j", 2, BSP()), WorkerId(1, 0, 1)
    ask(served, Kind.OPEN_JOB, 0, worker=me, text=job.to_json().encode())
    ask(served, Kind.FENCE, 0, worker=me)
    keys = np.array([1], np.uint64)
    parts = (Part(0, count=1),)
    pull = Request(Kind.PULL, 5, parts, 1, me, clock=2, table=1, keys=keys, wait_ns=9 * SECOND_NS)
    assert served.says(pull) == []


def answers(served: Served) -> list[Answer]:
    return [s.message for s in served.sent if isinstance(s.message, Answer) and s.peer == CLIENT]


def entries(epoch: Epoch, shard: int = 0) -> Append:
    """What a primary of that epoch sends first."""
    first = Entry(Position(epoch, 1), Command(Kind.EPOCH))
    return Append((AppendPart(shard, epoch, 1, NOWHERE, 0, (first,)),))


def held(served: Served, append: Append) -> list[tuple[Held, Epoch]]:
    served.handle(MessageArrived(PEER, Hello(PROTOCOL, "c", "server s2", "s2", 88, 9)))
    told = served.says(append, PEER)
    return [
        (part.held, part.epoch)
        for message in told
        if isinstance(message, Appended)
        for part in message.parts
    ]


def test_all_replicas_are_dropped_and_who_waits_is_told() -> None:
    served = serving()
    wait_in_vain(served)
    served.sent.clear()
    begin(served)
    (answer,) = answers(served)
    assert [(part.status, part.value) for part in answer.parts] == [(Status.ROLLED_BACK, 2)]
    assert ("the cluster was rolled back: replicas dropped") in [log.event for log in served.logs]


def test_shards_begin_anew_under_first_records_and_without_the_old_leader_keys() -> None:
    served = serving()
    begin(served)
    for _ in range(40):
        served.now_ns += SECOND_NS // 20
        for name in sorted(served.timers):
            if served.timers[name] <= served.now_ns:
                del served.timers[name]
                served.handle(TimerFired(name))
    assert numbers(served) == [0, 1, 2, 3]
    items = served.model.apply(Read(KEYS.shards, prefix=True), served.now_ns).items
    epochs = [ShardRecord.from_bytes(item.value, item.key).epoch for item in items]
    assert epochs == [Epoch(2, 1)] * 4
    assert {replica.shard.lsn for replica in served.node.replicas.values() if replica.shard} == {1}


def test_a_record_of_an_earlier_incarnation_means_nothing() -> None:
    served = serving()
    before = {n: record_value(served, n) for n in range(4)}
    begin(served)
    for number, value in before.items():
        served.put(KEYS.shard(number), value)
    assert numbers(served) == []


def record_value(served: Served, number: int) -> bytes:
    (item,) = served.model.apply(Read(KEYS.shard(number)), served.now_ns).items
    return item.value


@pytest.mark.parametrize("counter", [1, 99])
def test_entries_of_an_earlier_incarnation_are_refused_however_late_their_epoch(
    counter: int,
) -> None:
    served = serving()
    begin(served)
    told = held(served, entries(Epoch(1, counter)))
    assert [each for each, _ in told] == [Held.STALE]
    assert told[0][1].incarnation == 2


def test_entries_of_a_later_incarnation_wait_until_the_configuration_shows_it() -> None:
    served = serving()
    assert [each for each, _ in held(served, entries(Epoch(2, 1)))] == [Held.BUSY]
    assert served.node.replicas[0].epoch == Epoch(1, 1)
    begin(served)
    assert [each for each, _ in held(served, entries(Epoch(2, 1)))] == [Held.HELD]


def test_while_a_checkpoint_is_to_be_loaded_entries_are_not_taken_in() -> None:
    served = serving()
    restore = RestoreRecord(2, "1-7-00000001", "m", 5, "0" * 64, {}, "a test", 0)
    served.put(KEYS.restore, restore.to_bytes())
    begin(served)
    record = ShardRecord(0, Epoch(2, 1), *OTHER, (ME, OTHER), ("s2", "s1"), 1, "n")
    served.put(KEYS.shard(0), record.to_bytes())
    assert served.node.replicas[0].role == "loading"
    assert [each for each, _ in held(served, entries(Epoch(2, 1)))] == [Held.BUSY]
    assert served.node.replicas[0].shard is None


def test_who_was_left_out_while_it_was_loading_needs_a_copy() -> None:
    served = serving()
    restore = RestoreRecord(2, "1-7-00000001", "m", 5, "0" * 64, {}, "a test", 0)
    served.put(KEYS.restore, restore.to_bytes())
    begin(served)
    record = ShardRecord(0, Epoch(2, 1), *OTHER, (ME, OTHER), ("s2", "s1"), 1, "n")
    served.put(KEYS.shard(0), record.to_bytes())
    served.put(KEYS.shard(0), replace(record, in_sync=(OTHER,)).to_bytes())
    assert served.node.replicas[0].role == "empty"
    assert [each for each, _ in held(served, entries(Epoch(2, 1)))] == [Held.EMPTY]


def test_only_answers_of_an_earlier_incarnation_need_no_lease() -> None:
    served = serving()
    begin(served)
    served.now_ns = served.node.membership.deadline_ns + SECOND_NS
    request = Request(Kind.TICK, 1, (Part(0),), 1)
    served.says(request)
    (send,) = [s for s in served.sent if s.peer == CLIENT]
    assert send.until_ns == 0
    assert isinstance(send.message, Answer)
    assert statuses(send.message) == [Status.ROLLED_BACK]

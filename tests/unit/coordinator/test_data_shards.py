"""The record of data shards: who works on what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.coordinator.data_shards import (
    MAX_IN_HAND,
    DataShards,
    Grant,
    Over,
    Wait,
    reading,
    writing,
)
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, Kv, Put, ReadResult, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import counter_bytes
from resilient_ps.coordinator.repeats import is_self_closing
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import BadInput
from resilient_ps.ids import WorkerId

KEYS = ClusterKeys("prod")
KEY = KEYS.data_shards("job")
FRESH = DataShards(job_id=1, dataset="rows", per_epoch=3)


def taken(record: DataShards, *ranks: int, epochs: int = 1) -> DataShards:
    for rank in ranks:
        record, grant = record.take(rank, epochs, clock=0)
        assert isinstance(grant, Grant)
    return record


def held(record: DataShards, rank: int) -> Grant:
    grant = record.held(rank)
    assert grant is not None
    return grant


def test_data_shards_are_given_out_in_order_and_each_once() -> None:
    record = taken(FRESH, 5, 3, 4)
    assert [(g.rank, g.number) for g in record.doing] == [(3, 1), (4, 2), (5, 0)]
    assert len({g.grant for g in record.doing}) == 3


def test_an_epoch_may_begin_while_the_last_data_shards_of_the_one_before_are_in_hand() -> None:
    record = taken(FRESH, 0, 1, 2, 3, epochs=2)
    grant = held(record, 3)
    assert (record.epoch(grant.number), record.place(grant.number)) == (1, 0)


def test_who_finds_nothing_left_waits_for_those_that_others_have_in_hand() -> None:
    record = taken(FRESH, 0, 1, 2)
    same, outcome = record.take(3, 1, clock=0)
    assert same == record
    assert outcome == Wait(record.doing)
    for rank in (0, 1, 2):
        record = record.finish(held(record, rank), clock=7 + rank)
    assert record.take(3, 1, clock=0) == (record, Over(clock=9))


def test_what_was_given_back_is_the_next_to_be_taken_from_where_it_was_left() -> None:
    record = taken(FRESH, 0)
    record = record.give_back(held(record, 0), '{"row":7}', clock=4)
    assert record.held(0) is None
    record, grant = record.take(1, 1, clock=0)
    assert grant == Grant(0, 1, 2, '{"row":7}', 4)
    assert record.returned == ()


def test_the_number_of_a_grant_is_new_also_for_the_same_rank_and_data_shard() -> None:
    record = taken(FRESH, 0)
    first = held(record, 0)
    record, second = record.give_back(first, "", clock=1).take(0, 1, clock=1)
    assert isinstance(second, Grant)
    assert (second.number, second.rank) == (first.number, first.rank)
    assert second.grant > first.grant


def test_the_work_of_an_epoch_is_counted_with_what_is_in_hand_and_given_back() -> None:
    record = taken(FRESH, 0, 1, 2, 3, epochs=2)
    assert record.done(0) == record.done(1) == 0
    record = record.finish(held(record, 1), clock=1)
    record = record.give_back(held(record, 0), "", clock=1)
    assert (record.done(0), record.done(1), record.done(2)) == (1, 0, 0)
    record = record.finish(held(record, 3), clock=1)
    assert (record.done(0), record.done(1)) == (1, 1)


def test_more_epochs_can_follow_when_all_is_over() -> None:
    record = taken(FRESH, 0)
    for _ in range(2):
        record, _ = record.finish(held(record, 0), clock=1).take(0, 1, clock=1)
    record = record.finish(held(record, 0), clock=5)
    assert record.take(0, 1, clock=0) == (record, Over(clock=5))
    _, grant = record.take(0, 2, clock=0)
    assert grant == Grant(3, 0, 4)


def test_a_record_stays_small_with_thousands_of_finished_data_shards() -> None:
    record = replace(FRESH, per_epoch=10_000)
    for clock in range(5_000):
        record, grant = record.take(clock % 4, 1, clock)
        assert isinstance(grant, Grant)
        record = record.finish(grant, clock)
    assert record.done(0) == 5_000
    assert len(record.to_bytes()) < 200


def test_as_many_ranks_as_fit_into_a_record_have_one_in_hand_and_others_wait() -> None:
    record = replace(FRESH, per_epoch=1_000_000, following=900_000, grants=2**40)
    for rank in range(MAX_IN_HAND):
        record, _ = record.take(rank, 1, clock=0)
    assert isinstance(record.take(MAX_IN_HAND, 1, clock=0)[1], Wait)
    assert DataShards.from_bytes(record.to_bytes(), KEY) == record


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["take", "finish", "give back"]), st.integers(0, 5)), max_size=60
)


@given(ACTIONS)
@settings(deadline=None)
def test_every_data_shard_is_todo_in_one_hand_given_back_or_done(
    actions: list[tuple[str, int]],
) -> None:
    record, done, states = replace(FRESH, per_epoch=4), set[int](), set[int]()
    for action, rank in actions:
        grant = record.held(rank)
        if action == "take" and grant is None:
            record, _ = record.take(rank, 3, clock=0)
        elif action == "finish" and grant is not None:
            record, done = record.finish(grant, clock=0), done | {grant.number}
        elif action == "give back" and grant is not None:
            record = record.give_back(grant, "", clock=0)
        in_hand = [each.number for each in record.doing]
        returned = [each.number for each in record.returned]
        states = {*in_hand, *returned, *done, *range(record.following, 12)}
        assert len(in_hand) + len(returned) + len(done) + 12 - record.following == len(states) == 12
        assert sum(record.done(epoch) for epoch in range(3)) == len(done)
        assert DataShards.from_bytes(record.to_bytes(), KEY) == record


# -- as JSON


def broken(**changes: Any) -> bytes:
    fields = json.loads(taken(FRESH, 0, 1).to_bytes())
    return json.dumps({**fields, **changes}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"following": 1},
        {"doing": {"0": [0, 1, "", 0], "1": [0, 2, "", 0]}},
        {"returned": {"0": ["", 0]}},
        {"doing": {"0": [0, 99, "", 0]}},
        {"doing": {"0": [0, 1, ""]}},
        {"doing": {"-1": [0, 1, "", 0]}},
        {"doing": {"07": [0, 1, "", 0]}},
        {"doing": {"0": [True, 1, "", 0]}},
        {"doing": {"0": [0, 1, "ä", 0]}},
        {"doing": {"70000": [0, 1, "", 0]}},
        {"doing": {str(rank): [rank, 1, "", 0] for rank in range(MAX_IN_HAND + 1)}},
        {"returned": {"x": ["", 0]}},
        {"returned": {"1" * 30: ["", 0]}},
        {"returned": {"0": [5, 0]}},
        {"cut": -2},
        {"ended": {"1": [0, 1, "", 0]}},
        {"ended": {"x": [0, 1, "", 0, 1]}},
        {"per_epoch": 0},
        {"more": 1},
    ],
    ids=str,
)
def test_what_no_rank_can_have_written_is_refused(changes: dict[str, Any]) -> None:
    assert DataShards.from_bytes(broken(), KEY) == taken(FRESH, 0, 1)
    with pytest.raises(BadInput, match="data-shards: not a valid record of data shards"):
        DataShards.from_bytes(broken(**changes), KEY)


# -- transactions


@pytest.fixture
def kv() -> Kv:
    kv = MemoryClient(MemoryKv())
    kv.txn(Txn((), (Put(KEYS.config, b"config"),)))
    return kv


def read(kv: Kv) -> Any:
    record, counter, config = kv.txn(reading(KEYS, "job", 0)).results
    assert isinstance(record, ReadResult)
    assert isinstance(counter, ReadResult)
    assert isinstance(config, ReadResult)
    return record.items[0] if record.items else None


def config_of(kv: Kv) -> KeyValue:
    return kv.read(KEYS.config).items[0]


def write(kv: Kv, incarnation: int, seen: KeyValue | None, record: DataShards) -> Txn:
    return writing(KEYS, "job", WorkerId(1, 0, incarnation), seen, config_of(kv), record)


def draw(kv: Kv, incarnation: int) -> None:
    kv.txn(Txn((), (Put(KEYS.rank("job", 0), counter_bytes(incarnation)),)))


def test_only_the_newest_process_of_a_rank_writes_and_only_over_what_it_has_read(kv: Kv) -> None:
    draw(kv, 2)
    assert not kv.txn(write(kv, 1, None, FRESH)).succeeded
    assert kv.txn(write(kv, 2, None, FRESH)).succeeded
    assert not kv.txn(write(kv, 2, None, FRESH)).succeeded
    seen = read(kv)
    assert kv.txn(write(kv, 2, seen, taken(FRESH, 0))).succeeded
    assert not kv.txn(write(kv, 2, seen, taken(FRESH, 1))).succeeded
    draw(kv, 3)
    assert not kv.txn(write(kv, 2, read(kv), FRESH)).succeeded
    assert DataShards.from_bytes(read(kv).value, KEY) == taken(FRESH, 0)


def test_a_write_whose_answer_was_lost_may_be_sent_again(kv: Kv) -> None:
    draw(kv, 1)
    assert is_self_closing(write(kv, 1, None, FRESH))
    kv.txn(write(kv, 1, None, FRESH))
    assert is_self_closing(write(kv, 1, read(kv), FRESH))


def test_a_rank_that_has_not_heard_of_a_rollback_changes_nothing(kv: Kv) -> None:
    draw(kv, 1)
    late = write(kv, 1, None, FRESH)
    kv.txn(Txn((), (Put(KEYS.config, b"the next incarnation"),)))
    assert not kv.txn(late).succeeded
    assert kv.txn(write(kv, 1, None, FRESH)).succeeded

"""Asking for checkpoints, waiting for them, and giving them up, as clients do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.checkpoints import (
    CutProgress,
    checkpoint_records,
    delete_checkpoint,
    propose_cut,
    request_checkpoint,
    wait_for_cut,
)
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    IntentRecord,
    RestoreRecord,
    counter_bytes,
)
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import DeadlineExceeded, FixTheCall, NotFound, Reopen

KEYS = ClusterKeys("prod")


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(MemoryClient(MemoryKv()), "prod", deadline_s=1.0)


def record(number: int, incarnation: int = 1) -> CheckpointRecord:
    id = f"{incarnation}-{number}-0000abcd"
    return CheckpointRecord(number, id, incarnation, "m", 1, "0" * 64, {"train": number}, 0, 1, 1)


def put(catalogue: Catalogue, key: bytes, value: bytes) -> None:
    catalogue.kv.txn(Txn((), (Put(key, value),)))


def keep(catalogue: Catalogue, *records: CheckpointRecord) -> None:
    for each in records:
        put(catalogue, KEYS.checkpoint(each.number), each.to_bytes())


def close(catalogue: Catalogue, number: int, state: str, **result: object) -> None:
    intent = IntentRecord(number, "cut", "", 0, 0, state, dict(result))  # type: ignore[arg-type]
    put(catalogue, KEYS.intent(number), intent.to_bytes())


def test_a_wish_is_an_intent_with_a_number_of_its_own(catalogue: Catalogue) -> None:
    put(catalogue, KEYS.counter("intents"), counter_bytes(7))
    assert [propose_cut(catalogue, why="a test", by="me") for _ in range(2)] == [8, 9]
    (item,) = catalogue.kv.read(KEYS.intent(9)).items
    wish = IntentRecord.from_bytes(item.value, item.key)
    assert (wish.kind, wish.state) == ("cut", "open")
    assert wish.details == {"why": "a test", "by": "me"}


def test_the_checkpoint_is_found_through_all_attempts(catalogue: Catalogue) -> None:
    keep(catalogue, record(3))
    close(catalogue, 1, "aborted", retried_as=2)
    close(catalogue, 2, "aborted", why="refused", retry=True, retried_as=3)
    close(catalogue, 3, "done", checkpoint="1-3-0000abcd")
    assert wait_for_cut(catalogue, 1, 5) == record(3)


def test_progress_tells_the_attempt_and_why_the_last_one_failed(catalogue: Catalogue) -> None:
    close(catalogue, 1, "aborted", why="rank 2 is late", retry=True)
    told: list[CutProgress] = []
    with pytest.raises(DeadlineExceeded, match="rank 2 is late"):
        wait_for_cut(catalogue, 1, 0.2, told.append)
    assert told
    assert "rank 2 is late" in told[0].text


def test_a_wish_that_nobody_serves_ends_at_its_deadline(catalogue: Catalogue) -> None:
    with pytest.raises(DeadlineExceeded, match="no checkpoint within"):
        request_checkpoint(catalogue, why="a test", deadline_s=0.1)


def test_a_refused_wish_says_why(catalogue: Catalogue) -> None:
    close(catalogue, 1, "aborted", why="there is no store")
    with pytest.raises(Reopen, match="there is no store"):
        wait_for_cut(catalogue, 1, 5)


def test_an_intent_that_was_forgotten_is_served_by_a_later_checkpoint(catalogue: Catalogue) -> None:
    with pytest.raises(Reopen, match="ask again"):
        wait_for_cut(catalogue, 5, 5)
    keep(catalogue, record(4), record(6))
    assert wait_for_cut(catalogue, 5, 5) == record(6)


def test_the_newest_is_listed_first_and_a_later_incarnation_is_newer(catalogue: Catalogue) -> None:
    keep(catalogue, record(3), record(4, incarnation=2), record(9))
    assert [each.number for each in checkpoint_records(catalogue)] == [4, 9, 3]


def test_a_checkpoint_that_is_given_up_is_marked(catalogue: Catalogue) -> None:
    keep(catalogue, record(3), record(4))
    assert delete_checkpoint(catalogue, "1-3-0000abcd").state == "deleting"
    assert delete_checkpoint(catalogue, "1-3-0000abcd").state == "deleting"  # said twice
    assert [each.state for each in checkpoint_records(catalogue)] == ["good", "deleting"]


def test_the_newest_good_one_and_what_was_restored_cannot_be_given_up(catalogue: Catalogue) -> None:
    keep(catalogue, record(3), record(4), replace(record(5), state="damaged"))
    with pytest.raises(FixTheCall, match="newest"):
        delete_checkpoint(catalogue, "1-4-0000abcd")
    restore = RestoreRecord(1, "1-3-0000abcd", "m", 1, "0" * 64, {}, "", 0, registered=True)
    put(catalogue, KEYS.restore, restore.to_bytes())
    with pytest.raises(FixTheCall, match="restored from"):
        delete_checkpoint(catalogue, "1-3-0000abcd")
    catalogue.kv.txn(Txn((), (Delete(KEYS.restore),)))
    delete_checkpoint(catalogue, "1-3-0000abcd")
    delete_checkpoint(catalogue, "1-5-0000abcd")


def test_a_checkpoint_that_does_not_exist_is_named_with_those_that_do(catalogue: Catalogue) -> None:
    keep(catalogue, record(3))
    with pytest.raises(NotFound, match="1-3-0000abcd"):
        delete_checkpoint(catalogue, "1-8-00000000")

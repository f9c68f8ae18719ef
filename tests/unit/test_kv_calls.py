"""Calls of machines to the coordination store: what is asked for, and what a failure means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from routings import routing

from resilient_ps.coordinator.kv import (
    DEFAULT_DEADLINE_S,
    KvAnswered,
    KvCall,
    KvFailed,
    Put,
    Txn,
    TxnResult,
    absent,
)
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import DeadlineExceeded
from resilient_ps.messages import PROTOCOL, Hello
from resilient_ps.runtime.driver import Driver
from resilient_ps.runtime.kv_calls import outcome
from resilient_ps.session import Session

NONCE = b"0123456789abcdef"
CREATE = Txn((absent(b"key"),), (Put(b"key", NONCE),))


class ForgetfulStore(MemoryClient):
    """Does what a transaction says, and loses the answer."""

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        super().txn(txn, deadline_s=deadline_s, nonce=nonce)
        raise DeadlineExceeded("no answer")


@pytest.fixture
def store() -> Iterator[MemoryClient]:
    with closing(MemoryClient(MemoryKv())) as client:
        yield client


def test_a_driver_performs_the_transactions_of_its_session(store: MemoryClient) -> None:
    driver = Driver(Session("c", routing()), store, Hello(PROTOCOL, "c", "test"))
    driver.perform([KvCall(1, CREATE, NONCE)])
    assert [item.value for item in store.read(b"key").items] == [NONCE]


def test_a_transaction_carries_its_nonce(store: MemoryClient) -> None:
    failed = outcome(store, KvCall(1, CREATE, NONCE[::-1]), 1.0)
    assert isinstance(failed, KvFailed)
    assert not failed.unknown
    assert "the nonce is in no value" in str(failed.error)
    done = outcome(store, KvCall(2, CREATE, NONCE), 1.0)
    assert isinstance(done, KvAnswered)
    assert isinstance(done.result, TxnResult)
    assert (done.ref, done.result.succeeded) == (2, True)


def test_a_transaction_without_an_answer_may_have_happened() -> None:
    with closing(ForgetfulStore(MemoryKv())) as store:
        failed = outcome(store, KvCall(1, CREATE, NONCE), 1.0)
        assert isinstance(failed, KvFailed)
        assert failed.unknown
        assert store.read(b"key").items


def test_a_transaction_that_was_not_sent_has_not_happened(store: MemoryClient) -> None:
    store.close()
    failed = outcome(store, KvCall(1, CREATE, NONCE), 1.0)
    assert isinstance(failed, KvFailed)
    assert not failed.unknown

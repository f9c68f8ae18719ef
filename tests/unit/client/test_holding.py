"""A holder's key: there while the process lives, gone when it says so, back when it was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from resilient_ps.client.holding import Holding
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Put, Txn, TxnResult
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.coordinator.task_records import HolderRecord
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound, Unavailable

KEYS = ClusterKeys("c")
PATIENCE_S = 20.0


class Store(MemoryClient):
    """Tells when leases were asked for, and can be unreachable for a time."""

    def __init__(self) -> None:
        super().__init__(MemoryKv())
        self.granted = threading.Semaphore(0)
        self.refreshed = threading.Semaphore(0)
        self.down = False
        self.lost = 0  # answers to transactions that are still to be lost

    def txn(self, *arguments: Any, **more: Any) -> TxnResult:
        result = super().txn(*arguments, **more)
        if self.lost:
            self.lost -= 1
            raise DeadlineExceeded("an answer was lost")
        return result

    def grant(self, *arguments: Any, **more: Any) -> Any:
        leased = super().grant(*arguments, **more)
        self.granted.release()
        return leased

    def refresh(self, *arguments: Any, **more: Any) -> int:
        self.refreshed.release()
        if self.down:
            raise Unavailable("etcd does not answer")
        return super().refresh(*arguments, **more)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    store.txn(Txn((), (Put(KEYS.graph("g"), b"a graph"),)))
    yield store
    store.close()


def held(store: Store) -> dict[bytes, int]:
    items = store.read(KEYS.holders("g"), prefix=True).items
    return {item.key: item.lease for item in items}


def test_it_is_registered_under_its_lease_until_it_stops(store: Store) -> None:
    holding = Holding(store, KEYS, "g", ttl_s=1)
    holding.start()
    key = KEYS.holder("g", holding.name)
    (item,) = store.read(key).items
    assert item.lease
    assert HolderRecord.from_bytes(item.value, key).pid > 0
    assert store.refreshed.acquire(timeout=PATIENCE_S)
    holding.stop()
    assert held(store) == {}


def test_where_answers_are_lost_it_registers_again_until_its_deadline(store: Store) -> None:
    store.lost = 2
    holding = Holding(store, KEYS, "g", ttl_s=60)
    holding.start()
    assert list(held(store)) == [KEYS.holder("g", holding.name)]
    holding.stop()
    assert held(store) == {}
    store.lost = 1_000
    with pytest.raises(DeadlineExceeded):
        Holding(store, KEYS, "g").start(deadline_s=0.3)


def test_a_lost_lease_is_replaced_and_the_name_stays(store: Store) -> None:
    holding = Holding(store, KEYS, "g", ttl_s=1)
    holding.start()
    assert store.granted.acquire(timeout=PATIENCE_S)
    ((key, lease),) = held(store).items()
    store.revoke(lease)
    assert store.granted.acquire(timeout=PATIENCE_S)
    holding.stop()
    assert key == KEYS.holder("g", holding.name)


def test_while_etcd_does_not_answer_it_goes_on_trying(store: Store) -> None:
    holding = Holding(store, KEYS, "g", ttl_s=1)
    holding.start()
    store.down = True
    for _ in range(3):
        assert store.refreshed.acquire(timeout=PATIENCE_S)
    store.down = False
    holding.stop()
    assert held(store) == {}


def test_of_a_graph_that_is_gone_nobody_is_a_holder(store: Store) -> None:
    with pytest.raises(NotFound, match="'h' was removed"):
        Holding(store, KEYS, "h").start()
    assert not store.read(KEYS.holders("h"), prefix=True).items


def test_two_processes_have_two_names(store: Store) -> None:
    assert Holding(store, KEYS, "g").name != Holding(store, KEYS, "g").name


@pytest.mark.parametrize("ttl_s", [0, 1.5, 3_601])
def test_a_lease_has_whole_seconds_within_bounds(store: Store, ttl_s: Any) -> None:
    with pytest.raises(BadInput, match="lease_ttl_s"):
        Holding(store, KEYS, "g", ttl_s=ttl_s)

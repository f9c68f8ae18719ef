"""The model of etcd under virtual time. That it equals real etcd is shown by the contract tests."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from resilient_ps.coordinator.kv import (
    Delete,
    Event,
    KeyValue,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseTtl,
    Put,
    Read,
    Reset,
    Txn,
    WatchBatch,
    absent,
    put,
)
from resilient_ps.coordinator.memory import NS_PER_S, Compacted, LeaseStatus, MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import BadInput, NotFound, Unavailable


def write(model: MemoryKv, key: bytes, value: bytes = b"", *, lease: int = 0) -> int:
    return model.apply(Txn((), (Put(key, value, lease),)), 0).revision


def keys(model: MemoryKv, now_ns: int = 0) -> list[bytes]:
    return [item.key for item in model.apply(Read(b"", prefix=True), now_ns).items]


def test_an_empty_store_is_at_revision_one() -> None:
    model = MemoryKv()
    assert model.revision == 1
    assert write(model, b"k") == 2
    assert model.apply(Read(b"k"), 0).revision == 2


def test_a_lease_ends_exactly_at_its_deadline_and_not_before() -> None:
    model = MemoryKv()
    leased = model.apply(LeaseGrant(5), 1_000)
    assert leased == Leased(1, 5)
    write(model, b"k", lease=1)
    end_ns = 1_000 + 5 * NS_PER_S
    assert model.next_expiry_ns() == end_ns
    model.expire(end_ns - 1)
    assert keys(model) == [b"k"]
    watch = model.watch(b"", 0)
    model.expire(end_ns)
    assert model.poll(watch) == (WatchBatch(3, (Event("delete", KeyValue(b"k", b"", 0, 3, 0)),)),)
    assert model.next_expiry_ns() is None


def test_a_refresh_moves_the_deadline_and_the_old_one_passes_quietly() -> None:
    model = MemoryKv()
    model.apply(LeaseGrant(5), 0)
    write(model, b"k", lease=1)
    assert model.apply(LeaseRefresh(1), 4 * NS_PER_S) == LeaseTtl(1, 5)
    model.expire(5 * NS_PER_S)
    assert keys(model) == [b"k"]
    assert model.apply(LeaseRefresh(1), 9 * NS_PER_S) == LeaseTtl(1, 0)
    assert keys(model, 9 * NS_PER_S) == []


def test_a_refresh_comes_too_late_although_nothing_expired_the_lease_before() -> None:
    model = MemoryKv()
    model.apply(LeaseGrant(5), 0)
    assert model.apply(LeaseRefresh(1), 5 * NS_PER_S) == LeaseTtl(1, 0)


def test_many_refreshes_do_not_grow_the_heap_of_deadlines() -> None:
    model = MemoryKv()
    model.apply(LeaseGrant(5), 0)
    for now_ns in range(10_000):
        model.apply(LeaseRefresh(1), now_ns)
    assert len(model._deadlines) < 100
    assert model.next_expiry_ns() is not None
    model.expire(9_999 + 5 * NS_PER_S)
    assert model.apply(LeaseRefresh(1), 9_999 + 5 * NS_PER_S).ttl_s == 0


def test_a_ttl_below_the_minimum_is_raised_to_it() -> None:
    assert MemoryKv(min_ttl_s=2).apply(LeaseGrant(1), 0).ttl_s == 2
    assert MemoryKv(min_ttl_s=2).apply(LeaseGrant(3), 0).ttl_s == 3


def test_leases_that_end_together_end_in_order_with_a_revision_each() -> None:
    model = MemoryKv()
    for lease in (1, 2, 3):
        model.apply(LeaseGrant(5), 0)
        if lease != 2:
            write(model, b"%d" % lease, lease=lease)
    before = model.revision
    watch = model.watch(b"", 0)
    model.expire(5 * NS_PER_S)
    batches = model.poll(watch)
    assert not isinstance(batches, Compacted)
    assert [(batch.revision, batch.events[0].item.key) for batch in batches] == [
        (before + 1, b"1"),
        (before + 2, b"3"),
    ]


def test_a_key_belongs_to_the_lease_of_its_last_put() -> None:
    model = MemoryKv()
    model.apply(LeaseGrant(5), 0)
    model.apply(LeaseGrant(9), 0)
    write(model, b"k", lease=1)
    write(model, b"k", lease=2)
    write(model, b"free", lease=1)
    write(model, b"free")
    assert model.lease_status(1, 0) == LeaseStatus(5, 5, ())
    assert model.lease_status(2, 2 * NS_PER_S) == LeaseStatus(7, 9, (b"k",))
    model.expire(5 * NS_PER_S)
    assert keys(model, 5 * NS_PER_S) == [b"free", b"k"]
    assert model.lease_status(1, 5 * NS_PER_S) is None


def test_a_chosen_lease_number_is_taken_once() -> None:
    model = MemoryKv()
    assert model.grant(5, 0, lease=1) == Leased(1, 5)
    with pytest.raises(BadInput, match="already exists"):
        model.grant(5, 0, lease=1)
    assert model.apply(LeaseGrant(5), 0).lease == 2


def test_a_refused_transaction_changes_nothing() -> None:
    model = MemoryKv()
    write(model, b"a")
    with pytest.raises(NotFound, match="lease 99"):
        model.apply(Txn((), (Delete(b"a"), Put(b"b", b"", 99))), 0)
    assert (keys(model), model.revision) == ([b"a"], 2)
    # The branch that does not run may name what does not exist.
    assert model.apply(Txn((absent(b"a"),), (Put(b"b", b"", 99),)), 0).succeeded is False


def test_a_watch_sees_each_revision_once_however_often_it_polls() -> None:
    model = MemoryKv()
    write(model, b"a/1")
    watch = model.watch(b"a/", 1)
    first = model.poll(watch)
    assert not isinstance(first, Compacted)
    assert [batch.revision for batch in first] == [2]
    assert model.poll(watch) == ()
    write(model, b"b")
    assert model.poll(watch) == ()
    model.apply(Txn((), (Put(b"a/2", b""), Put(b"b", b""))), 0)
    (batch,) = model.poll(watch)
    assert [event.item.key for event in batch.events] == [b"a/2"]
    model.unwatch(watch)
    write(model, b"a/3")
    assert model.poll(watch) == ()


def test_a_watch_from_the_future_waits_for_it() -> None:
    model = MemoryKv()
    watch = model.watch(b"", 4)
    write(model, b"2")
    write(model, b"3")
    assert model.poll(watch) == ()
    write(model, b"4")
    (batch,) = model.poll(watch)
    assert batch.revision == 4


def test_compaction_ends_watches_that_need_what_is_gone_and_no_others() -> None:
    model = MemoryKv()
    for _ in range(4):
        write(model, b"k")
    behind, on_time = model.watch(b"", 3), model.watch(b"", 4)
    model.compact(4)
    assert model.poll(behind) == Compacted(4)
    batches = model.poll(on_time)
    assert not isinstance(batches, Compacted)
    assert [batch.revision for batch in batches] == [4, 5]
    for wrong in (0, 4, 6):
        with pytest.raises(BadInput):
            model.compact(wrong)


def test_a_long_history_compacts_itself() -> None:
    model = MemoryKv(max_history_events=10)
    watch = model.watch(b"", 1)
    for number in range(100):
        write(model, b"%02d" % number)
    assert model.poll(watch) == Compacted(model.compacted)
    assert len(model._history) <= 10
    assert len(keys(model)) == 100
    model.apply(Txn((), (Delete(b"", prefix=True),)), 0)
    write(model, b"k")
    assert len(model._history) <= 10


def test_a_full_store_refuses_puts_until_something_is_deleted() -> None:
    model = MemoryKv(max_stored_bytes=10)
    write(model, b"a", b"12345678")
    with pytest.raises(Unavailable, match="full"):
        write(model, b"b", b"12")
    assert keys(model) == [b"a"]
    model.apply(Txn((), (Delete(b"a"),)), 0)
    assert model.stored_bytes == 0
    write(model, b"b", b"12")


def test_a_revoked_lease_is_gone() -> None:
    model = MemoryKv()
    model.apply(LeaseGrant(5), 0)
    write(model, b"k", lease=1)
    model.apply(LeaseRevoke(1), 0)
    assert keys(model) == []
    with pytest.raises(NotFound):
        model.apply(LeaseRevoke(1), 0)


def test_the_same_requests_give_the_same_store() -> None:
    def run() -> tuple[object, ...]:
        model = MemoryKv(first_lease=100)
        watch = model.watch(b"", 1)
        for number in range(50):
            lease = model.apply(LeaseGrant(1 + number % 7), number * NS_PER_S).lease
            ops = (Put(b"%d" % (number % 9), b"", lease), Put(b"x%d" % number, b"", lease))
            model.apply(Txn((), ops), number * NS_PER_S)
        return model.revision, model.poll(watch), model.apply(Read(b"", prefix=True), 60 * NS_PER_S)

    assert run() == run()


def test_the_client_expires_leases_by_the_clock_it_is_given() -> None:
    now_ns = 0
    expired = threading.Event()
    model = MemoryKv()
    with closing(MemoryClient(model, lambda: now_ns)) as kv:
        lease = kv.grant(5).lease
        put(kv, b"k", b"", lease=lease)

        def on_event(change: WatchBatch | Reset) -> None:
            assert isinstance(change, WatchBatch)
            assert change.events[0].kind == "delete"
            expired.set()

        kv.watch(b"k", 0, on_event)
        now_ns = 5 * NS_PER_S
        kv.wake()
        assert expired.wait(10)
        assert kv.refresh(lease) == 0
    with pytest.raises(Unavailable, match="closed"):
        kv.read(b"k")

"""Calls and watches of a machine on a blocking store: they never block the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from host_thread import Followed, HostThread

from resilient_ps.coordinator.kv import (
    DEFAULT_DEADLINE_S,
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseRevoked,
    LeaseTtl,
    Put,
    Read,
    ReadResult,
    Request,
    Txn,
    TxnResult,
    delete,
    put,
)
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound, Unavailable
from resilient_ps.machine import Effect, Event, Exit, SetTimer, Started, TimerFired
from resilient_ps.runtime.kv_bridge import CALL_THREADS, MAX_WAITING_CALLS, MAX_WATCHES


@pytest.fixture
def store() -> Iterator[MemoryClient]:
    with closing(MemoryClient(MemoryKv())) as client:
        yield client


class HangingStore(MemoryClient):
    """A store whose transactions hang until `release` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryKv())
        self.release = threading.Event()

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        self.release.wait()
        return super().txn(txn, deadline_s=deadline_s, nonce=nonce)


class LosingStore(MemoryClient):
    """A store whose transactions take effect, but whose answers are lost."""

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        super().txn(txn, deadline_s=deadline_s, nonce=nonce)
        raise DeadlineExceeded("no answer")


def at_start(*effects: Effect) -> Followed:
    return Followed(lambda event: list(effects) if event == Started() else [])


def calls(*requests: Request) -> Followed:
    return at_start(*[KvCall(ref, request) for ref, request in enumerate(requests)])


def write(key: bytes) -> Txn:
    return Txn((), (Put(key, b"1"),))


def failure(machine: Followed) -> KvFailed:
    event = machine.next_event()
    assert isinstance(event, KvFailed)
    return event


def test_every_kind_of_call_is_answered_under_its_ref(store: MemoryClient) -> None:
    lease = store.grant(60).lease
    machine = calls(
        LeaseRefresh(lease),
        LeaseGrant(7),
        Read(b"missing"),
        Read(b"all/", prefix=True),
        write(b"x"),
        LeaseRevoke(store.grant(60).lease),
    )
    with HostThread(machine, kv=store):
        events = [machine.next_event() for _ in range(6)]
    results = {event.ref: event.result for event in events if isinstance(event, KvAnswered)}
    assert results[0] == LeaseTtl(lease, 60)
    assert isinstance(results[1], Leased)
    assert results[1].ttl_s == 7
    assert isinstance(results[2], ReadResult)
    assert isinstance(results[3], ReadResult)
    assert isinstance(results[4], TxnResult)
    assert isinstance(results[5], LeaseRevoked)
    assert store.read(b"x").items[0].value == b"1"


def test_a_watch_delivers_changes_in_order(store: MemoryClient) -> None:
    revision = put(store, b"w/1", b"a")
    machine = at_start(KvWatch(9, b"w/", revision))
    with HostThread(machine, kv=store):
        put(store, b"other", b"b")
        put(store, b"w/2", b"c")
        delete(store, b"w/1")
        changes = [machine.next_event() for _ in range(3)]
    told = [
        (change.ref, event.kind, event.item.key)
        for change in changes
        if isinstance(change, KvChanged)
        for event in change.batch.events
    ]
    assert told == [(9, "put", b"w/1"), (9, "put", b"w/2"), (9, "delete", b"w/1")]


def test_a_watch_of_compacted_history_begins_with_a_reset(store: MemoryClient) -> None:
    first = put(store, b"w/1", b"a")
    last = put(store, b"w/2", b"b")
    store.compact(last)
    machine = at_start(KvWatch(9, b"w/", first))
    with HostThread(machine, kv=store):
        reset = machine.next_event()
    assert isinstance(reset, KvReset)
    assert (reset.ref, [item.key for item in reset.items]) == (9, [b"w/1", b"w/2"])


def test_a_call_that_had_no_effect_fails_as_known(store: MemoryClient) -> None:
    machine = calls(LeaseRevoke(4711))
    with HostThread(machine, kv=store):
        failed = failure(machine)
    assert isinstance(failed.error, NotFound)
    assert not failed.unknown


def test_a_call_whose_answer_is_lost_fails_as_unknown() -> None:
    with closing(LosingStore(MemoryKv())) as store:
        machine = calls(write(b"x"))
        with HostThread(machine, kv=store):
            failed = failure(machine)
        assert isinstance(failed.error, DeadlineExceeded)
        assert failed.unknown
        assert store.read(b"x").items


def test_a_call_to_a_closed_store_fails_as_known(store: MemoryClient) -> None:
    store.close()
    machine = at_start(KvCall(1, Read(b"x")), KvWatch(2, b"x", 0))
    with HostThread(machine, kv=store):
        failed = [failure(machine), failure(machine)]
    assert sorted((one.ref, type(one.error), one.unknown) for one in failed) == [
        (1, Unavailable, False),
        (2, Unavailable, False),
    ]


def test_without_a_store_calls_fail() -> None:
    machine = calls(Read(b"x"))
    with HostThread(machine):
        failed = failure(machine)
    assert isinstance(failed.error, BadInput)


def test_hanging_calls_hold_up_neither_lease_refreshes_nor_the_loop() -> None:
    with closing(HangingStore()) as store:
        lease = store.grant(60).lease
        hanging = [KvCall(ref, write(b"x")) for ref in range(2 * CALL_THREADS)]
        machine = at_start(*hanging, KvCall(99, LeaseRefresh(lease)))
        with HostThread(machine, kv=store):
            assert machine.next_event() == KvAnswered(99, LeaseTtl(lease, 60))
            store.release.set()
            events = [machine.next_event() for _ in hanging]
        assert all(isinstance(event, KvAnswered) for event in events)


def test_more_calls_than_may_wait_fail_at_once() -> None:
    with closing(HangingStore()) as store:
        machine = calls(*[write(b"x")] * (MAX_WAITING_CALLS + CALL_THREADS + 1))
        with HostThread(machine, kv=store):
            failed = failure(machine)
            store.release.set()
        assert isinstance(failed.error, Unavailable)
        assert not failed.unknown


def test_watches_are_bounded(store: MemoryClient) -> None:
    machine = at_start(*[KvWatch(ref, b"w", 0) for ref in range(MAX_WATCHES + 1)])
    with HostThread(machine, kv=store):
        assert failure(machine).ref == MAX_WATCHES


def test_a_host_ends_while_calls_hang() -> None:
    with closing(HangingStore()) as store:
        machine = calls(*[write(b"x")] * 20)
        with HostThread(machine, kv=store) as running:
            pass
        assert running.code == 0
        store.release.set()


class SlowStore(MemoryClient):
    """A store that takes a moment to end a lease."""

    def revoke(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        threading.Event().wait(0.1)
        super().revoke(lease, deadline_s=deadline_s)


def test_what_is_called_for_with_the_last_breath_is_carried_out() -> None:
    with closing(SlowStore(MemoryKv())) as store:
        lease = store.grant(60).lease
        last = [KvCall(1, LeaseRevoke(lease)), Exit(0, "over")]

        def script(event: Event) -> list[Effect]:
            return last if isinstance(event, TimerFired) else [SetTimer("end", 1)]

        with HostThread(Followed(script), kv=store) as running:
            running.join()
        assert store.refresh(lease) == 0

"""Leases and watches, on every coordination store: the model, the embedded process, real etcd."""

from __future__ import annotations

import pytest
from kv_stores import ContractKv, Recorder, Store, eventually, together

from resilient_ps.coordinator.kv import (
    Compare,
    Delete,
    Event,
    KeyValue,
    Put,
    Reset,
    Txn,
    delete,
    put,
)
from resilient_ps.errors import BadInput, NotFound

# --- leases ------------------------------------------------------------------------------------


def test_an_unrefreshed_lease_deletes_its_keys_in_one_watched_revision(
    kv: ContractKv, here: bytes
) -> None:
    seen = Recorder()
    leased = kv.grant(1)
    assert leased.ttl_s == 1
    put(kv, here + b"b", b"", lease=leased.lease)
    put(kv, here + b"a", b"", lease=leased.lease)
    put(kv, here + b"free", b"", lease=leased.lease)
    last = put(kv, here + b"free", b"detached by this put")
    watch = kv.watch(here, last + 1, seen)
    seen.wait_for_key("delete", here + b"b")
    watch.close()
    (batch,) = seen.batches
    assert [(event.kind, event.item.key) for event in batch.events] == [
        ("delete", here + b"a"),
        ("delete", here + b"b"),
    ]
    assert [item.key for item in kv.read(here, prefix=True).items] == [here + b"free"]
    assert kv.refresh(leased.lease) == 0


def test_a_refreshed_lease_outlives_its_ttl(kv: ContractKv, here: bytes) -> None:
    kept, dropped = kv.grant(1), kv.grant(1)
    put(kv, here + b"kept", b"", lease=kept.lease)
    put(kv, here + b"dropped", b"", lease=dropped.lease)

    def dropped_is_gone() -> bool:
        assert kv.refresh(kept.lease) == 1
        return not kv.read(here + b"dropped").items

    eventually(dropped_is_gone, "the end of the lease that nobody refreshes")
    (item,) = kv.read(here + b"kept").items
    assert item.lease == kept.lease
    kv.revoke(kept.lease)


def test_revoking_a_lease_deletes_its_keys_at_once(kv: ContractKv, here: bytes) -> None:
    leased = kv.grant(600)
    put(kv, here + b"k", b"", lease=leased.lease)
    kv.revoke(leased.lease)
    assert not kv.read(here + b"k").items
    assert kv.refresh(leased.lease) == 0
    with pytest.raises(NotFound, match=str(leased.lease)):
        kv.revoke(leased.lease)


def test_a_put_under_a_lease_that_does_not_exist_is_refused_as_a_whole(
    kv: ContractKv, here: bytes
) -> None:
    with pytest.raises(NotFound, match="lease"):
        kv.txn(Txn((), (Put(here + b"a", b""), Put(here + b"b", b"", lease=12345))))
    assert not kv.read(here, prefix=True).items


def test_a_guard_can_name_the_lease_of_a_key(kv: ContractKv, here: bytes) -> None:
    leased = kv.grant(600)
    put(kv, here + b"k", b"", lease=leased.lease)
    mine = Compare(here + b"k", "lease", "=", leased.lease)
    assert kv.txn(Txn((mine,), (Delete(here + b"k"),))).succeeded
    assert not kv.txn(Txn((mine,), ())).succeeded
    kv.revoke(leased.lease)


# --- watches -----------------------------------------------------------------------------------


def test_a_watch_replays_history_and_goes_on_with_the_present(kv: ContractKv, here: bytes) -> None:
    first = put(kv, here + b"a", b"1")
    put(kv, here + b"b", b"2")
    delete(kv, here + b"a")
    seen = Recorder()
    watch = kv.watch(here, first, seen)
    last = kv.txn(Txn((), (Put(here + b"d", b"4"), Put(here + b"c", b"3")))).revision
    seen.wait_for_key("put", here + b"c")
    watch.close()
    assert [batch.revision for batch in seen.batches] == [first, first + 1, first + 2, last]
    assert seen.events == [
        Event("put", KeyValue(here + b"a", b"1", first, first, 1)),
        Event("put", KeyValue(here + b"b", b"2", first + 1, first + 1, 1)),
        Event("delete", KeyValue(here + b"a", b"", 0, first + 2, 0)),
        Event("put", KeyValue(here + b"d", b"4", last, last, 1)),
        Event("put", KeyValue(here + b"c", b"3", last, last, 1)),
    ]


def test_a_watch_from_the_middle_begins_exactly_there(kv: ContractKv, here: bytes) -> None:
    revisions = [put(kv, here + b"k", b"%d" % number) for number in range(10)]
    seen = Recorder()
    watch = kv.watch(here, revisions[4], seen)
    seen.wait(lambda seen: len(seen.batches) >= 6, "the second half")
    watch.close()
    assert [batch.revision for batch in seen.batches] == revisions[4:]


def test_a_watch_from_now_shows_all_that_comes_after_the_call(kv: ContractKv, here: bytes) -> None:
    put(kv, here + b"before", b"")
    seen = Recorder()
    watch = kv.watch(here, 0, seen)
    put(kv, here + b"after", b"")
    seen.wait_for_key("put", here + b"after")
    watch.close()
    assert seen.names() == [("put", here + b"after")]


def test_a_watch_shows_nothing_of_other_prefixes(kv: ContractKv, here: bytes) -> None:
    seen, all_seen = Recorder(), Recorder()
    start = kv.read(here).revision + 1
    watches = [kv.watch(here + b"a/", start, seen), kv.watch(here, start, all_seen)]
    put(kv, here + b"a", b"")
    put(kv, here + b"a0", b"")
    kv.txn(Txn((), (Put(here + b"b", b""), Put(here + b"a/1", b""))))
    put(kv, here + b"a/2", b"")
    seen.wait_for_key("put", here + b"a/2")
    all_seen.wait_for_key("put", here + b"a/2")
    for watch in watches:
        watch.close()
    assert seen.names() == [("put", here + b"a/1"), ("put", here + b"a/2")]
    assert len(all_seen.events) == 5


def test_a_closed_watch_is_silent_and_can_be_resumed(kv: ContractKv, here: bytes) -> None:
    seen = Recorder()
    watch = kv.watch(here, 0, seen)
    first = put(kv, here + b"1", b"")
    seen.wait_for_key("put", here + b"1")
    watch.close()
    put(kv, here + b"2", b"")
    resumed = kv.watch(here, first + 1, seen)
    put(kv, here + b"3", b"")
    seen.wait_for_key("put", here + b"3")
    resumed.close()
    assert seen.names() == [("put", here + b"%d" % n) for n in (1, 2, 3)]


def test_a_compacted_start_gives_a_reset_and_then_goes_on(kv: ContractKv, here: bytes) -> None:
    first = put(kv, here + b"gone", b"")
    put(kv, here + b"kept", b"1")
    delete(kv, here + b"gone")
    middle = put(kv, here + b"kept", b"2")
    now = put(kv, b"elsewhere", b"")
    kv.compact(now)
    seen = Recorder()
    watch = kv.watch(here, first, seen)
    seen.wait(lambda seen: seen.resets, "a reset")
    last = put(kv, here + b"new", b"")
    seen.wait_for_key("put", here + b"new")
    watch.close()
    kept = KeyValue(here + b"kept", b"2", first + 1, middle, 2)
    reset, batch = seen.seen
    assert reset == Reset((kept,), now)
    assert not isinstance(batch, Reset)
    assert batch.revision == last
    with pytest.raises(BadInput):
        kv.compact(now)


def test_through_compactions_a_consumer_always_learns_the_state(
    kv: ContractKv, here: bytes
) -> None:
    seen = Recorder()
    watch = kv.watch(here, 0, seen)
    for number in range(5):
        put(kv, here + b"%d" % number, b"")
        kv.compact(delete_and_put(kv, here + b"old", here + b"new"))
        expected = {here + b"%d" % n for n in range(number + 1)} | {here + b"new"}
        seen.wait(lambda seen, keys=expected: set(seen.state()) == keys, f"{expected}")
    watch.close()


def test_a_deletion_at_the_compacted_revision_is_not_lost(kv: ContractKv, here: bytes) -> None:
    """etcd itself says nothing of it to a watch that starts exactly there."""
    put(kv, here + b"gone", b"")
    put(kv, here + b"kept", b"")
    delete(kv, here + b"gone")
    revision = kv.read(here).revision
    last = put(kv, here + b"last", b"")
    kv.compact(revision)
    seen = Recorder()
    watch = kv.watch(here, revision, seen)
    seen.wait(lambda seen: here + b"last" in seen.state(), "the last put")
    watch.close()
    reset = Reset(kv.read(here, prefix=True).items, last)
    deletion = ("delete", here + b"gone")
    assert seen.seen == [reset] or seen.names() == [deletion, ("put", here + b"last")]


def test_a_failing_consumer_does_not_end_its_watch(kv: ContractKv, here: bytes) -> None:
    seen = Recorder()

    def fail_first(change: object) -> None:
        seen(change)  # type: ignore[arg-type]
        if len(seen.seen) == 1:
            raise RuntimeError("a bug in the consumer")

    watch = kv.watch(here, 0, fail_first)
    put(kv, here + b"1", b"")
    put(kv, here + b"2", b"")
    seen.wait_for_key("put", here + b"2")
    watch.close()
    assert seen.names() == [("put", here + b"1"), ("put", here + b"2")]


def test_a_watch_can_be_closed_by_its_consumer(kv: ContractKv, here: bytes) -> None:
    seen = Recorder()
    watches = []

    def close_at_once(change: object) -> None:
        watches[0].close()
        seen(change)  # type: ignore[arg-type]

    watches.append(kv.watch(here, 0, close_at_once))
    first = put(kv, here + b"1", b"")
    seen.wait_for_key("put", here + b"1")
    put(kv, here + b"2", b"")
    other = Recorder()
    second = kv.watch(here, first, other)
    other.wait_for_key("put", here + b"2")
    second.close()
    assert seen.names() == [("put", here + b"1")]


def test_watches_and_writers_in_many_threads_agree(store: Store, here: bytes) -> None:
    seen = [Recorder() for _ in range(4)]
    start = store.kv.read(here).revision + 1
    watches = [store.kv.watch(here, start, one) for one in seen]

    def write(number: int) -> None:
        for step in range(20):
            put(store.kv, here + b"%d/%d" % (number, step % 3), b"%d" % step)
            if step % 5 == 4:
                delete(store.kv, here + b"%d/" % number, prefix=True)

    together(8, write)
    put(store.kv, here + b"end", b"")
    for one in seen:
        one.wait_for_key("put", here + b"end")
    for watch in watches:
        watch.close()
    revisions = [batch.revision for batch in seen[0].batches]
    assert revisions == sorted(set(revisions))
    assert len(revisions) == 8 * (20 + 4) + 1
    assert all(one.seen == seen[0].seen for one in seen)


def delete_and_put(kv: ContractKv, old: bytes, new: bytes) -> int:
    put(kv, old, b"")
    return kv.txn(Txn((), (Delete(old), Put(new, b"")))).revision

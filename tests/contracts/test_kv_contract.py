"""What every coordination store must do: the model, the embedded process, and real etcd."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from kv_stores import ContractKv, Recorder, Store, eventually, open_store, together

from resilient_ps.coordinator.kv import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    Delete,
    Event,
    KeyValue,
    Put,
    Read,
    ReadResult,
    Reset,
    Txn,
    TxnResult,
    absent,
    create,
    delete,
    has_value,
    put,
    replace,
    txn_bytes,
    unchanged,
)
from resilient_ps.errors import BadInput, NotFound

_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["model", "embedded", "etcd-1", "etcd-3"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(request.param) as opened:
        yield opened


@pytest.fixture
def kv(store: Store) -> ContractKv:
    return store.kv


@pytest.fixture
def here() -> bytes:
    """A prefix that no other test uses."""
    return b"t%d/" % next(_NUMBERS)


# --- transactions and revisions ----------------------------------------------------------------


def test_a_put_is_read_back_with_its_revisions(kv: ContractKv, here: bytes) -> None:
    first = put(kv, here + b"k", b"v1")
    second = put(kv, here + b"k", b"v2")
    assert second == first + 1
    found = kv.read(here + b"k")
    assert found.items == (KeyValue(here + b"k", b"v2", first, second, 2),)
    assert found.revision >= second


def test_a_deleted_key_starts_anew(kv: ContractKv, here: bytes) -> None:
    first = put(kv, here + b"k", b"v")
    assert delete(kv, here + b"k") == 1
    assert delete(kv, here + b"k") == 0
    third = put(kv, here + b"k", b"v")
    assert third == first + 2  # deleting nothing is no revision
    assert kv.read(here + b"k").items == (KeyValue(here + b"k", b"v", third, third, 1),)


def test_a_transaction_is_one_revision_and_sees_its_own_writes(kv: ContractKv, here: bytes) -> None:
    base = put(kv, here + b"old", b"0")
    result = kv.txn(
        Txn(
            (),
            (Put(here + b"a", b"1"), Put(here + b"b", b"2"), Delete(here + b"old"),
             Read(here, prefix=True)),
        )
    )  # fmt: skip
    now = base + 1
    items = (KeyValue(here + b"a", b"1", now, now, 1), KeyValue(here + b"b", b"2", now, now, 1))
    assert result == TxnResult(True, now, (None, None, 1, ReadResult(items, now)))


def test_false_guards_run_the_failure_branch_and_write_nothing_else(
    kv: ContractKv, here: bytes
) -> None:
    put(kv, here + b"k", b"old")
    result = kv.txn(
        Txn(
            (has_value(here + b"k", b"other"),),
            (Put(here + b"k", b"new"),),
            (Read(here + b"k"),),
        )
    )
    assert not result.succeeded
    (seen,) = result.results
    assert isinstance(seen, ReadResult)
    assert [item.value for item in seen.items] == [b"old"]
    assert kv.read(here + b"k").items == seen.items


def test_every_target_and_operator_compares_as_etcd_does(kv: ContractKv, here: bytes) -> None:
    key, missing = here + b"k", here + b"missing"
    put(kv, key, b"m")
    revision = put(kv, key, b"m")
    holds = {
        has_value(key, b"m"): True,
        Compare(key, "value", "!=", b"m"): False,
        Compare(key, "value", "<", b"n"): True,
        Compare(key, "value", ">", b"n"): False,
        Compare(key, "version", "=", 2): True,
        Compare(key, "version", ">", 2): False,
        Compare(key, "create", "<", revision): True,
        Compare(key, "lease", "=", 0): True,
        Compare(key, "lease", "!=", 0): False,
        unchanged(key, revision): True,
        unchanged(key, revision - 1): False,
        absent(key): False,
        absent(missing): True,
        unchanged(missing, 0): True,
        Compare(missing, "version", "<", 1): True,
        has_value(missing, b""): False,
        Compare(missing, "value", "!=", b"x"): False,
        Compare(missing, "value", "<", b"x"): False,
    }
    for compare, expected in holds.items():
        assert kv.txn(Txn((compare,), ())).succeeded is expected, compare
    assert not kv.txn(Txn((has_value(key, b"m"), absent(key)), ())).succeeded


def test_of_sixteen_creators_one_wins(store: Store, here: bytes) -> None:
    clients = [store.open() for _ in range(4)]
    for number in range(5):
        key = here + b"%d" % number
        made = together(16, lambda n, key=key: create(clients[n % 4], key, b"%d" % n))
        (winner,) = [n for n, revision in enumerate(made) if revision is not None]
        (item,) = store.kv.read(key).items
        assert (item.value, item.version) == (b"%d" % winner, 1)
        assert item.mod_revision == made[winner]
    close_all(store, clients)


def test_concurrent_guarded_increments_lose_nothing(store: Store, here: bytes) -> None:
    clients = [store.open() for _ in range(4)]
    put(store.kv, here + b"n", b"0")

    def increment(number: int) -> None:
        done = 0
        while done < 5:
            kv = clients[number % 4]
            (item,) = kv.read(here + b"n").items
            value = b"%d" % (int(item.value) + 1)
            done += replace(kv, here + b"n", value, item.mod_revision) is not None

    together(8, increment)
    (item,) = store.kv.read(here + b"n").items
    assert (item.value, item.version) == (b"40", 41)
    close_all(store, clients)


# --- reads -------------------------------------------------------------------------------------


def test_a_prefix_reads_its_keys_in_order_and_no_others(kv: ContractKv, here: bytes) -> None:
    names = [b"a", b"a/", b"a/\x00", b"a/1", b"a/10", b"a/2", b"a/\xff", b"a/\xff\xff", b"a0", b"b"]
    for name in reversed(names):
        put(kv, here + name, name)
    under = [item.value for item in kv.read(here + b"a/", prefix=True).items]
    assert under == [name for name in names if name.startswith(b"a/")]
    high = [item.value for item in kv.read(here + b"a/\xff", prefix=True).items]
    assert high == [b"a/\xff", b"a/\xff\xff"]
    assert [item.value for item in kv.read(here + b"a").items] == [b"a"]
    limited = kv.read(here, prefix=True, limit=3)
    assert [item.value for item in limited.items] == names[:3]
    assert delete(kv, here + b"a/", prefix=True) == len(under)
    assert [item.value for item in kv.read(here, prefix=True).items] == [b"a", b"a0", b"b"]


def test_an_empty_prefix_means_all_keys(kv: ContractKv, here: bytes) -> None:
    put(kv, b"\xff\xff" + here, b"high")
    put(kv, here, b"low")
    everything = [item.key for item in kv.read(b"", prefix=True).items]
    assert here in everything
    assert everything[-1].startswith(b"\xff\xff")
    assert [item.value for item in kv.read(b"\xff\xff" + here, prefix=True).items] == [b"high"]
    delete(kv, b"\xff\xff", prefix=True)


def test_what_was_acknowledged_is_read_through_every_client(store: Store, here: bytes) -> None:
    clients = [store.open() for _ in range(4)]
    for number in range(20):
        revision = put(clients[number % 4], here + b"k", b"%d" % number)
        for kv in clients:
            (item,) = kv.read(here + b"k").items
            assert (item.value, item.mod_revision) == (b"%d" % number, revision)
    assert len({kv.identity() for kv in clients}) == 1
    close_all(store, clients)


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


# --- limits ------------------------------------------------------------------------------------


def test_the_largest_transactions_are_accepted(kv: ContractKv, here: bytes) -> None:
    guards = tuple(absent(here + b"%d" % number) for number in range(MAX_TXN_OPS))
    puts = tuple(Put(here + b"%d" % number, b"") for number in range(MAX_TXN_OPS))
    assert kv.txn(Txn(guards, puts, puts)).succeeded
    room = MAX_TXN_BYTES - txn_bytes(Txn((), (Put(here + b"big", b""),)))
    put(kv, here + b"big", b"x" * room)
    (item,) = kv.read(here + b"big").items
    assert len(item.value) == room
    assert delete(kv, here, prefix=True) == MAX_TXN_OPS + 1


def test_values_and_keys_are_any_bytes(kv: ContractKv, here: bytes) -> None:
    strange = bytes(range(256))
    put(kv, here + strange, strange)
    put(kv, here + b"empty", b"")
    assert {item.key: item.value for item in kv.read(here, prefix=True).items} == {
        here + strange: strange,
        here + b"empty": b"",
    }


def delete_and_put(kv: ContractKv, old: bytes, new: bytes) -> int:
    put(kv, old, b"")
    return kv.txn(Txn((), (Delete(old), Put(new, b"")))).revision


def close_all(store: Store, clients: list[ContractKv]) -> None:
    for kv in clients:
        if kv is not store.kv:
            kv.close()

"""What every coordination store must do: the model, the embedded process, and real etcd."""

from __future__ import annotations

from kv_stores import ContractKv, Store, together

from resilient_ps.coordinator.kv import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    ReadResult,
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


def by(creator: int) -> bytes:
    """In what it writes: a slow etcd may lose an answer, and the repeat must know its own write."""
    return b"creator-%d-of-this-test" % creator


def test_of_sixteen_creators_one_wins(store: Store, here: bytes) -> None:
    clients = [store.open() for _ in range(4)]
    for number in range(5):
        key = here + b"%d" % number
        made = together(16, lambda n, key=key: create(clients[n % 4], key, by(n), nonce=by(n)))
        (winner,) = [n for n, revision in enumerate(made) if revision is not None]
        (item,) = store.kv.read(key).items
        assert (item.value, item.version) == (by(winner), 1)
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
            count, _, _ = item.value.partition(b" ")
            value = b"%d %b" % (int(count) + 1, by(number))
            revision = item.mod_revision
            done += replace(kv, here + b"n", value, revision, nonce=by(number)) is not None

    together(8, increment)
    (item,) = store.kv.read(here + b"n").items
    assert item.value.startswith(b"40 ")
    assert item.version == 41
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


def close_all(store: Store, clients: list[ContractKv]) -> None:
    for kv in clients:
        if kv is not store.kv:
            kv.close()

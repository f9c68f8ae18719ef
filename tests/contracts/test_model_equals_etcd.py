"""Random requests to the model and to a real store, answer by answer: the model adds nothing and
forgets nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from kv_stores import Recorder, Store, open_store

from resilient_ps.coordinator.kv import (
    Compare,
    Delete,
    LeaseRevoke,
    Op,
    Put,
    Read,
    Txn,
    WatchBatch,
    put,
)
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.errors import BadInput, NotFound

KEYS = [b"m/a", b"m/a/1", b"m/a/2", b"m/b", b"m/b\xff", b"m/\xff"]
PREFIXES = [b"m/", b"m/a", b"m/a/", b"m/b\xff", b"m/c"]
VALUES = [b"", b"0", b"1", b"\xff"]
REQUESTS = 400


@pytest.fixture(params=["embedded", "etcd-1"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(request.param) as opened:
        yield opened


@pytest.mark.parametrize("seed", [1])
def test_the_model_answers_as_the_store(store: Store, seed: int) -> None:
    compare_with_model(store, random.Random(seed), REQUESTS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 7))
def test_the_model_answers_as_the_store_often(store: Store, seed: int) -> None:
    compare_with_model(store, random.Random(seed), 5 * REQUESTS)


def test_the_comparison_notices_a_difference(store: Store) -> None:
    """The negative control: a key that only the real store has."""
    put(store.kv, b"m/a", b"")
    with pytest.raises(AssertionError):
        compare_with_model(store, random.Random(1), REQUESTS)


def compare_with_model(store: Store, rng: random.Random, requests: int) -> None:
    model, leases = MemoryKv(), [0, 424242]
    assert model.revision == store.kv.read(b"m/a").revision, "both begin empty"
    watches = {prefix: model.watch(prefix, 1) for prefix in PREFIXES}
    for _ in range(requests):
        if rng.random() < 0.03:
            lease = store.kv.grant(600).lease
            assert model.grant(600, 0, lease=lease).lease == lease
            leases.append(lease)
        elif rng.random() < 0.03:
            lease = rng.choice(leases[1:])
            real = outcome(store.kv.revoke, lease)
            modelled = outcome(model.apply, LeaseRevoke(lease), 0)
            assert isinstance(real, NotFound) == isinstance(modelled, NotFound)
        else:
            txn = random_txn(rng, leases, model.revision)
            real, modelled = outcome(store.kv.txn, txn), outcome(model.apply, txn, 0)
            assert real == modelled or type(real) is type(modelled) is NotFound, txn
    for prefix, watch in watches.items():
        assert replayed(store, prefix) == model.poll(watch), prefix


def replayed(store: Store, prefix: bytes) -> tuple[WatchBatch, ...]:
    seen, end = Recorder(), prefix + b"end"
    last = put(store.kv, end, b"")
    with closing(store.kv.watch(prefix, 1, seen)):
        seen.wait(lambda seen: seen.batches and seen.batches[-1].revision == last, "the end")
    store.kv.txn(Txn((), (Delete(end),)))
    ours = [without_ends(batch) for batch in seen.batches]
    return tuple(batch for batch in ours if batch.events)


def without_ends(batch: WatchBatch) -> WatchBatch:
    kept = tuple(event for event in batch.events if not event.item.key.endswith(b"end"))
    return replace(batch, events=kept)


def outcome(act: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return act(*arguments)
    except NotFound as error:
        return error


def random_txn(rng: random.Random, leases: list[int], revision: int) -> Txn:
    while True:
        try:
            return Txn(
                tuple(
                    random_compare(rng, leases, revision) for _ in range(rng.choice([0, 0, 1, 2]))
                ),
                tuple(random_op(rng, leases) for _ in range(rng.randrange(4))),
                tuple(random_op(rng, leases) for _ in range(rng.randrange(3))),
            )
        except BadInput:
            continue  # a key put twice: the vocabulary refuses it, so it cannot be sent


def random_compare(rng: random.Random, leases: list[int], revision: int) -> Compare:
    target = rng.choice(["value", "version", "create", "mod", "lease"])
    operand: bytes | int = rng.randrange(4) if target == "version" else rng.randint(0, revision)
    if target == "value":
        operand = rng.choice(VALUES)
    elif target == "lease":
        operand = rng.choice(leases)
    op = rng.choice(["=", "!=", "<", ">"])
    return Compare(rng.choice(KEYS), target, op, operand)  # type: ignore[arg-type]


def random_op(rng: random.Random, leases: list[int]) -> Op:
    kind = rng.randrange(5)
    if kind <= 1:
        return Put(rng.choice(KEYS), rng.choice(VALUES), rng.choice([0, 0, 0, *leases]))
    if kind == 2:
        return Delete(rng.choice(KEYS))
    if kind == 3:
        return Delete(rng.choice(PREFIXES), prefix=True)
    return Read(rng.choice(PREFIXES), prefix=True, limit=rng.choice([0, 0, 1, 2]))


def test_a_compacted_watch_ends_in_the_model_where_it_resets_in_the_client() -> None:
    model = MemoryKv()
    watch = model.watch(b"m/", 2)
    for value in (b"1", b"2"):
        model.apply(Txn((), (Put(b"m/a", value),)), 0)
    model.compact(3)
    assert model.poll(watch) == Compacted(3)
    assert model.poll(watch) == ()

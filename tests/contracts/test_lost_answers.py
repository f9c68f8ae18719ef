"""An answer that is lost on the way: what is recognised, what is repeated, what stays unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kv_stores import PATIENCE_S, Recorder, Store, eventually, open_store

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.network import Network
from resilient_ps.coordinator.kv import Put, Txn, absent, create, delete, put, replace, unchanged
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import start_embedded
from resilient_ps.errors import DeadlineExceeded, NotFound, Reopen

PARTY = "e0"
NONCE = b"a-nonce-of-this-call"


class Lossy:
    """A client whose answers can be swallowed, and a direct one to see the truth with."""

    def __init__(self, store: Store, network: Network) -> None:
        self.direct = store.kv
        assert isinstance(store.kv, EtcdKv)
        self._network = network
        self._endpoint = network.open(PARTY, store.kv.endpoints[0])
        self._silences: list[int] = []
        self.kv = EtcdKv(self._endpoint)
        self.kv.read(b"warm")

    def mute(self) -> None:
        """From now on requests pass, and answers do not."""
        self._silences.append(self._network.apply(Rule("drop", targets=(PARTY,), way="answers")))

    def cut(self) -> None:
        """End all connections; what was not answered never will be. Later ones are not muted."""
        self._network.lift(self._network.apply(Rule("reset", targets=(PARTY,))))
        while self._silences:
            self._network.lift(self._silences.pop())

    def replace(self, endpoint: str) -> None:
        """Another store is there from now on."""
        self._network.close_address(self._endpoint)
        self._network.open(PARTY, endpoint, port=int(self._endpoint.rpartition(":")[2]))

    def lose_the_answer(self, act: Callable[[], Any], happened: Callable[[], Any]) -> Any:
        """Runs `act`, swallows its answer, and cuts the connection once `happened` is seen."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(act())
            except Exception as error:
                outcome.append(error)

        self.mute()
        thread = threading.Thread(target=run)
        thread.start()
        eventually(happened, "the effect of the call whose answer is swallowed")
        self.cut()
        thread.join(PATIENCE_S)
        (result,) = outcome
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        self.kv.close()
        self.cut()
        self._network.close_address(self._endpoint)


@pytest.fixture(scope="module", params=["embedded", "etcd-1"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network")) as opened:
        yield opened


@pytest.fixture
def lossy(store: Store, network: Network) -> Iterator[Lossy]:
    delete(store.kv, b"", prefix=True)
    with closing(Lossy(store, network)) as opened:
        yield opened


def test_a_guarded_write_is_recognised_by_its_nonce(lossy: Lossy) -> None:
    txn = Txn((absent(b"k"),), (Put(b"k", b"me:" + NONCE), Put(b"other", b"")))
    result = lossy.lose_the_answer(
        lambda: lossy.kv.txn(txn, nonce=NONCE), lambda: lossy.direct.read(b"k").items
    )
    (item,) = lossy.direct.read(b"k").items
    assert result.succeeded
    assert result.recognised
    assert result.revision == item.mod_revision
    assert item.version == 1


def test_a_replacement_is_recognised_by_its_nonce(lossy: Lossy) -> None:
    first = put(lossy.direct, b"k", b"old")
    revision = lossy.lose_the_answer(
        lambda: replace(lossy.kv, b"k", NONCE, first, nonce=NONCE),
        lambda: lossy.direct.read(b"k").items[0].value == NONCE,
    )
    (item,) = lossy.direct.read(b"k").items
    assert (item.mod_revision, item.version) == (revision, 2)


def test_without_a_nonce_the_outcome_of_a_guarded_write_is_unknown(lossy: Lossy) -> None:
    with pytest.raises(DeadlineExceeded, match="outcome unknown"):
        lossy.lose_the_answer(
            lambda: create(lossy.kv, b"k", b"v"), lambda: lossy.direct.read(b"k").items
        )
    assert lossy.direct.read(b"k").items[0].version == 1


def test_a_nonce_that_somebody_overwrote_leaves_the_outcome_unknown(lossy: Lossy) -> None:
    def overwritten() -> bool:
        found = lossy.direct.read(b"k").items
        return bool(found) and bool(put(lossy.direct, b"k", b"somebody else"))

    with pytest.raises(DeadlineExceeded, match="outcome unknown"):
        lossy.lose_the_answer(lambda: create(lossy.kv, b"k", NONCE, nonce=NONCE), overwritten)
    assert lossy.direct.read(b"k").items[0].value == b"somebody else"


def test_an_unguarded_write_is_not_repeated(lossy: Lossy) -> None:
    with pytest.raises(DeadlineExceeded, match="outcome unknown"):
        lossy.lose_the_answer(
            lambda: put(lossy.kv, b"k", b"v"), lambda: lossy.direct.read(b"k").items
        )
    assert lossy.direct.read(b"k").items[0].version == 1


def test_an_unguarded_write_is_recognised_by_its_nonce(lossy: Lossy) -> None:
    result = lossy.lose_the_answer(
        lambda: lossy.kv.txn(Txn((), (Put(b"k", NONCE),)), nonce=NONCE),
        lambda: lossy.direct.read(b"k").items,
    )
    assert result.recognised
    assert lossy.direct.read(b"k").items[0].version == 1


def test_a_guard_that_did_not_hold_is_told_when_no_answer_was_lost(lossy: Lossy) -> None:
    """The negative control: a nonce does not make a refused transaction look successful."""
    put(lossy.direct, b"k", b"somebody else")
    guarded = Txn((unchanged(b"k", 0),), (Put(b"k", NONCE),))
    result = lossy.kv.txn(guarded, nonce=NONCE)
    assert (result.succeeded, result.recognised) == (False, False)


def test_a_read_is_simply_repeated(lossy: Lossy) -> None:
    put(lossy.direct, b"k", b"v")
    found = lossy.lose_the_answer(lambda: lossy.kv.read(b"k"), lambda: True)
    assert found.items[0].value == b"v"


def test_a_grant_is_repeated_as_the_same_lease(lossy: Lossy) -> None:
    pause = threading.Event()
    leased = lossy.lose_the_answer(lambda: lossy.kv.grant(600), lambda: pause.wait(0.2) or True)
    assert leased.ttl_s == 600
    assert lossy.direct.refresh(leased.lease) == 600
    lossy.direct.revoke(leased.lease)


def test_a_revocation_is_repeated_and_recognised(lossy: Lossy) -> None:
    lease = lossy.direct.grant(600).lease
    lossy.lose_the_answer(lambda: lossy.kv.revoke(lease), lambda: lossy.direct.refresh(lease) == 0)
    with pytest.raises(NotFound):
        lossy.kv.revoke(lease)


def test_a_watch_loses_nothing_when_its_connection_is_cut(lossy: Lossy) -> None:
    seen = Recorder()
    watch = lossy.kv.watch(b"w/", 0, seen)
    for number in range(30):
        if number % 10 == 5:
            lossy.mute()
        put(lossy.direct, b"w/%d" % number, b"")
        if number % 10 == 8:
            lossy.cut()
    seen.wait_for_key("put", b"w/29")
    watch.close()
    assert seen.names() == [("put", b"w/%d" % number) for number in range(30)]


def test_a_store_that_was_replaced_is_noticed(lossy: Lossy) -> None:
    with start_embedded() as another:
        lossy.replace(another.endpoints[0])
        with pytest.raises(Reopen, match="wiped or replaced"):
            lossy.kv.read(b"k")
        with pytest.raises(Reopen):
            lossy.kv.read(b"k")

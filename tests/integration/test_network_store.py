"""An S3 store behind the proxy between all parties: each trouble is felt, counted, and ends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from line_peers import eventually

from resilient_ps.chaos.faults.links import Effect, Rule, StoreTrouble
from resilient_ps.chaos.live.network import Network
from resilient_ps.errors import NotFound
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobList,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreUnavailable,
)
from resilient_ps.storage.runtime.open import OpenedStore, open_store
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS

ONCE = StoreOptions(attempts=1, connect_timeout_s=2.0, read_timeout_s=1.0)
NUMBERS = itertools.count()
DATA = b"data" * 50_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    try:
        started = SeaweedFS(tmp_path_factory.mktemp("weed"))
    except NotFound as error:
        pytest.skip(str(error))
    with started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


@pytest.fixture(scope="module")
def line(
    server: SeaweedFS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Network, str]]:
    key = (server.access_key, server.secret_key)
    target = server.endpoint.removeprefix("http://")
    with Network(tmp_path_factory.mktemp("network")) as network:
        yield network, network.open("store", target, http=True, credentials=key)


@pytest.fixture
def network(line: tuple[Network, str]) -> Iterator[Network]:
    yield line[0]
    line[0].trouble_store(StoreTrouble())


@pytest.fixture
def store(server: SeaweedFS, line: tuple[Network, str]) -> Iterator[OpenedStore]:
    """In a place of its own, through the proxy; nothing is tried twice."""
    options = replace(ONCE, endpoint=f"http://{line[1]}")
    with closing(open_store(f"{server.url}/t{next(NUMBERS)}", options)) as opened:
        opened.do(PutBlob("x", DATA))
        yield opened


def names(store: OpenedStore) -> list[str]:
    page = store.do(ListBlobs(""))
    assert isinstance(page, BlobList)
    return [item.name for item in page.items]


def struck(network: Network, before: Effect) -> int:
    return network.store_effect().pieces - before.pieces


@pytest.mark.parametrize(
    "trouble",
    [
        StoreTrouble(error_share=1.0),
        StoreTrouble(timeout_share=1.0),
        StoreTrouble(truncate_share=1.0),
        StoreTrouble(lost_answer_share=1.0),
    ],
    ids=["errors", "timeouts", "truncates", "loses answers"],
)
def test_a_trouble_is_felt_until_it_ends(
    network: Network, store: OpenedStore, trouble: StoreTrouble
) -> None:
    before = network.store_effect()
    network.trouble_store(trouble)
    with pytest.raises(StoreUnavailable):
        store.do(GetBlob("x"))
    assert struck(network, before) == 1
    network.trouble_store(StoreTrouble())
    assert store.do(GetBlob("x")).data == DATA  # type: ignore[union-attr]
    assert struck(network, before) == 1


def test_a_put_whose_answer_was_lost_was_carried_out(network: Network, store: OpenedStore) -> None:
    network.trouble_store(StoreTrouble(lost_answer_share=1.0))
    with pytest.raises(StoreUnavailable):
        store.do(PutBlob("y", b"y"))
    network.trouble_store(StoreTrouble())
    assert store.do(GetBlob("y")).data == b"y"  # type: ignore[union-attr]


def test_a_slow_store_is_slow(network: Network, store: OpenedStore) -> None:
    network.trouble_store(StoreTrouble(bytes_per_s=1_000_000))
    began_s = time.monotonic()
    store.do(GetBlob("x"))
    assert time.monotonic() - began_s > 0.19


def test_what_is_new_is_hidden_from_listings(network: Network, store: OpenedStore) -> None:
    before = network.store_effect()
    network.trouble_store(StoreTrouble(hide_new_s=3600.0))
    assert names(store) == []
    assert struck(network, before) == 1
    network.trouble_store(StoreTrouble())
    assert names(store) == ["x"]


def test_conditions_of_puts_are_ignored_while_it_lasts(
    network: Network, store: OpenedStore
) -> None:
    network.trouble_store(StoreTrouble(ignore_conditions=True))
    store.do(PutBlob("x", b"another", "create"))
    network.trouble_store(StoreTrouble())
    with pytest.raises(BlobExists):
        store.do(PutBlob("x", b"a third one", "create"))
    assert store.do(GetBlob("x")).data == b"another"  # type: ignore[union-attr]


def test_lines_to_the_store_are_cut_like_others(network: Network, store: OpenedStore) -> None:
    rule = network.apply(Rule("drop", targets=("store",)))
    with pytest.raises(StoreUnavailable):
        store.do(GetBlob("x"))
    assert network.lift(rule).pieces >= 1
    assert store.do(GetBlob("x")).data == DATA  # type: ignore[union-attr]


def test_a_dead_store_is_refused_and_one_that_is_back_is_not(
    network: Network, server: SeaweedFS, store: OpenedStore
) -> None:
    server.kill()
    with pytest.raises(StoreUnavailable):
        store.do(GetBlob("x"))
    server.restart()

    def is_back() -> bool:
        try:
            store.do(GetBlob("x"))
        except StoreUnavailable:
            return False
        return True

    eventually(is_back, "the store to be reached")

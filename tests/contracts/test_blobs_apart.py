"""Large objects that a process of its own transfers: the same promises, and an end with us."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import pytest
from blob_stores import NO_WEED, variables

from resilient_ps.errors import NotFound
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobMissing,
    BlobPut,
    Bytes,
    Encoded,
    GetBlob,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
)
from resilient_ps.storage.requests import sha256_of
from resilient_ps.storage.runtime import apart
from resilient_ps.storage.runtime.apart import BlobsApart
from resilient_ps.storage.runtime.arena import SLOTS
from resilient_ps.storage.runtime.metrics import StoreMetrics
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.s3 import S3Blobs
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

CONTENT = os.urandom(3 << 20)


@dataclass(frozen=True)
class Body:
    """As an image's objects are: in pieces, and with something to tell."""

    data: bytes = CONTENT

    def encode(self) -> Encoded:
        return Encoded((self.data[:70], memoryview(self.data)[70:]), "told")


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound:
        pytest.skip(NO_WEED)
    with SeaweedFS() as running:
        yield running


@contextmanager
def opened(server: SeaweedFS) -> Iterator[BlobsApart]:
    options, metrics = StoreOptions(endpoint=server.endpoint, attempts=1), StoreMetrics()
    with variables(server.environment):
        near = S3Blobs(server.bucket, options, metrics)
        store = BlobsApart(near, server.bucket, options, metrics)
        yield store
        store.close()


@pytest.fixture(scope="module")
def shared(server: SeaweedFS) -> Iterator[BlobsApart]:
    """For tests that do no harm to its process."""
    with opened(server) as store:
        yield store


@pytest.fixture
def store(server: SeaweedFS) -> Iterator[BlobsApart]:
    with opened(server) as store:
        yield store


def got(store: BlobsApart, request: GetBlob) -> BlobGot:
    return cast(BlobGot, store.do(request))


def whole(name: str) -> GetBlob:
    return GetBlob(name, 0, len(CONTENT))


def test_what_was_put_apart_is_read_apart_and_here(shared: BlobsApart) -> None:
    put = shared.do(PutBlob("same", Body()))
    assert put == BlobPut(cast(BlobPut, put).etag, len(CONTENT), sha256_of([CONTENT]), "told")
    assert shared.pid != 0
    for request in (whole("same"), GetBlob("same")):
        read = got(shared, request)
        assert bytes(read.data) == CONTENT
        assert (read.etag, read.size) == (cast(BlobPut, put).etag, len(CONTENT))


def test_a_range_is_decoded_where_it_lies(shared: BlobsApart) -> None:
    shared.do(PutBlob("range", Body()))
    request = GetBlob("range", 10, 2 << 20, decode=lambda data: bytes(data[:5]))
    assert got(shared, request).decoded == CONTENT[10:15]


def test_conditions_hold_and_refusals_are_told(shared: BlobsApart) -> None:
    shared.do(PutBlob("once", Body(), "create"))
    with pytest.raises(BlobExists):
        shared.do(PutBlob("once", Body(CONTENT[::-1]), "create"))
    assert bytes(got(shared, whole("once")).data) == CONTENT
    with pytest.raises(BlobMissing):
        shared.do(whole("nothing"))
    with pytest.raises(StoreRefused) as refused:
        shared.do(GetBlob("once", 0, len(CONTENT), most=100))
    assert refused.value.why == "request"


def test_small_objects_need_no_process(store: BlobsApart) -> None:
    store.do(PutBlob("small", b"few"))
    store.do(PutBlob("small-too", Body(b"x" * 100)))
    assert bytes(got(store, GetBlob("small")).data) == b"few"
    assert store.pid == 0


def test_whoever_holds_all_the_memory_can_read_on(shared: BlobsApart) -> None:
    shared.do(PutBlob("held", Body()))
    held = [got(shared, whole("held")).data for _ in range(SLOTS + 2)]
    assert all(bytes(data) == CONTENT for data in held)
    last: Bytes = held[-1]
    shared.do(PutBlob("held", Body(CONTENT[::-1])))
    del held
    assert [bytes(got(shared, whole("held")).data) for _ in range(SLOTS)] == [CONTENT[::-1]] * SLOTS
    assert bytes(last) == CONTENT


def test_a_process_that_dies_is_a_store_that_was_away(store: BlobsApart) -> None:
    store.do(PutBlob("dies", Body()))
    first = store.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(StoreUnavailable):
        store.do(whole("dies"))
    assert bytes(got(store, whole("dies")).data) == CONTENT
    assert store.pid not in (0, first)


def test_a_process_that_hangs_is_given_up(server: SeaweedFS) -> None:
    options = StoreOptions(
        server.endpoint,
        attempts=1,
        attempt_s=6.0,  # so that a slow machine is none that hangs
        connect_timeout_s=1.0,
        retry_for_s=0.0,
        slowest_bytes_per_s=1 << 30,
    )
    with variables(server.environment):
        near = S3Blobs(server.bucket, options, StoreMetrics())
        store = BlobsApart(near, server.bucket, options, StoreMetrics())
        try:
            store.do(PutBlob("hangs", Body()))
            first = store.pid
            os.kill(first, signal.SIGSTOP)
            with pytest.raises(StoreUnavailable, match="or hangs"):
                store.do(whole("hangs"))
            assert bytes(got(store, whole("hangs")).data) == CONTENT
            assert store.pid not in (0, first)
        finally:
            store.close()


def test_the_store_that_is_gone_is_told(server: SeaweedFS, store: BlobsApart) -> None:
    store.do(PutBlob("gone", Body()))
    server.kill()
    try:
        with pytest.raises(StoreUnavailable):
            store.do(whole("gone"))
    finally:
        server.restart()


def test_it_ends_when_nothing_large_comes(
    store: BlobsApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    end_idle = store.end_idle

    def told(process: object) -> None:
        end_idle(process)  # type: ignore[arg-type]
        ended.set()

    monkeypatch.setattr(apart, "IDLE_S", 0.01)
    monkeypatch.setattr(store, "end_idle", told)
    store.do(PutBlob("idle", Body()))
    assert ended.wait(30)
    assert store.pid == 0
    assert bytes(got(store, whole("idle")).data) == CONTENT


def test_closing_ends_the_process(store: BlobsApart) -> None:
    store.do(PutBlob("closed", Body()))
    pid = store.pid
    store.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(StoreUnavailable):
        store.do(whole("closed"))

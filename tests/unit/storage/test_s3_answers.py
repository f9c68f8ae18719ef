"""Answers of an S3 store that break off while they are read, and connections that are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from http_store import client_of, serving

from resilient_ps.storage.blobs import BlobGot, GetBlob, StoreUnavailable
from resilient_ps.storage.runtime.body import PIECE_BYTES
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.s3 import S3Blobs

CONTENT = bytes(range(256)) * (PIECE_BYTES // 25)  # no whole number of reads


class Store(ThreadingHTTPServer):
    """Sends one object, whatever is asked for; `broken` answers, at first, only by half.

    `busy` requests, at first, are refused; `parting`: each connection is for one answer.
    """

    daemon_threads = True

    def __init__(self, broken: int) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.broken = broken
        self.busy = 0
        self.stalls = 0
        self.over = threading.Event()
        self.parting = False
        self.connections = 0
        self.requests = 0


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.busy > 0:
            self.server.busy -= 1
            self.send_response(503)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)  # it is no less long than what was asked for
            return
        content, asked = CONTENT, self.headers.get("Range")
        if asked is None:
            self.send_response(200)
        else:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            content = CONTENT[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.stalls > 0:
            self.server.stalls -= 1
            self.wfile.write(content[: len(content) // 2])
            self.server.over.wait(30)
            self.close_connection = True
        elif self.server.broken > 0:
            self.server.broken -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.wfile.write(content)
        self.close_connection = self.close_connection or self.server.parting

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def broken() -> int:
    return 0


@pytest.fixture
def store(broken: int) -> Iterator[Store]:
    with Store(broken) as store, serving(store):
        yield store
        store.over.set()


@pytest.fixture
def blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Blobs]:
    with client_of(store, monkeypatch, attempts=2, backoff_s=0.01) as blobs:
        yield blobs


def content_of(blobs: S3Blobs) -> bytes:
    got = blobs.do(GetBlob("object"))
    assert isinstance(got, BlobGot)
    return bytes(got.data)


@pytest.mark.parametrize("broken", [1])
def test_an_answer_that_ends_too_early_is_asked_for_again(blobs: S3Blobs) -> None:
    assert content_of(blobs) == CONTENT


@pytest.mark.parametrize("broken", [2])
def test_where_every_answer_ends_too_early_the_store_is_unavailable(blobs: S3Blobs) -> None:
    with pytest.raises(StoreUnavailable, match=r"get of s3://bucket/object .* expected"):
        content_of(blobs)


def test_answers_that_were_read_to_their_ends_share_a_connection(
    store: Store, blobs: S3Blobs
) -> None:
    assert [content_of(blobs) for _ in range(3)] == [CONTENT] * 3
    assert store.connections == 1


RANGE = GetBlob("object", 1000, len(CONTENT) - 2000, len(CONTENT))


def range_of(blobs: S3Blobs) -> bytes:
    got = blobs.do(RANGE)
    assert isinstance(got, BlobGot)
    assert (got.etag, got.size) == ("1", len(CONTENT))
    return bytes(got.data)


def test_a_large_range_is_asked_for_over_a_plain_connection(store: Store, blobs: S3Blobs) -> None:
    content_of(blobs)
    assert store.connections == 1
    assert [range_of(blobs) for _ in range(3)] == [CONTENT[1000:-1000]] * 3
    assert store.connections == 2


def test_a_range_is_received_where_it_is_wanted(blobs: S3Blobs) -> None:
    memory = memoryview(bytearray(2 * len(CONTENT)))
    got = blobs.do(replace(RANGE, into=memory))
    assert isinstance(got, BlobGot)
    assert memory[: len(got.data)] == CONTENT[1000:-1000]


def test_a_plain_connection_that_the_store_has_closed_is_not_used(
    store: Store, blobs: S3Blobs
) -> None:
    store.parting = True
    assert [range_of(blobs) for _ in range(3)] == [CONTENT[1000:-1000]] * 3
    assert (store.connections, store.requests) == (3, 3)


@pytest.mark.parametrize("broken", [1])
def test_a_range_that_ends_too_early_is_asked_for_again(store: Store, blobs: S3Blobs) -> None:
    assert range_of(blobs) == CONTENT[1000:-1000]
    assert (store.connections, store.requests) == (2, 2)


@pytest.mark.parametrize("broken", [2])
def test_where_every_range_ends_too_early_the_store_is_unavailable(blobs: S3Blobs) -> None:
    with pytest.raises(StoreUnavailable, match=r"get of s3://bucket/object .* expected"):
        range_of(blobs)


def test_what_is_no_plain_success_is_asked_for_in_the_usual_way(
    store: Store, blobs: S3Blobs
) -> None:
    store.busy = 1
    assert range_of(blobs) == CONTENT[1000:-1000]
    assert store.requests == 2
    store.busy = 4  # both ways, in both attempts
    with pytest.raises(StoreUnavailable, match="503"):
        range_of(blobs)
    assert store.requests == 6


def test_a_proxy_is_not_passed_by(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{store.server_address[1]}")
    blobs = S3Blobs("bucket", StoreOptions(endpoint="http://elsewhere.invalid", attempts=1))
    assert range_of(blobs) == CONTENT[1000:-1000]
    assert store.connections == 1
    blobs.close()


def test_a_connection_on_which_an_answer_stands_still_is_not_used_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stalls = 1
    with client_of(store, monkeypatch, attempts=2, read_timeout_s=1.0) as hasty:
        assert range_of(hasty) == CONTENT[1000:-1000]
    assert (store.connections, store.requests) == (2, 2)

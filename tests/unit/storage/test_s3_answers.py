"""Answers of an S3 store that break off while they are read, and connections that are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from resilient_ps.storage.blobs import BlobGot, GetBlob, StoreUnavailable
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.s3 import READ_BYTES, S3Blobs

CONTENT = bytes(range(256)) * (READ_BYTES // 100)  # no whole number of reads


class Store(ThreadingHTTPServer):
    """Sends one object, whatever is asked for; `broken` answers, at first, only by half."""

    daemon_threads = True

    def __init__(self, broken: int) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.broken = broken
        self.connections = 0


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.server.broken > 0:
            self.server.broken -= 1
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
            self.close_connection = True
        else:
            self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def broken() -> int:
    return 0


@pytest.fixture
def store(broken: int) -> Iterator[Store]:
    with Store(broken) as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.01,))
        thread.start()
        yield store
        store.shutdown()
        thread.join()


@pytest.fixture
def blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Blobs]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint = f"http://127.0.0.1:{store.server_address[1]}"
    blobs = S3Blobs("bucket", StoreOptions(endpoint=endpoint, attempts=2, backoff_s=0.01))
    yield blobs
    blobs.close()


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

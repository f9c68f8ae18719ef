"""What uploads to an S3 store are signed with."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from http_store import client_of, serving

from resilient_ps.storage.blobs import Encoded, PutBlob
from resilient_ps.storage.runtime.options import MIB
from resilient_ps.storage.runtime.pieces import PieceReader
from resilient_ps.storage.runtime.s3 import S3Blobs

PIECES = (b"one" * 1000, b"", b"two" * 500_000)
UPLOAD = (
    b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
    b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>",
)


class Store(ThreadingHTTPServer):
    """Takes all objects; `put` has the digest that each was signed with, and what came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.put: list[tuple[str, bytes]] = []


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.put.append((self.headers["x-amz-content-sha256"], body))
        self._answer(b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(UPLOAD["uploadId" in self.path])

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


class Body:
    def encode(self) -> Encoded:
        return Encoded(PIECES)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store, serving(store):
        yield store


@pytest.fixture
def blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Blobs]:
    with client_of(store, monkeypatch, multipart_bytes=6 * MIB) as blobs:
        yield blobs


@pytest.mark.parametrize("body", [b"", b"short", bytes(3 * MIB), bytes(20 * MIB), Body()])
def test_an_upload_is_signed_with_the_digest_of_what_is_sent(
    store: Store, blobs: S3Blobs, body: bytes | Body
) -> None:
    blobs.do(PutBlob("object", body))
    assert store.put
    for signed, sent in store.put:
        assert signed == hashlib.sha256(sent).hexdigest()
    whole = b"".join(PIECES) if isinstance(body, Body) else body
    assert b"".join(sent for _, sent in store.put) == whole


def test_a_body_that_knows_its_digest_is_not_read_for_it(store: Store, blobs: S3Blobs) -> None:
    for digest in ("ab" * 32, ""):
        body = PieceReader([memoryview(b"short")], time.monotonic() + 60, digest)
        blobs._client.put_object(Bucket="bucket", Key="object", Body=body)
    assert [signed for signed, _ in store.put] == [
        "ab" * 32,
        hashlib.sha256(b"short").hexdigest(),
    ]

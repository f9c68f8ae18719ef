"""A store of a test's own, over HTTP in this process, and its client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.s3 import S3Blobs


@contextmanager
def serving(store: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=store.serve_forever, args=(0.01,))
    thread.start()
    yield
    store.shutdown()
    thread.join()


@contextmanager
def client_of(
    store: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Iterator[S3Blobs]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint = f"http://127.0.0.1:{store.server_address[1]}"
    with closing(S3Blobs("bucket", StoreOptions(endpoint=endpoint, **options))) as blobs:
        yield blobs

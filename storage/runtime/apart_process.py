"""The process that transfers large objects between shared memory and an S3 store: see `apart`.

Arguments: the bucket, the store's options in JSON, and descriptors: of the shared memory, and of a
socket for each request that may be under way. A request is a line of JSON, and so is its answer.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from resilient_ps.errors import Bug, ResilientPsError
from resilient_ps.storage.blobs import BlobGot, BlobPut, GetBlob, PutBlob, StoreRefused
from resilient_ps.storage.runtime.apart import read_line
from resilient_ps.storage.runtime.arena import SLOT_BYTES, Arena
from resilient_ps.storage.runtime.metrics import StoreMetrics
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.s3 import S3Blobs


class _Retries(StoreMetrics):
    """Counts them for the request of each thread."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def retried(self, kind: str) -> None:
        self._of_thread.count = getattr(self._of_thread, "count", 0) + 1

    def taken(self) -> int:
        """Of this thread, since it was asked last."""
        count: int = getattr(self._of_thread, "count", 0)
        self._of_thread.count = 0
        return count


@dataclass(frozen=True, slots=True)
class _Worker:
    """What all lines use."""

    store: S3Blobs
    arena: Arena
    retries: _Retries = field(default_factory=_Retries)

    def serve(self, line: socket.socket) -> None:
        """Answer requests until the line ends."""
        try:
            while True:
                said = self._answer(read_line(line))
                said["retries"] = self.retries.taken()
                line.sendall(json.dumps(said).encode() + b"\n")
        except (OSError, ValueError):
            return  # nobody asks any more

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._put(asked) if asked["do"] == "put" else self._get(asked)
        except StoreRefused as error:
            return {"error": "StoreRefused", "text": str(error), "why": error.why}
        except ResilientPsError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except MemoryError:
            return {"error": "StoreUnavailable", "text": "no memory left to transfer an object"}
        except Exception as error:
            return {"error": Bug.__name__, "text": f"the store's client failed with {error!r}"}

    def _put(self, asked: dict[str, Any]) -> dict[str, Any]:
        body = self.arena.view(asked["slot"], asked["nbytes"])
        put = self.store.do(PutBlob(asked["name"], body, asked["mode"], asked["etag"]))
        assert isinstance(put, BlobPut)
        return {"etag": put.etag, "sha256": put.sha256}

    def _get(self, asked: dict[str, Any]) -> dict[str, Any]:
        memory = self.arena.view(asked["slot"], SLOT_BYTES)
        first, length, most = asked["first"], asked["length"], asked["most"]
        got = self.store.do(GetBlob(asked["name"], first, length, most, into=memory))
        assert isinstance(got, BlobGot)
        return {"etag": got.etag, "size": got.size, "nbytes": len(got.data)}


def main() -> None:
    """The process itself."""
    bucket, options, descriptors = sys.argv[1:]
    memory, *lines = map(int, descriptors.split(","))
    retries = _Retries()
    store = S3Blobs(bucket, StoreOptions(**json.loads(options)), retries)
    worker = _Worker(store, Arena(memory), retries)
    os.close(memory)
    threads = [
        threading.Thread(target=worker.serve, args=(socket.socket(fileno=line),), daemon=True)
        for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

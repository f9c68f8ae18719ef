"""An S3 store whose large objects are sent and received by a process of its own.

A server's loop shares one interpreter lock with all its threads. Those that send an object hold it
again and again for moments, and when the processors are busy a moment is a whole time slice: pushes
would wait. So what is large goes through shared memory to a process that does nothing but transfer
it. All else, which is small and rare, is done here.

The process is started with the first large object, and ended after a while without any. It never
outlives this one. If it dies, or hangs, what it was doing is unavailable, as if the store had died,
and another one is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from resilient_ps import errors
from resilient_ps.errors import Bug
from resilient_ps.runtime.spawn import spawn
from resilient_ps.storage import blobs
from resilient_ps.storage.blobs import (
    BlobGot,
    BlobPut,
    BlobRequest,
    BlobResult,
    Blobs,
    Encoded,
    GetBlob,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
)
from resilient_ps.storage.requests import LARGE_BYTES, check_request, decoded, encode, size_of
from resilient_ps.storage.runtime.arena import SLOT_BYTES, Arena, shared_memory
from resilient_ps.storage.runtime.metrics import StoreMetrics
from resilient_ps.storage.runtime.options import StoreOptions

PROGRAM = "resilient_ps.storage.runtime.apart_process"
IDLE_S = 60.0  # without a large object: then the process ends
_ERRORS = {
    each.__name__: each
    for each in (blobs.BlobMissing, blobs.BlobExists, StoreUnavailable, errors.BadInput, Bug)
}


class BlobsApart:
    """The store of `bucket`; `near` is the same one, for what is done in this process."""

    def __init__(
        self, near: Blobs, bucket: str, options: StoreOptions, metrics: StoreMetrics
    ) -> None:
        self._near = near
        self._bucket = bucket
        self._options = options
        self._metrics = metrics
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._closed = False

    def do(self, request: BlobRequest) -> BlobResult:
        """As `Blobs.do`."""
        match request:
            case PutBlob() if not isinstance(request.body, bytes | bytearray | memoryview):
                return self._put(request)
            case GetBlob() if LARGE_BYTES <= request.length <= SLOT_BYTES:
                return self._get(request)
            case _:
                return self._near.do(request)

    @property
    def pid(self) -> int:
        """Of the process that transfers; 0: there is none at the moment."""
        process = self._process
        return 0 if process is None else process.pid

    def close(self) -> None:
        """End the process, too."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()
        self._near.close()

    def _put(self, request: PutBlob) -> BlobResult:
        encoded = encode(request.body)
        nbytes = size_of(encoded.pieces)
        if not LARGE_BYTES <= nbytes <= SLOT_BYTES:
            return self._near.do(replace(request, body=_Made(encoded)))
        check_request(request)
        with self._using() as process:
            slot = process.arena.take()
            if slot < 0:
                return self._near.do(replace(request, body=_Made(encoded)))
            try:
                _fill(process.arena.view(slot, nbytes), encoded)
                asked = {"mode": request.mode, "etag": request.etag}
                said = self._ask(process, "put", request.name, slot, {**asked, "nbytes": nbytes})
            finally:
                process.arena.give(slot)
        return BlobPut(said["etag"], nbytes, said["sha256"], encoded.info)

    def _get(self, request: GetBlob) -> BlobResult:
        check_request(request)
        with self._using() as process:
            slot = process.arena.take()
            if slot < 0:
                return self._near.do(request)
            try:
                asked = {"first": request.first, "length": request.length, "most": request.most}
                said = self._ask(process, "get", request.name, slot, asked)
            except BaseException:
                process.arena.give(slot)
                raise
            data = process.arena.lend(slot, said["nbytes"])
        return decoded(request, BlobGot(data, said["etag"], said["size"]))

    def _ask(
        self, process: _Process, kind: str, name: str, slot: int, more: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            said = process.ask({"do": kind, "name": name, "slot": slot, **more})
        except (OSError, ValueError) as error:
            with self._lock:
                if self._process is process:
                    self._process = None
            process.close()  # one that is only late must not touch memory that others get
            raise StoreUnavailable(
                f"{kind} of {name}: the process that transfers objects ended, or hangs ({error})"
            ) from error
        for _ in range(said["retries"]):
            self._metrics.retried(kind)
        if "error" in said:
            raise _error_of(said)
        return said

    @contextlib.contextmanager
    def _using(self) -> Iterator[_Process]:
        """The process, which does not end meanwhile for being idle."""
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store was closed")
            if self._process is None:
                self._process = _Process(self._bucket, self._options)
            process = self._process
            process.users += 1
            process.rest()
        try:
            yield process
        finally:
            with self._lock:
                process.users -= 1
                if not process.users:
                    process.end_after(IDLE_S, lambda: self.end_idle(process))

    def end_idle(self, process: _Process) -> None:
        """End this one, unless somebody uses it."""
        with self._lock:
            if process.users:
                return
            if self._process is process:
                self._process = None
        process.close()


class _Process:
    """The process, from the outside: as many lines to it as requests may be under way."""

    def __init__(self, bucket: str, options: StoreOptions) -> None:
        self.users = 0  # guarded by its owner's lock
        self._timer: threading.Timer | None = None
        pairs = [socket.socketpair() for _ in range(options.concurrency)]
        self._ours = [our for our, _ in pairs]
        memory = shared_memory()
        self.arena = Arena(memory)
        descriptors = (memory, *[their.fileno() for _, their in pairs])
        told = (json.dumps(asdict(options)), ",".join(map(str, descriptors)))
        try:
            command = [sys.executable, "-m", PROGRAM, bucket, *told]
            self._child = spawn(command, None, pass_fds=descriptors)
        finally:
            os.close(memory)
            for _, their in pairs:
                their.close()
        self._lines: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        for our in self._ours:
            our.settimeout(longest_s(options))
            self._lines.put(our)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What it answers. Raises OSError and ValueError when it has ended, or does not answer."""
        line = self._lines.get()
        try:
            line.sendall(json.dumps(asked).encode() + b"\n")
            return read_line(line)
        finally:
            self._lines.put(line)

    def rest(self) -> None:
        """Do not end it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_after(self, seconds: float, end: Callable[[], None]) -> None:
        """Call this then, unless it is to `rest` by then."""
        self._timer = threading.Timer(seconds, end)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """End it. May be called again."""
        self.rest()
        self._child.kill()
        self._child.wait()
        for line in self._ours:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # wakes up who waits
            line.close()


class _Made:
    """A body that was encoded already."""

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded

    def encode(self) -> Encoded:
        """What was made."""
        return self._encoded


def longest_s(options: StoreOptions) -> float:
    """So long the other process may take: it tries for some time, then once more."""
    transfer_s = SLOT_BYTES / options.slowest_bytes_per_s
    return options.retry_for_s + options.attempt_s + options.connect_timeout_s + transfer_s


def read_line(line: socket.socket) -> dict[str, Any]:
    """A message, which is the only one on its way. ValueError where the line has ended."""
    got = b""
    while not got.endswith(b"\n"):
        more = line.recv(1 << 16)
        if not more:
            raise ValueError("its line has ended")
        got += more
    said: dict[str, Any] = json.loads(got)
    return said


def _fill(memory: memoryview, encoded: Encoded) -> None:
    at, into = 0, np.frombuffer(memory, np.uint8)
    for piece in encoded.pieces:
        part = np.frombuffer(piece, np.uint8)
        into[at : at + part.size] = part  # without the interpreter lock, if it is large
        at += part.size


def _error_of(said: dict[str, Any]) -> errors.ResilientPsError:
    kind, text = said["error"], said["text"]
    if kind == StoreRefused.__name__:
        return StoreRefused(text, why=said["why"])
    return _ERRORS.get(kind, Bug)(text)

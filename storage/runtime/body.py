"""The body of an answer of a store, received straight into memory.

What boto3 reads with (urllib3, on http.client, on a buffered file) costs half as much again as the
receiving itself. Where the connection below is a plain one, it is read from: at most so much at a
time, which stays in the processor's cache. In all other cases (TLS, an encoding, another version of
these libraries) it is read as they do.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import IncompleteReadError

from resilient_ps.storage.blobs import StoreUnavailable

PIECE_BYTES = 256 << 10


def receive(body: Any, memory: memoryview, deadline_s: float) -> None:
    """The whole answer, as long as `memory`. `body` is urllib3's; its connection is used again.

    Raises `IncompleteReadError`, OSError, and after `deadline_s` (monotonic) `StoreUnavailable`.
    """
    answer = getattr(body, "_fp", body)  # http.client's: urllib3's copies each byte once more
    connection = _plain_connection(answer, len(memory))
    if connection is None:
        _fill(answer.readinto, memory, deadline_s)
    else:
        held = min(len(answer.fp.peek()), len(memory))  # it came with the head
        _fill(answer.fp.readinto, memory[:held], deadline_s)
        _fill(connection.recv_into, memory[held:], deadline_s)
        answer.length = 0
    body.read()  # nothing is left: so its connection is used again


def _plain_connection(answer: Any, nbytes: int) -> socket.socket | None:
    """The connection that the rest of the answer comes from, byte for byte."""
    file = getattr(answer, "fp", None)
    connection = getattr(getattr(file, "raw", None), "_sock", None)
    if type(connection) is not socket.socket or not hasattr(file, "peek"):
        return None
    is_whole = getattr(answer, "length", None) == nbytes and not getattr(answer, "chunked", True)
    return connection if is_whole and nbytes else None  # of an empty one, `peek` would wait


def _fill(read: Callable[[memoryview], int], memory: memoryview, deadline_s: float) -> None:
    left = memory
    while left:
        count = read(left[:PIECE_BYTES])
        if not count:
            actual = len(memory) - len(left)
            raise IncompleteReadError(actual_bytes=actual, expected_bytes=len(memory))
        left = left[count:]
        if time.monotonic() > deadline_s:
            raise StoreUnavailable(f"the store takes too long to send {len(memory)} bytes")

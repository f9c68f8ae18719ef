"""Bodies of answers are as long as the store says, however much memory waits for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from botocore.exceptions import IncompleteReadError

from resilient_ps.storage.runtime.body import receive

FOREVER_S = float("inf")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A store's end of a connection, and ours, which waits for what does not come."""
    store, ours = socket.socketpair()
    with store, ours:
        ours.settimeout(1.0)
        yield store, ours


def answered(ours: socket.socket) -> HTTPResponse:
    answer = HTTPResponse(ours)
    answer.begin()
    return answer


def sent(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_of_an_answer_that_is_too_short_nothing_more_is_waited_for(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    store, ours = ends
    store.sendall(sent(b"abc"))
    with pytest.raises(IncompleteReadError):
        receive(answered(ours), memoryview(bytearray(5)), FOREVER_S)


def test_the_rest_of_an_answer_that_is_too_long_is_not_the_next_one(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    store, ours = ends
    memory = bytearray(30_000)
    for body in (b"a" * 50_000, b"b" * 30_000):  # more than what a buffered file reads ahead
        store.sendall(sent(body))
        receive(answered(ours), memoryview(memory), FOREVER_S)
        assert memory == body[:30_000]

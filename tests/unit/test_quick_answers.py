"""Answers that a client takes in while they come out of a socket, without the usual way."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_quick_calls import ODD, Both, joined, made_odd

from resilient_ps import quick_calls
from resilient_ps.engine import native
from resilient_ps.messages import Answer
from resilient_ps.wire import SCRATCH_BYTES, encode

if not quick_calls.IN_USE:
    pytest.skip("there is no native module here", allow_module_level=True)

PATIENCE_S = 0.02
FAR_NS = 60 * 10**9


class Asked:
    """A pull or a push that has left, and a socket that its answer comes from."""

    def __init__(self, n: int = 40, dim: int = 3, *, is_push: bool = False) -> None:
        self.both = Both(dim=dim)
        self.keys = np.arange(n, dtype=np.uint64) * np.uint64(77)
        self.out = self.both.rows(0, n)
        self.before = self.out.copy()
        self.rows = None if is_push else self.both.rows(5, n)
        usual_out = self.out.copy()
        self.ends = []
        for user, out in zip(self.both.users, (self.out, usual_out), strict=True):
            if user.plain is not None:
                user.plain = (*user.plain[:3], 1 << 20)
            if is_push:
                user.push(1, self.keys, self.both.rows(1, n))
            else:
                self.ends.append(user.pull(1, self.keys, out))
        self.usual_out = usual_out
        self.call = self.both.quick.session.calls.folded
        self.ours, self.server = socket.socketpair()
        seconds = struct.pack("@ll", 0, int(PATIENCE_S * 1e6))
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self.scratch = np.empty(SCRATCH_BYTES, np.uint8).data

    def close(self) -> None:
        self.ours.close()
        self.server.close()

    def plain_answer(self) -> Answer:
        return self.both.answer(rows=self.rows)

    def data(self) -> bytes:
        return joined(encode(self.plain_answer()))

    def receive(self, patience_ns: int = FAR_NS) -> int:
        assert self.call is not None
        where = self.ours.fileno(), self.scratch, 1 << 20, 1 << 30, patience_ns
        return native.receive(*where, *self.call.hoped)

    def expected(self) -> NDArray[Any]:
        self.both.usual.receive(self.plain_answer())
        self.ends[1]()
        return self.usual_out


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    made = Asked(**getattr(request, "param", {}))
    yield made
    made.close()


LARGE = {"n": 30_000, "dim": 16}
WIDE = {"n": 90, "dim": 4_001}


def send_in_pieces(sock: socket.socket, data: bytes, most: int) -> threading.Thread:
    def send() -> None:
        for start in range(0, len(data), most):
            sock.sendall(data[start : start + most])

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("asked", [{}, LARGE, WIDE], indirect=True)
def test_rows_are_put_where_they_belong_while_they_come(asked: Asked) -> None:
    sender = send_in_pieces(asked.server, asked.data(), 100_001)
    assert asked.receive() == 0
    sender.join()
    np.testing.assert_array_equal(asked.out, asked.expected())
    assert asked.both.quick.session.calls.seen == asked.both.usual.session.calls.seen


@pytest.mark.parametrize("asked", [{"is_push": True}], indirect=True)
def test_an_acknowledgement_is_taken_in(asked: Asked) -> None:
    asked.server.sendall(asked.data())
    assert asked.receive() == 0
    asked.both.usual.receive(asked.plain_answer())
    assert asked.both.quick.session.calls.seen == asked.both.usual.session.calls.seen


@pytest.mark.parametrize("what", ODD)
def test_what_is_not_plain_is_left_as_it_came(asked: Asked, what: str) -> None:
    data = joined(encode(made_odd(asked.plain_answer(), what)))
    seen = list(asked.both.quick.session.calls.seen)
    asked.server.sendall(data)
    assert asked.receive() == len(data)
    assert bytes(asked.scratch[: len(data)]) == data
    np.testing.assert_array_equal(asked.out, asked.before)
    assert asked.both.quick.session.calls.seen == seen


def test_what_follows_an_answer_is_left_as_it_came(asked: Asked) -> None:
    asked.server.sendall(asked.data() + b"RPS1")
    assert asked.receive() == len(asked.data()) + 4


def test_a_head_in_pieces_is_left_as_it_came(asked: Asked) -> None:
    asked.server.sendall(asked.data()[:50])
    assert asked.receive() == 50
    np.testing.assert_array_equal(asked.out, asked.before)


def test_nothing_within_the_patience_is_no_error(asked: Asked) -> None:
    assert asked.receive() == -1
    asked.server.sendall(asked.data())
    assert asked.receive() == 0


def test_a_server_that_closes_is_told(asked: Asked) -> None:
    asked.server.close()
    with pytest.raises(ConnectionResetError):
        asked.receive()


@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_a_server_that_closes_in_the_middle_is_told(asked: Asked) -> None:
    seen = list(asked.both.quick.session.calls.seen)
    asked.server.sendall(asked.data()[:100_000])
    asked.server.close()
    with pytest.raises(ConnectionResetError):
        asked.receive()
    assert asked.both.quick.session.calls.seen == seen


@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_an_answer_that_stops_in_the_middle_ends_the_connection(asked: Asked) -> None:
    asked.server.sendall(asked.data()[:100_000])
    with pytest.raises(BlockingIOError):
        asked.receive(int(2 * PATIENCE_S * 1e9))
    assert asked.ours.recv(10) == b""  # nobody takes the rest for the beginning of a frame


@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_a_signal_in_the_middle_raises_what_its_handler_raises(asked: Asked) -> None:
    asked.server.sendall(asked.data()[:100_000])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S / 2)
        with pytest.raises(KeyboardInterrupt):
            asked.receive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert asked.ours.recv(10) == b""


@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_a_signal_whose_handler_goes_on_changes_nothing(asked: Asked) -> None:
    data, calls = asked.data(), list[int]()
    asked.server.sendall(data[:100_000])
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S / 2)
        while not calls:
            sender = threading.Timer(PATIENCE_S, asked.server.sendall, [data[100_000:]])
            sender.start()
            assert asked.receive() == 0
            sender.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(asked.out, asked.expected())

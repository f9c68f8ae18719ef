"""What a host does with bytes: large arrays in any pieces, and machines that answer with bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from echo_machine import CLUSTER, EchoMachine
from host_thread import HostThread
from wire_peer import WirePeer

from resilient_ps.ids import NOWHERE
from resilient_ps.machine import Event
from resilient_ps.messages import (
    Answer,
    Ask,
    Kind,
    Message,
    Part,
    PartAnswer,
    Request,
    Status,
    Told,
)
from resilient_ps.runtime.connection import LARGE_BYTES, LOW_WATER_BYTES
from resilient_ps.runtime.host import EXIT_BUG
from resilient_ps.wire import encode

SIZES = sorted(
    size + more
    for size in (LARGE_BYTES, LOW_WATER_BYTES, 2 * LOW_WATER_BYTES, 3 << 20)
    for more in (-4, 0, 4, 4096)
)


def push(number: int, nbytes: int) -> bytes:
    values = np.full(nbytes // 4, 0.5, np.float32)
    request = Request(Kind.PUSH, number, (Part(0, NOWHERE, 0, 1, values.size),), values=(values,))
    request.keys = np.ones(1, np.uint64)
    return joined(request)


def joined(message: Message) -> bytes:
    return b"".join(map(bytes, encode(message)))


def acknowledged(number: int) -> Answer:
    return Answer(number, (PartAnswer(0, Status.OK, NOWHERE),))


@pytest.mark.parametrize("pieces", ["whole", "last byte alone", "at random"])
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_arrays_of_any_size_arrive_and_so_does_what_follows(
    transport: str, pieces: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "host.sock")
    with HostThread(EchoMachine(), unix_path=path) as running:
        address = running.listening.address
        where = path if transport == "unix" else (address.host, address.port)
        with WirePeer(where) as peer:
            peer.greet(CLUSTER)
            for number, size in enumerate(SIZES, 1):
                send_in(pieces, peer, push(number, size))
                assert peer.receive() == acknowledged(number)
                assert peer.ask(Ask(number, "small")) == Told(number, "small")
            send_in(pieces, peer, push(98, SIZES[-1]) + push(99, SIZES[0]))
            assert [peer.receive(), peer.receive()] == [acknowledged(98), acknowledged(99)]


def send_in(pieces: str, peer: WirePeer, data: bytes) -> None:
    rng = random.Random(len(data))
    cuts = {
        "whole": [],
        "last byte alone": [len(data) - 1],
        "at random": sorted(rng.randrange(len(data)) for _ in range(7)),
    }[pieces]
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        peer.socket.sendall(data[start:stop])


def test_a_peer_that_leaves_in_the_middle_of_an_array_is_noticed() -> None:
    with HostThread(EchoMachine()) as running:
        with running.peer() as peer:
            peer.greet(CLUSTER)
            peer.socket.sendall(push(1, 3 << 20)[: 1 << 20])
            assert len(running.host._open) == 1
        with running.peer() as other:
            other.greet(CLUSTER)
            while len(running.host._open) > 1:
                assert other.ask(Ask(1, "still here")) == Told(1, "still here")


class Bytes(EchoMachine):
    """Answers pulls with bytes: the request's number, until `until_ns`."""

    def __init__(self, until_ns: int) -> None:
        super().__init__()
        self.until_ns = until_ns
        self.events: list[Event] = []

    def answer_bytes(
        self, peer: str, scratch: memoryview, lo: int, hi: int, limits: tuple[int, int], now_ns: int
    ) -> tuple[list[Any], int] | None:
        frame = bytes(scratch[lo:hi])
        if len(frame) != len(joined(pull(0))) or frame[5] != Kind.PULL:
            return None
        number = int.from_bytes(frame[24:32], "little")
        if number == 13:
            raise RuntimeError("a bug in the machine")
        return [*map(memoryview, halves(joined(acknowledged(1000 + number))))], self.until_ns


def halves(data: bytes) -> tuple[bytes, bytes]:
    return data[:40], data[40:]


def pull(number: int) -> Request:
    return Request(Kind.PULL, number, (Part(0, NOWHERE, 0, 1),), keys=np.ones(1, np.uint64))


def test_what_a_machine_answers_with_bytes_is_sent_in_its_order() -> None:
    with HostThread(Bytes(1 << 62)) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        for number in range(20):
            peer.socket.sendall(joined(pull(number % 9)))
            assert peer.receive() == acknowledged(1000 + number % 9)
            assert peer.ask(Ask(number, "else")) == Told(number, "else")


def test_bytes_do_not_leave_after_their_end() -> None:
    with HostThread(Bytes(1)) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        peer.socket.sendall(joined(pull(1)))
        assert peer.is_closed()


def test_a_bug_while_bytes_are_answered_ends_the_host() -> None:
    with HostThread(Bytes(1 << 62)) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        peer.socket.sendall(joined(pull(13)))
        assert peer.is_closed()
    assert running.code == EXIT_BUG

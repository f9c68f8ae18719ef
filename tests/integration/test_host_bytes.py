"""What a host does with bytes: large arrays in any pieces, and machines that answer with bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from echo_machine import CLUSTER, EchoMachine
from host_thread import HostThread
from wire_peer import WirePeer

from resilient_ps.engine import native
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
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.wire import encode

needs_native = pytest.mark.skipif(native is None, reason="there is no native module here")

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


class Arriving:
    """A push of two tables, each of half of its rows."""

    def __init__(self, machine: Early, request: Request) -> None:
        self.machine, self.request = machine, request
        self.until_ns = machine.until_ns
        self.counts = [part.count for part in request.parts]
        self.arrays = [table.push_arrays for table in machine.tables]

    def end(self, lacks: Sequence[int]) -> list[Any] | None:
        self.machine.ends.append(tuple(lacks))
        if self.request.request == 13:
            raise RuntimeError("a bug in the machine")
        if min(lacks) < 0:
            return None
        return [*map(memoryview, halves(joined(acknowledged(1000 + self.request.request))))]


class Early(EchoMachine):
    """Takes pushes of two parts while they come; of others it is told when they are there."""

    def __init__(self, until_ns: int = 1 << 62) -> None:
        super().__init__()
        self.until_ns = until_ns
        self.tables = [SparseShard(SparseSpec("t", 4, "float32", Sum())) for _ in range(2)]
        for table in self.tables:
            table.push(np.arange(ROWS, dtype=np.uint64), np.zeros((ROWS, 4), np.float32))
        self.ends: list[tuple[int, ...]] = []

    def begin_push(self, peer: str, request: Request, now_ns: int) -> Arriving | None:
        return Arriving(self, request) if len(request.parts) == 2 else None

    def rows(self) -> list[float]:
        keys = np.arange(ROWS, dtype=np.uint64)
        return [float(table.pull(keys).sum()) for table in self.tables]


ROWS = 20_000


def rows_of(number: int, parts: int = 2) -> bytes:
    """A push of ones to the same rows of each part."""
    pieces = tuple(Part(shard, NOWHERE, 0, ROWS, 4 * ROWS) for shard in range(parts))
    request = Request(Kind.PUSH, number, pieces, values=(np.ones(4 * ROWS * parts, np.float32),))
    request.keys = np.tile(np.arange(ROWS, dtype=np.uint64), parts)
    return joined(request)


@needs_native
@pytest.mark.parametrize("pieces", ["whole", "last byte alone", "at random"])
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_pushes_are_made_while_they_come_and_once(
    transport: str, pieces: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What did not come in time the machine is told of when it is there: it acknowledges that."""
    path, machine = str(tmp_path_factory.mktemp("s") / "host.sock"), Early()
    with HostThread(machine, unix_path=path) as running:
        address = running.listening.address
        where = path if transport == "unix" else (address.host, address.port)
        with WirePeer(where) as peer:
            peer.greet(CLUSTER)
            for number in range(1, 6):
                send_in(pieces, peer, rows_of(number))
                answer = peer.receive()
                assert isinstance(answer, Answer)
                whole = min(machine.ends[-1]) == 0
                assert answer.request == (1000 + number if whole else number)
                assert peer.ask(Ask(number, "small")) == Told(number, "small")
            send_in(pieces, peer, rows_of(6, parts=1))
            assert peer.receive() == acknowledged(6)
    assert len(machine.ends) == 5
    made = [sum(ends[i] == 0 for ends in machine.ends) for i in (0, 1)]
    assert machine.rows() == [4 * ROWS * times for times in made]


@needs_native
def test_a_push_that_stops_coming_holds_nobody_up_and_is_told_of_when_it_is_there() -> None:
    machine, data = Early(), rows_of(1)
    cut = len(data) - 100
    with HostThread(machine) as running, running.peer() as peer, running.peer() as other:
        peer.greet(CLUSTER)
        other.greet(CLUSTER)
        peer.socket.sendall(data[:cut])
        while not machine.ends:
            assert other.ask(Ask(1, "still here")) == Told(1, "still here")
        peer.socket.sendall(data[cut : cut + 50])
        assert other.ask(Ask(1, "still here")) == Told(1, "still here")
        assert len(machine.ends) == 1, "it is waited for once"
        peer.socket.sendall(data[cut + 50 :] + rows_of(2))
        first, second = peer.receive(), peer.receive()
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert first.request == 1
    assert second.request in (2, 1002)
    assert machine.ends[0][1] == -1, "the last part was not there"


@needs_native
def test_the_answer_of_an_early_push_does_not_leave_after_its_end() -> None:
    machine = Early(1)
    with HostThread(machine) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        peer.socket.sendall(rows_of(1))
        while not peer.is_closed():  # it was not received in time, and told of as others are
            assert min(machine.ends[-1]) < 0
            peer.socket.sendall(rows_of(1))
    assert min(machine.ends[-1]) == 0


@needs_native
def test_a_bug_while_a_push_comes_ends_the_host() -> None:
    with HostThread(Early()) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        peer.socket.sendall(rows_of(13))
        assert peer.is_closed()
    assert running.code == EXIT_BUG

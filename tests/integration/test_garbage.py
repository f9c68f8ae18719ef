"""A server's port is open to anybody: whatever arrives, it lives on and serves the next."""

from __future__ import annotations

import pickle
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from echo_machine import CLUSTER
from echo_process import EchoProcess
from wire_peer import WirePeer

from resilient_ps.framing import HEAD
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Ask,
    Hello,
    Kind,
    Part,
    Refuse,
    Request,
    Status,
    Told,
    Welcome,
)
from resilient_ps.wire import MAGIC, VERSION, encode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoProcess]:
    with EchoProcess(tmp_path_factory.mktemp("echo")) as process:
        yield process


@pytest.fixture(autouse=True)
def lives_on(server: EchoProcess) -> Iterator[None]:
    """After each test the server still answers a proper client, and has met no bug."""
    yield
    with server.peer() as peer:
        assert isinstance(peer.greet(CLUSTER), Welcome)
        values = np.arange(100_000, dtype=np.float32)
        push = Request(Kind.PUSH, 7, (Part(3, elements=len(values)),), values=(values,))
        answer = peer.ask(push)
        assert isinstance(answer, Answer)
        assert [(part.shard, part.status) for part in answer.parts] == [(3, Status.OK)]
    assert server.process.poll() is None
    assert not [event for event in server.events() if event["level"] == "error"]


def head(kind: int = Kind.PUSH, meta: int = 0, keys: int = 0, size: int = 0) -> bytes:
    return HEAD.pack(MAGIC, VERSION, kind, 1, 0, meta, keys, size, 7)


def refusal_of(peer: WirePeer) -> str:
    """What the server says before it closes the connection."""
    message = peer.receive()
    assert isinstance(message, Refuse)
    assert peer.is_closed()
    return message.why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "not the resilient-ps protocol.*b'GET '"),
        (b"hi\n", "not the resilient-ps protocol"),
        (pickle.dumps({"cmd": "stop"}), "not the resilient-ps protocol"),
        (random.Random(7).randbytes(100), "not the resilient-ps protocol"),
        (random.Random(7).randbytes(3_000_000), "not the resilient-ps protocol"),
        (head(size=2**60), "over the limit"),
        (head(meta=2**32 - 1), "over the limit"),
        (head(size=4), "over the limit"),  # more than a greeting may carry
        (HEAD.pack(MAGIC, 77, 1, 0, 0, 0, 0, 0, 0), "frame version 77"),
    ],
    ids=["http", "text", "pickle", "random", "much", "2^60", "meta", "stranger", "version"],
)
def test_what_is_not_ours_is_told_so_and_closed(server: EchoProcess, data: bytes, why: str) -> None:
    with server.peer() as peer:
        try:
            peer.socket.sendall(data)
        except ConnectionError:
            return  # closed while we were still sending: as good
        assert re.search(why, refusal_of(peer))


def test_garbage_behind_a_greeting_is_refused_too(server: EchoProcess) -> None:
    with server.peer() as peer:
        assert isinstance(peer.greet(CLUSTER), Welcome)
        assert peer.ask(Ask(1, "fine")) == Told(1, "fine")
        peer.socket.sendall(head(size=2**60))
        assert "over the limit" in refusal_of(peer)


def test_another_clusters_client_is_refused_by_name(server: EchoProcess) -> None:
    with server.peer() as peer:
        refusal = peer.greet("production")
        assert refusal == Refuse("this is cluster 'echo', not 'production': check the address")
        assert peer.is_closed()


@pytest.mark.parametrize("greeted", [False, True])
def test_half_a_frame_and_gone(server: EchoProcess, greeted: bool) -> None:
    with server.peer() as peer:
        if greeted:
            peer.greet(CLUSTER)
        data = b"".join(bytes(part) for part in encode(Ask(1, "x" * 1000)))
        peer.socket.sendall(data[: len(data) // 2])


def test_a_reset_in_the_middle_of_a_large_push(server: EchoProcess) -> None:
    with server.peer() as peer:
        peer.greet(CLUSTER)
        peer.socket.sendall(head(meta=4, size=32 << 20) + bytes(1 << 20))
        linger_no_time = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_no_time)


def test_ten_thousand_writes_of_one_byte_are_a_message(server: EchoProcess) -> None:
    with server.peer() as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.greet(CLUSTER)
        text = "x" * 10_000
        for byte in b"".join(bytes(part) for part in encode(Ask(1, text))):
            peer.socket.send(bytes([byte]))
        assert peer.receive() == Told(1, text)


def test_two_hundred_silent_connections_do_not_keep_others_out(server: EchoProcess) -> None:
    silent = [socket.create_connection(server.address) for _ in range(200)]
    with server.peer() as peer:
        assert isinstance(peer.greet(CLUSTER), Welcome)
    for one in silent:
        one.close()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_claims_of_large_frames_take_no_memory(server: EchoProcess) -> None:
    """Forty greeted peers announce 32 MiB each, and send none of it."""
    peers = [server.peer() for _ in range(40)]
    for peer in peers:
        peer.greet(CLUSTER)
    before = resident_bytes(server.process.pid)
    for peer in peers:
        peer.socket.sendall(head(meta=4, size=32 << 20) + bytes(1000))
    with server.peer() as proper:
        proper.greet(CLUSTER)
        assert resident_bytes(server.process.pid) - before < 100 << 20
    for peer in peers:
        peer.socket.close()


def test_who_does_not_greet_in_time_is_closed(tmp_path: Path) -> None:
    with EchoProcess(tmp_path, "--greeting-timeout-s", "0.1") as hasty:
        with hasty.peer() as peer:
            assert "no whole greeting within 0.1 s" in refusal_of(peer)
        with hasty.peer() as dribbler:
            dribbler.socket.sendall(MAGIC)
            assert "no whole greeting" in refusal_of(dribbler)


def test_more_connections_than_the_limit_are_refused(tmp_path: Path) -> None:
    with EchoProcess(tmp_path, "--connections", "2") as small:
        peers = [small.peer(), small.peer()]
        assert all(isinstance(peer.greet(CLUSTER), Welcome) for peer in peers)
        with small.peer() as third:
            assert "2 connections are open: try again later" in refusal_of(third)
        peers[0].send(Ask(1, "exit 3"))
        assert small.wait() == 3
        for peer in peers:
            peer.socket.close()


def test_hello_and_requests_may_come_in_one_piece(server: EchoProcess) -> None:
    with server.peer() as peer:
        push = Request(Kind.PUSH, 1, (Part(0, elements=9),), values=(np.zeros(9),))
        data = [bytes(part) for part in (*encode(Hello(PROTOCOL, CLUSTER, "x")), *encode(push))]
        peer.socket.sendall(b"".join(data))
        assert isinstance(peer.receive(), Welcome)
        assert isinstance(peer.receive(), Answer)

"""Hosts that talk to each other, and messages that must not leave late."""

from __future__ import annotations

import itertools
import json
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from echo_machine import CLUSTER
from echo_process import EchoProcess
from host_thread import Followed, HostThread, Servers
from wire_peer import TIMEOUT_S, WirePeer

from resilient_ps.ids import NOWHERE, Epoch, Position
from resilient_ps.machine import Effect, Event, MessageArrived, PeerLost, Send, Started
from resilient_ps.messages import (
    PROTOCOL,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Ask,
    Command,
    Entry,
    Held,
    Hello,
    Kind,
    Told,
    Welcome,
)
from resilient_ps.runtime.addresses import Address
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.wire import encode

HELLO = Hello(PROTOCOL, CLUSTER, "server a")
EPOCH = Epoch(1, 1)
CHUNK_BYTES = 4 << 20


class ManualClock:
    """Time passes when the test, or the machine's step, says so."""

    def __init__(self) -> None:
        self.now = 1_000

    def now_ns(self) -> int:
        return self.now


# ------------------------------------------------------------------------------ ends of messages


class Leaseholder:
    """Answers until `lease_until`; "slow" asks take so long that the lease is over meanwhile."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.machine = Followed(self._script)

    def _script(self, event: Event) -> list[Effect]:
        match event:
            case MessageArrived(peer, Ask(request, what)):
                until_ns = self.clock.now + 5
                steps = {"slow": 6, "just in time": 5}
                self.clock.now += steps.get(what, 0)
                return [Send(peer, Told(request, what), until_ns)]
        return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_an_answer_leaves_until_its_end_and_not_after_it(clock: ManualClock) -> None:
    machine = Leaseholder(clock).machine
    with HostThread(machine, clock=clock) as running, running.peer() as peer:
        assert peer.ask(Ask(1, "quick")) == Told(1, "quick")
        assert peer.ask(Ask(2, "just in time")) == Told(2, "just in time")
        peer.send(Ask(3, "slow"))
        assert peer.is_closed()
        assert [machine.next_event() for _ in range(4)][3] == PeerLost("client:1")
        with running.peer() as again:
            assert again.ask(Ask(3, "quick")) == Told(3, "quick")


def test_an_answer_that_waits_for_others_of_its_read_does_not_leave_late(
    clock: ManualClock,
) -> None:
    """All messages of one read are answered in one write: the first one's end counts."""

    def script(event: Event) -> list[Effect]:
        match event:
            case MessageArrived(peer, Ask(1)):
                return [Send(peer, Told(1, "in time when it was made"), clock.now + 5)]
            case MessageArrived(peer, Ask(2)):
                clock.now += 6
                return [Send(peer, Told(2, "never too late")), Send(peer, Told(2, "x"), 2**62)]
        return []

    with HostThread(Followed(script), clock=clock) as running, running.peer() as peer:
        data = [bytes(part) for ask in (Ask(1, ""), Ask(2, "")) for part in encode(ask)]
        peer.socket.sendall(b"".join(data))
        assert peer.is_closed()


def test_what_waits_for_a_server_that_is_being_dialled_does_not_leave_late(
    clock: ManualClock,
) -> None:
    def script(event: Event) -> list[Effect]:
        if event != Started():
            return []
        until_ns = clock.now + 5
        clock.now += 6
        return [Send("server:b", Ask(1, "early")), Send("server:b", Ask(2, "late"), until_ns)]

    machine = Followed(script)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        servers = Servers(b=Address(*listener.getsockname()))
        with HostThread(machine, directory=servers, clock=clock):
            accepted, _ = listener.accept()
            accepted.settimeout(TIMEOUT_S)
            assert _all_bytes(accepted) == b""
            assert machine.next_event() == PeerLost("server:b", refused=False)


def test_messages_thrown_away_are_counted_in_one_line_per_second(clock: ManualClock) -> None:
    machine = Leaseholder(clock).machine
    with HostThread(machine, clock=clock) as running:
        for seconds in (0, 0, 0, 2):
            clock.now += seconds * 10**9
            with running.peer() as peer:
                peer.send(Ask(1, "slow"))
                assert peer.is_closed()
    lines = [json.loads(line) for line in running.log.getvalue().splitlines()]
    counts = [line["messages"] for line in lines if "thrown away" in line["event"]]
    assert counts == [1, 3]


def _all_bytes(sock: socket.socket) -> bytes:
    """What arrives until the other side is gone."""
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


# ------------------------------------------------------------------------------------ greetings


def test_each_connection_is_greeted_with_what_holds_by_then() -> None:
    leases = itertools.count(7)
    again: list[Effect] = [Send("server:b", Ask(2, "again"))]
    machine = Followed(lambda event: again)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        servers = Servers(b=Address(*listener.getsockname()))

        def hello() -> Hello:
            return Hello(PROTOCOL, CLUSTER, "server a", "a", 42, next(leases))

        with HostThread(machine, directory=servers, hello=hello):
            for lease in (7, 8, 9):
                peer = WirePeer(listener.accept()[0])
                assert peer.receive() == Hello(PROTOCOL, CLUSTER, "server a", "a", 42, lease)
                assert peer.receive() == Ask(2, "again")
                peer.socket.close()
                assert machine.next_event() == PeerLost("server:b", refused=False)


# -------------------------------------------------------------------------------- bulk, bounds


def append(number: int, size_bytes: int = CHUNK_BYTES) -> Append:
    values = np.full(size_bytes // 4, number, np.float32)
    entry = Entry(Position(EPOCH, number), Command(Kind.PUSH, values=values))
    return Append((AppendPart(0, EPOCH, 1, NOWHERE, 0, (entry,)),))


def flooding(count: int, *, first: bool, back: bool) -> Followed:
    """Sends `count` appends to server "other" at its start (`first`), and to who sends it the first
    one (`back`); acknowledges each that it gets.
    """

    def script(event: Event) -> list[Effect]:
        match event:
            case Started() if first:
                return [Send("server:other", append(lsn)) for lsn in range(1, count + 1)]
            case MessageArrived(peer, Append((part,))):
                (entry,) = part.entries
                lsn = entry.at.lsn
                assert bool((entry.command.values == lsn).all())
                bulk = range(1, count + 1 if back and lsn == 1 else 1)
                held = Appended((AppendedPart(0, EPOCH, 1, Held.HELD, lsn),))
                return [Send(peer, held), *[Send(peer, append(lsn)) for lsn in bulk]]
        return []

    return Followed(script)


def lsns_that_arrive(machine: Followed, appends: int, acknowledgements: int) -> None:
    """Take so many of both from the machine's events; they come in order."""
    arrived: list[int] = []
    held: list[int] = []
    while len(arrived) < appends or len(held) < acknowledgements:
        match machine.next_event():
            case MessageArrived(_, Append((part,))):
                arrived.append(part.entries[0].at.lsn)
            case MessageArrived(_, Appended((part,))):
                held.append(part.lsn)
            case other:
                assert other == MessageArrived("client:1", HELLO)
    assert arrived == list(range(1, appends + 1))
    assert held == list(range(1, acknowledgements + 1))


@pytest.mark.parametrize("connections", [1, 2])
def test_a_hundred_megabytes_each_way_at_once_hold_nobody_up(connections: int) -> None:
    """Through a connection each, or through one, with far less memory than that for what waits."""
    count = 25
    limits = HostLimits(high_water_bytes=1 << 20, low_water_bytes=1 << 18)
    a = flooding(count, first=True, back=False)
    b = flooding(count, first=connections == 2, back=connections == 1)
    others = Servers(), Servers()
    one = HostThread(a, directory=others[0], hello=HELLO, limits=limits)
    two = HostThread(b, directory=others[1], hello=HELLO, limits=limits)
    others[0]["other"], others[1]["other"] = two.listening.address, one.listening.address
    with two, one:
        for machine in (a, b):
            lsns_that_arrive(machine, count, count)


def test_a_server_that_hangs_is_given_up_when_too_much_waits_for_it(tmp_path: Path) -> None:
    appends: list[Effect] = [Send("server:b", append(lsn, 1 << 20)) for lsn in range(1, 33)]
    machine = Followed(lambda event: appends if event == Started() else [])
    with EchoProcess(tmp_path) as server:
        servers = Servers(b=Address(*server.address))
        server.process.send_signal(signal.SIGSTOP)
        limits = HostLimits(server_unsent_bytes=4 << 20)
        with HostThread(machine, directory=servers, limits=limits) as running:
            assert machine.next_event() == PeerLost("server:b", refused=False)
        assert "it does not take what it is sent" in running.log.getvalue()
        server.process.send_signal(signal.SIGCONT)
        with server.peer() as peer:
            assert isinstance(peer.greet(CLUSTER), Welcome)


def test_a_server_that_takes_nothing_for_long_is_given_up(tmp_path: Path) -> None:
    appends: list[Effect] = [Send("server:b", append(lsn)) for lsn in range(1, 5)]
    machine = Followed(lambda event: appends if event == Started() else [])
    with EchoProcess(tmp_path) as server:
        servers = Servers(b=Address(*server.address))
        server.process.send_signal(signal.SIGSTOP)
        limits = HostLimits(server_silence_s=0.3, greeting_timeout_s=100)
        with HostThread(machine, directory=servers, limits=limits):
            assert machine.next_event() == PeerLost("server:b", refused=False)


def test_a_message_larger_than_the_queue_of_a_dial_is_still_delivered() -> None:
    sends: list[Effect] = [Send("server:other", append(1))]
    machine = Followed(lambda event: sends if event == Started() else [])
    other = flooding(0, first=False, back=False)
    with HostThread(other) as running:
        servers = Servers(other=running.listening.address)
        limits = HostLimits(dial_queue_bytes=1000)
        with HostThread(machine, directory=servers, hello=HELLO, limits=limits):
            lsns_that_arrive(machine, 0, 1)

"""The real host: sockets, timers, signals and exits, as a machine and its peers see them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
from pathlib import Path

import pytest
from echo_machine import CLUSTER, EchoMachine
from echo_process import EchoProcess
from host_thread import Followed, HostThread, Servers
from wire_peer import TIMEOUT_S, WirePeer

from resilient_ps.errors import BadInput
from resilient_ps.machine import (
    Drop,
    Effect,
    Event,
    Exit,
    MessageArrived,
    PeerLost,
    Send,
    Started,
)
from resilient_ps.messages import PROTOCOL, Ask, Hello, Kind, Part, Refuse, Request, Told, Welcome
from resilient_ps.runtime.addresses import Address
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.runtime.listening import listen_on

HELLO = Hello(PROTOCOL, CLUSTER, "server a")


# ------------------------------------------------------------------------------- listening


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    taken = listen_on("127.0.0.1:0")
    try:
        with pytest.raises(BadInput, match=rf"{taken.address}: the port is in use; choose another"):
            listen_on(str(taken.address))
    finally:
        taken.close()
    listen_on(str(taken.address)).close()


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("127.0.0.1", "is not HOST:PORT, for example"),
        ("127.0.0.1:port", "the port must be a number"),
        ("127.0.0.1:65536", "the port must be a number from 0 to 65535"),
        ("::1:70", r"write an IPv6 address in brackets, as \[::1\]:7070"),
        ("no-such-host.invalid:0", "host 'no-such-host.invalid' is unknown"),
        ("192.0.2.1:0", "this machine has no such address"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_an_error(listen: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        listen_on(listen)


def test_the_socket_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with EchoProcess(tmp_path, "--unix", path) as first:
        assert first.address
        first.process.kill()
        first.wait()
    assert Path(path).is_socket()
    with EchoProcess(tmp_path, "--unix", path) as second:
        assert second.address
        with WirePeer(path) as peer:
            assert isinstance(peer.greet(CLUSTER), Welcome)


def test_the_socket_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    living = listen_on("127.0.0.1:0", path)
    with pytest.raises(BadInput, match=f"'{path}' belongs to a process that is alive: choose"):
        listen_on("127.0.0.1:0", path)
    socket.socket(socket.AF_UNIX).connect(path)
    living.close()
    assert not Path(path).exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(BadInput, match="exists and is no socket"):
        listen_on("127.0.0.1:0", str(path))
    assert path.read_text() == "data"


def test_a_socket_path_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="choose a shorter --unix"):
        listen_on("127.0.0.1:0", str(tmp_path / ("x" * 108)))
    with pytest.raises(BadInput, match="No such file or directory; choose another --unix"):
        listen_on("127.0.0.1:0", "/no/such/folder/s")


def test_a_successors_socket_file_survives_the_end_of_the_first(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = listen_on("127.0.0.1:0", path)
    os.unlink(path)
    second = listen_on("127.0.0.1:0", path)
    first.close()
    assert Path(path).is_socket()
    second.close()


# ------------------------------------------------------------------------ steps, timers, ends


def test_what_was_sent_before_an_exit_arrives(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with HostThread(EchoMachine(), unix_path=path) as running:
        for peer in (running.peer(), WirePeer(path)):
            peer.greet(CLUSTER)
        assert peer.ask(Ask(1, "exit 3")) == Told(1, "bye")
        assert peer.is_closed()
        running.join()
    assert running.code == 3
    assert not Path(path).exists()


def test_a_bug_in_the_machine_ends_the_host_with_its_traceback() -> None:
    with HostThread(EchoMachine()) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        peer.send(Ask(1, "crash"), Ask(2, "never answered"))
        assert peer.is_closed()
        running.join()
    assert running.code == 70
    lines = [json.loads(line) for line in running.log.getvalue().splitlines()]
    bug, end = [line for line in lines if line["level"] == "error"]
    assert (end["event"], end["code"]) == ("exit", 70)
    assert bug["where"] == "MessageArrived"
    assert "in _on_message" in bug["traceback"]
    assert "a bug in the machine" in bug["error"]


def test_a_machine_sees_nothing_after_its_exit() -> None:
    machine = Followed(lambda event: [] if event == Started() else [Exit(5, "done")])
    with HostThread(machine) as running, running.peer() as peer:
        peer.send(HELLO, HELLO, HELLO)
        running.join()
    assert running.code == 5
    assert machine.rest() == [Started(), MessageArrived("client:1", HELLO)]


def test_a_timer_that_is_set_again_fires_once_at_the_later_time() -> None:
    with HostThread(EchoMachine()) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        assert peer.ask(Ask(1, "timer")) == Told(0, "timer")
        assert peer.ask(Ask(1, "another")) == Told(1, "another")


def test_messages_of_one_peer_are_answered_in_order() -> None:
    with HostThread(EchoMachine()) as running, running.peer() as peer:
        peer.greet(CLUSTER)
        asks = [Ask(i, "x" * (i * 7 % 5000)) for i in range(500)]
        sender = threading.Thread(target=peer.send, args=asks)
        sender.start()
        assert [peer.receive() for _ in asks] == [Told(ask.request, ask.what) for ask in asks]
        sender.join()


# ----------------------------------------------------------------------------------- peers


def test_the_machine_hears_of_a_peer_that_leaves_but_not_of_a_stranger() -> None:
    machine = Followed(lambda event: [])
    with HostThread(machine) as running:
        with running.peer() as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert isinstance(stranger.receive(), Refuse)
            assert stranger.is_closed()
        with running.peer() as peer:
            peer.send(HELLO)
            assert machine.next_event() == MessageArrived("client:2", HELLO)
        assert machine.next_event() == PeerLost("client:2")


def test_a_dropped_peer_gets_the_last_words_and_is_not_reported_lost() -> None:
    def script(event: Event) -> list[Effect]:
        match event:
            case MessageArrived(peer, Hello()):
                return [Send(peer, Refuse("x" * 200_000)), Drop(peer, "no"), Send(peer, HELLO)]
        return []

    machine = Followed(script)
    with HostThread(machine) as running, running.peer() as peer:
        assert isinstance(peer.greet("any"), Refuse)
        assert peer.is_closed()
    assert [type(event).__name__ for event in machine.rest()] == [
        "Started",
        "MessageArrived",
        "StopAsked",
    ]


def dial_at_start(*messages: Ask) -> Followed:
    sends: list[Effect] = [Send("server:b", message) for message in messages]
    return Followed(lambda event: sends if event == Started() else [])


@pytest.mark.parametrize("through", ["tcp", "unix", "stale unix"])
def test_a_server_is_dialled_greeted_and_told_in_order(tmp_path: Path, through: str) -> None:
    path = str(tmp_path / "s")
    asks = [Ask(i, f"question {i}") for i in range(20)]
    dialling = dial_at_start(*asks)
    with HostThread(EchoMachine(), unix_path=path if through == "unix" else None) as other:
        if through == "stale unix":
            socket.socket(socket.AF_UNIX).bind(path)
        tcp = other.listening.address
        servers = Servers(b=Address(tcp.host, 1 if through == "unix" else tcp.port, path))
        with HostThread(dialling, directory=servers, hello=HELLO):
            arrived = [dialling.next_event() for _ in range(21)]
    assert all(isinstance(event, MessageArrived) for event in arrived)
    messages = [event.message for event in arrived if isinstance(event, MessageArrived)]
    assert isinstance(messages[0], Welcome)
    assert messages[1:] == [Told(ask.request, ask.what) for ask in asks]


def test_a_server_that_nobody_is_at_is_lost_as_refused() -> None:
    with socket.socket() as bound:  # so that nobody else gets its port
        bound.bind(("127.0.0.1", 0))
        machine = dial_at_start(Ask(1, "x"))
        servers = Servers(b=Address(*bound.getsockname()))
        with HostThread(machine, directory=servers, hello=HELLO):
            assert machine.next_event() == PeerLost("server:b", refused=True)


def test_a_server_that_closes_is_lost_but_not_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        machine = dial_at_start(Ask(1, "x"))
        servers = Servers(b=Address(*listener.getsockname()))
        with HostThread(machine, directory=servers, hello=HELLO):
            listener.accept()[0].close()
            assert machine.next_event() == PeerLost("server:b", refused=False)


def test_a_server_that_is_not_in_the_directory_is_lost() -> None:
    machine = dial_at_start(Ask(1, "x"))
    with HostThread(machine, directory=Servers()):
        assert machine.next_event() == PeerLost("server:b", refused=False)


def test_what_waits_for_a_server_is_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        machine = dial_at_start(Ask(1, "x" * 60_000), Ask(2, "x" * 60_000))
        servers = Servers(b=Address(*listener.getsockname()))
        with HostThread(machine, directory=servers, limits=HostLimits(dial_queue_bytes=100_000)):
            assert machine.next_event() == PeerLost("server:b", refused=False)


def test_a_lost_server_is_dialled_anew_by_the_next_send() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        again: list[Effect] = [Send("server:b", Ask(2, "again"))]
        machine = Followed(lambda event: again)
        servers = Servers(b=Address(*listener.getsockname()))
        with HostThread(machine, directory=servers):
            for _ in range(3):
                listener.accept()[0].close()
                assert machine.next_event() == PeerLost("server:b", refused=False)


# ---------------------------------------------------------------------------- flow control


def send_all(peer: WirePeer, requests: list[Request]) -> None:
    for request in requests:
        peer.send(request)


def receive_all(peer: WirePeer) -> None:
    while True:
        peer.receive()


def test_who_does_not_take_answers_is_not_read_from_and_the_others_are_served() -> None:
    limits = HostLimits(high_water_bytes=1 << 20, low_water_bytes=1 << 18)
    pull = Request(Kind.PULL, 1, (Part(0),), n=1 << 18, text=b"x" * 100_000)
    with HostThread(EchoMachine(), limits=limits) as running, running.peer() as greedy:
        greedy.greet(CLUSTER)
        greedy.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            send_all(greedy, [pull] * 2000)  # 2 GiB of answers
        with running.peer() as modest:
            modest.greet(CLUSTER)
            assert modest.ask(Ask(1, "served")) == Told(1, "served")


def test_who_leaves_too_much_unsent_is_cut() -> None:
    limits = HostLimits(unsent_bytes=8 << 20)
    pulls = [Request(Kind.PULL, i, (Part(0),), n=1 << 18) for i in range(100)]
    with HostThread(EchoMachine(), limits=limits) as running, running.peer() as greedy:
        greedy.greet(CLUSTER)
        with contextlib.suppress(ConnectionError):  # the cut comes while it asks, or later
            send_all(greedy, pulls)
        wait_for_log(running, "does not take its answers")
        with pytest.raises((EOFError, ConnectionError)):
            receive_all(greedy)


def wait_for_log(running: HostThread, text: str) -> None:
    with running.peer() as other:
        other.greet(CLUSTER)
        while text not in running.log.getvalue():
            assert other.ask(Ask(1, "still here")) == Told(1, "still here")


# --------------------------------------------------------------------------------- signals


def test_sigterm_asks_for_an_orderly_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with EchoProcess(tmp_path, "--unix", str(path)) as server, server.peer() as peer:
        peer.greet(CLUSTER)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert not path.exists()


def test_a_second_sigint_ends_at_once(tmp_path: Path) -> None:
    with EchoProcess(tmp_path, "--stubborn") as server, server.peer() as peer:
        peer.greet(CLUSTER)
        server.process.send_signal(signal.SIGINT)
        while peer.ask(Ask(1, "stops asked")) != Told(1, "1"):
            pass
        server.process.send_signal(signal.SIGTERM)
        assert peer.ask(Ask(1, "still there")) == Told(1, "still there")
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    with EchoProcess(tmp_path, "--stubborn") as server, server.peer() as peer:
        peer.greet(CLUSTER)
        server.process.send_signal(signal.SIGTERM)
        while peer.ask(Ask(1, "stops asked")) != Told(1, "1"):
            pass
        with server.peer() as late:
            assert isinstance(late.greet(CLUSTER), Welcome)  # the host serves until the exit
            assert late.ask(Ask(1, "timer")) == Told(0, "timer")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 143


@pytest.mark.parametrize("seed", range(4))
def test_sigterm_at_a_random_moment_under_load_ends_cleanly(tmp_path: Path, seed: int) -> None:
    with EchoProcess(tmp_path) as server, server.peer() as peer:
        peer.greet(CLUSTER)
        pull = Request(Kind.PULL, 1, (Part(0),), n=100_000)
        for turn in range(200):
            if turn == random.Random(seed).randrange(50):
                server.process.send_signal(signal.SIGTERM)
            try:
                peer.ask(pull)
            except (EOFError, ConnectionError):
                break
        assert server.process.wait(TIMEOUT_S) == 0
        assert not [event for event in server.events() if event["level"] != "info"]

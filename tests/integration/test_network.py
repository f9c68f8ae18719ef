"""The proxy between all parties, on real sockets: each rule does what it says, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from line_peers import (
    PATIENCE_S,
    Dialler,
    Server,
    dialled,
    ended_by,
    eventually,
    is_silent,
    read_exactly,
)

from resilient_ps.chaos.faults.links import Effect, Rule, StoreTrouble, Way
from resilient_ps.chaos.live.network import Network
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.spawn import free_ports

ME = "w0"
MIB = 1 << 20
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """The process of the tests is the party w0."""
    with Network(tmp_path_factory.mktemp("network")) as opened:
        opened.know(ME, os.getpid())
        yield opened


@dataclass
class Line:
    """A line from `client` (w0) to `server`, which listens at `target` as `party`."""

    network: Network
    party: str
    address: str
    target: Server
    client: socket.socket
    server: socket.socket

    def apply(self, what: str, **more: object) -> int:
        """A rule for all lines to the party."""
        return self.network.apply(Rule(what, targets=(self.party,), **more))  # type: ignore[arg-type]

    def held(self, rule: int, pieces: int = 1) -> None:
        eventually(lambda: self.network.effect(rule).pieces >= pieces, "something to be held up")


def exposed(network: Network, target: Server) -> tuple[str, str]:
    """A new party, and its address; returns when it can be dialled."""
    party = f"s{next(NUMBERS)}"
    address = network.open(party, target.address)
    return party, address


@pytest.fixture
def target() -> Iterator[Server]:
    with Server() as opened:
        yield opened


@pytest.fixture
def line(network: Network, target: Server) -> Iterator[Line]:
    party, address = exposed(network, target)
    with dialled(address) as client:
        yield Line(network, party, address, target, client, target.accept())
    network.close_address(address)


# -- without rules


def test_what_is_sent_arrives_whole_in_both_directions(line: Line) -> None:
    data = os.urandom(4 * MIB)
    for one, other in ((line.client, line.server), (line.server, line.client)):
        sender = threading.Thread(target=one.sendall, args=(data,))
        sender.start()
        assert read_exactly(other, len(data)) == data
        sender.join()


def test_an_end_passes_and_the_other_direction_stays_open(line: Line) -> None:
    line.client.sendall(b"last words")
    line.client.shutdown(socket.SHUT_WR)
    assert read_exactly(line.server, 100) == b"last words"
    line.server.sendall(b"and the answer")
    line.server.close()
    assert read_exactly(line.client, 100) == b"and the answer"


def test_a_reset_passes(line: Line) -> None:
    line.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    line.client.close()
    assert ended_by(line.server) == "reset"


def test_who_does_not_read_holds_up_who_sends(line: Line) -> None:
    line.client.settimeout(1.0)
    with pytest.raises(TimeoutError):
        line.client.sendall(bytes(64 * MIB))


# -- dead and living targets


def test_a_dial_is_refused_while_nobody_listens(network: Network) -> None:
    (port,) = free_ports(1)
    address = network.open("nobody", f"127.0.0.1:{port}")
    with pytest.raises(ConnectionRefusedError):
        dialled(address)
    with Server(f"127.0.0.1:{port}") as server:
        eventually(lambda: can_dial(address), "the proxy to listen, too")
        server.accept()
    eventually(lambda: not can_dial(address), "the proxy to listen no more")
    network.close_address(address)


def can_dial(address: str) -> bool:
    try:
        dialled(address).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it ended in the middle
        return False
    return True


def test_who_reads_the_end_of_a_dead_target_is_refused_when_it_dials_again(line: Line) -> None:
    line.target.close()
    assert ended_by(line.client) == "end"
    with pytest.raises(ConnectionRefusedError):
        dialled(line.address)


def test_the_port_of_a_dead_target_is_not_given_to_others(line: Line) -> None:
    line.target.close()
    ended_by(line.client)
    host, _, port = line.address.rpartition(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))


def test_a_paused_target_is_no_dead_one(network: Network) -> None:
    program = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    program += "print(s.getsockname()[1], flush=True); s.accept(); s.accept()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = network.open("paused", f"127.0.0.1:{int(process.stdout.readline())}")
        dialled(address).close()
        process.send_signal(signal.SIGSTOP)
        dialled(address).close()
        process.kill()
    eventually(lambda: not can_dial(address), "dials to be refused when it is dead")
    network.close_address(address)


def test_an_address_that_is_closed_is_nobodys(network: Network, target: Server) -> None:
    _, address = exposed(network, target)
    with dialled(address) as client:
        target.accept()
        network.close_address(address)
        assert ended_by(client) == "reset"
        assert not can_dial(address)
    with pytest.raises(BadInput, match="does not stand at"):
        network.close_address(address)
    assert network.open("again", target.address, port=int(address.rpartition(":")[2])) == address
    with dialled(address):
        target.accept()
    network.close_address(address)


# -- cuts


@pytest.mark.parametrize("way", ["both", "requests", "answers"])
def test_a_cut_holds_up_its_way_and_only_that(line: Line, way: Way) -> None:
    rule = line.apply("drop", way=way)
    line.client.sendall(b"request")
    line.server.sendall(b"answer")
    line.held(rule, 2 if way == "both" else 1)
    if way == "requests":
        assert read_exactly(line.client, 6) == b"answer"
    else:
        assert is_silent(line.client)
    if way == "answers":
        assert read_exactly(line.server, 7) == b"request"
    else:
        assert is_silent(line.server)
    assert line.network.lift(rule) == Effect(1, 2 if way == "both" else 1)
    if way != "requests":
        assert read_exactly(line.client, 6) == b"answer"
    if way != "answers":
        assert read_exactly(line.server, 7) == b"request"


def test_what_waited_at_a_cut_line_comes_whole_and_in_order(line: Line) -> None:
    rule = line.apply("drop")
    line.client.settimeout(0)
    data = bytes(range(256)) * 4096
    sent = 0
    try:
        while sent < 64 * MIB:
            sent += line.client.send(data[sent % 256 :])
    except BlockingIOError:
        pass
    assert sent < 64 * MIB, "a cut line takes only what fits into buffers"
    line.network.lift(rule)
    received = read_exactly(line.server, sent)
    assert received == (bytes(range(256)) * (sent // 256 + 1))[:sent]


def test_the_end_of_a_peer_does_not_pass_a_cut_line(line: Line) -> None:
    rule = line.apply("drop")
    line.server.close()
    line.held(rule)
    assert is_silent(line.client)
    line.network.lift(rule)
    assert ended_by(line.client) == "end"


def test_a_new_connection_over_a_cut_line_comes_about_when_it_is_mended(line: Line) -> None:
    rule = line.apply("drop")
    with dialled(line.address) as late:
        late.sendall(b"hello")
        eventually(lambda: line.network.effect(rule).connections == 2, "the proxy to know of it")
        assert line.target.is_untouched
        line.network.lift(rule)
        assert read_exactly(line.target.accept(), 5) == b"hello"


def test_a_dial_that_was_given_up_comes_to_nothing(line: Line) -> None:
    rule = line.apply("drop")
    with dialled(line.address) as late:
        late.sendall(b"hello")
        eventually(lambda: line.network.effect(rule).connections == 2, "the proxy to know of it")
    line.network.lift(rule)
    with dialled(line.address) as later:
        later.sendall(b"later")
        assert read_exactly(line.target.accept(), 5) == b"later"
    assert line.target.is_untouched


def test_a_rule_for_others_does_nothing(line: Line) -> None:
    rules = [
        line.network.apply(Rule("drop", sources=("w1",))),
        line.network.apply(Rule("drop", targets=("s-other",))),
        line.network.apply(Rule("reset", ("w1",), (line.party,), every_s=0.01)),
        line.network.apply(Rule("refuse", ("w1",), (line.party,))),
        line.network.apply(Rule("lose answer", ("w1",), (line.party,))),
    ]
    for word in (b"one", b"two"):
        line.client.sendall(word)
        assert read_exactly(line.server, 3) == word
        line.server.sendall(word)
        assert read_exactly(line.client, 3) == word
    with dialled(line.address):
        line.target.accept()
    assert [line.network.lift(rule) for rule in rules] == [Effect()] * len(rules)


def test_two_cuts_end_when_both_are_mended(line: Line) -> None:
    one, other = line.apply("drop"), line.network.apply(Rule("drop", sources=(ME,)))
    line.client.sendall(b"hello")
    line.held(one)
    line.network.lift(one)
    assert line.network.effect(other).pieces
    assert is_silent(line.server)
    line.network.lift(other)
    assert read_exactly(line.server, 5) == b"hello"


# -- late and thin lines


def test_a_late_line_is_late_in_order(line: Line) -> None:
    rule = line.apply("delay", delay_s=0.05, jitter_s=0.05)
    began_s = time.monotonic()
    for number in range(20):
        line.client.sendall(b"%02d" % number)
    assert read_exactly(line.server, 2) == b"00"
    assert time.monotonic() - began_s > 0.04
    assert read_exactly(line.server, 38) == b"".join(b"%02d" % n for n in range(1, 20))
    assert line.network.lift(rule).pieces >= 1
    line.client.sendall(b"x")
    assert read_exactly(line.server, 1) == b"x"


def test_a_lifted_delay_delays_nothing_that_waits(line: Line) -> None:
    rule = line.apply("delay", delay_s=3600.0)
    line.client.sendall(b"hello")
    line.held(rule)
    assert is_silent(line.server)
    line.network.lift(rule)
    assert read_exactly(line.server, 5) == b"hello"


def test_lost_packets_are_sent_again_later(line: Line) -> None:
    never = line.apply("loss", share=0.0, delay_s=3600.0)
    line.client.sendall(b"one")
    assert read_exactly(line.server, 3) == b"one"
    assert line.network.lift(never) == Effect(1, 0)
    always = line.apply("loss", share=1.0, delay_s=0.1)
    began_s = time.monotonic()
    line.client.sendall(b"two")
    assert read_exactly(line.server, 3) == b"two"
    assert time.monotonic() - began_s > 0.09  # timers of a loop count whole milliseconds
    assert line.network.lift(always) == Effect(1, 1)


def test_a_thin_line_is_thin_for_all_connections_together(line: Line) -> None:
    with dialled(line.address) as another:
        other_end = line.target.accept()
        rule = line.apply("bandwidth", bytes_per_s=400_000)
        began_s = time.monotonic()
        line.client.sendall(bytes(50_000))
        another.sendall(bytes(50_000))
        assert len(read_exactly(line.server, 50_000) + read_exactly(other_end, 50_000)) == 100_000
        assert time.monotonic() - began_s > 0.19
        assert line.network.lift(rule).pieces >= 2


def test_a_line_that_is_thick_again_lets_what_waits_pass(line: Line) -> None:
    rule = line.apply("bandwidth", bytes_per_s=10)
    line.client.sendall(b"x" * 10_000)
    line.held(rule)
    line.network.lift(rule)
    assert read_exactly(line.server, 10_000) == b"x" * 10_000


# -- broken lines


def test_connections_are_reset_at_both_ends(line: Line) -> None:
    assert line.network.lift(line.apply("reset")) == Effect(1, 1)
    assert ended_by(line.client) == "reset"
    assert ended_by(line.server) == "reset"
    with dialled(line.address) as again:  # new ones stand
        again.sendall(b"x")
        assert read_exactly(line.target.accept(), 1) == b"x"


def test_connections_are_reset_again_and_again(line: Line) -> None:
    rule = line.apply("reset", every_s=0.02)
    for _ in range(3):
        with dialled(line.address) as again:
            assert ended_by(again) == "reset"
    assert line.network.lift(rule).pieces >= 4


def test_a_line_that_refuses_looks_like_a_dead_target(line: Line) -> None:
    rule = line.apply("refuse")
    assert ended_by(line.client) == "reset"
    assert not can_dial(line.address)
    line.network.lift(rule)
    eventually(lambda: can_dial(line.address), "dials to be taken again")


def test_who_alone_is_refused_reads_a_reset(line: Line) -> None:
    rule = line.network.apply(Rule("refuse", (ME,), (line.party,)))
    assert ended_by(line.client) == "reset"
    with contextlib.suppress(ConnectionResetError), dialled(line.address) as again:
        assert ended_by(again) == "reset"  # if it has come so far
    assert line.network.lift(rule).pieces == 2


# -- exactly one answer


def asked(line: Line, word: bytes) -> None:
    line.client.sendall(word)
    assert read_exactly(line.server, len(word)) == word
    line.server.sendall(word)
    assert read_exactly(line.client, len(word)) == word


def test_exactly_one_answer_is_lost_and_its_request_was_carried_out(line: Line) -> None:
    with dialled(line.address) as another:
        other_end = line.target.accept()
        asked(line, b"before")
        rule = line.apply("lose answer")
        line.client.sendall(b"x" * 300_000)
        assert len(read_exactly(line.server, 300_000)) == 300_000
        line.server.sendall(b"done")
        assert ended_by(line.client) == "reset"
        line.server.sendall(b"and more that nobody hears")
        assert ended_by(line.server) == "end"
        assert line.network.effect(rule) == Effect(2, 1)
        two = Line(line.network, line.party, line.address, line.target, another, other_end)
        for word in (b"one", b"two"):
            asked(two, word)
        assert line.network.lift(rule) == Effect(2, 1)


def test_the_answer_that_is_lost_is_not_that_of_an_earlier_request(line: Line) -> None:
    asked(line, b"before")
    line.client.sendall(b"early")
    assert read_exactly(line.server, 5) == b"early"
    rule = line.apply("lose answer")
    line.server.sendall(b"early")
    assert read_exactly(line.client, 5) == b"early"
    assert line.network.effect(rule).pieces == 0
    line.client.sendall(b"next")
    assert read_exactly(line.server, 4) == b"next"
    line.server.sendall(b"lost")
    assert ended_by(line.client) == "reset"
    assert line.network.lift(rule).pieces == 1


def test_when_the_victim_ends_first_another_answer_is_lost(line: Line) -> None:
    asked(line, b"before")
    with dialled(line.address) as another:
        two = Line(
            line.network, line.party, line.address, line.target, another, line.target.accept()
        )
        asked(two, b"before")
        rule = line.apply("lose answer")
        line.client.sendall(b"victim")
        read_exactly(line.server, 6)
        line.client.close()
        line.server.close()
        another.sendall(b"next")
        read_exactly(two.server, 4)
        two.server.sendall(b"lost")
        assert ended_by(another) == "reset"
        assert line.network.lift(rule).pieces == 1


# -- who dialled


@pytest.mark.parametrize("through_child", [False, True], ids=["itself", "its child"])
def test_who_dialled_is_known_by_its_process(
    network: Network, target: Server, through_child: bool
) -> None:
    party, address = exposed(network, target)
    cut = Rule("drop", ("w7",), (party,))
    with Dialler() as other, Dialler(through_child=through_child) as dialler:
        network.know("w7", dialler.pid)
        rule = network.apply(cut)
        dialler.begin(address)
        eventually(lambda: network.effect(rule).connections == 1, "its connection to be struck")
        other.begin(address)
        end = target.accept()
        end.sendall(b"other")
        assert other.heard() == "other"
        assert target.is_untouched
        network.lift(rule)
        target.accept().sendall(b"mended")
        assert dialler.heard() == "mended"
    network.close_address(address)


def test_a_process_that_dialled_before_it_was_known_is_found_later(
    network: Network, target: Server
) -> None:
    party, address = exposed(network, target)
    with Dialler() as dialler:
        network.know(ME, 0)  # else it were a child of w0
        dialler.begin(address)
        end = target.accept()
        assert read_exactly(end, 2) == b"me"
        rule = network.apply(Rule("drop", ("w8",), (party,)))
        assert network.effect(rule) == Effect()
        network.know("w8", dialler.pid)
        assert network.effect(rule).connections == 1
        end.sendall(b"late")
        eventually(lambda: network.effect(rule).pieces == 1, "the answer to be held up")
        network.lift(rule)
        assert dialler.heard() == "late"
    network.know(ME, os.getpid())
    network.close_address(address)


# -- the process


def test_many_connections_are_carried_at_once(network: Network, target: Server) -> None:
    _, address = exposed(network, target)
    clients = [dialled(address) for _ in range(200)]
    ends = [target.accept() for _ in clients]
    for number, client in enumerate(clients):
        client.sendall(b"%03d" % number)
    assert sorted(read_exactly(end, 3) for end in ends) == [b"%03d" % n for n in range(200)]
    network.close_address(address)
    assert {ended_by(client) for client in clients} == {"reset"}
    for client in clients:
        client.close()


def test_wrong_orders_are_told(network: Network, target: Server) -> None:
    with pytest.raises(BadInput, match="1 byte per second"):
        network.apply(Rule("bandwidth"))
    with pytest.raises(BadInput, match="no store behind the proxy"):
        network.trouble_store(StoreTrouble())
    with pytest.raises(BadInput, match="cannot stand for s1"):
        network.open("s1", target.address, port=int(target.address.rpartition(":")[2]))
    assert network.lift(123_456) == Effect()


def test_a_stopped_network_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Server
) -> None:
    folder, temporary = tmp_path / "logs", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with Network(folder) as network, dialled(network.open("s1", target.address)) as client:
        pid = network.pid
        network.stop()
        assert ended_by(client) == "reset"
    assert not Path(f"/proc/{pid}").exists()
    assert [path.name for path in tmp_path.rglob("*")] in (
        ["logs", "tmp", "network.log"],
        ["tmp", "logs", "network.log"],
    )
    assert (folder / "network.log").read_text() == ""
    with pytest.raises(Unavailable, match="is stopped"):
        network.apply(Rule("drop"))


def test_the_proxy_dies_with_the_harness(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; "
        "from resilient_ps.chaos.live.network import Network; "
        "network = Network(Path(sys.argv[1])); print(network.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        proxy = os.pidfd_open(int(harness.stdout.readline()))
        harness.kill()
    readable, _, _ = select.select([proxy], [], [], PATIENCE_S)
    os.close(proxy)
    assert readable, "it has ended"


def test_a_dead_proxy_is_told_and_not_waited_for(tmp_path: Path) -> None:
    with Network(tmp_path) as network:
        os.kill(network.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="proxy is gone"):
            network.apply(Rule("drop"))
        with pytest.raises(Unavailable, match="is stopped"):
            network.apply(Rule("drop"))

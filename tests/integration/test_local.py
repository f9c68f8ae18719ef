"""A cluster on this machine comes up whole, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from echo_machine import CLUSTER
from echo_process import PROGRAM
from wire_peer import TIMEOUT_S, WirePeer

from resilient_ps.errors import BadInput, NotFound, Unavailable
from resilient_ps.messages import Ask, Told, Welcome
from resilient_ps.runtime.local import LocalCluster

ECHO = (sys.executable, str(PROGRAM))


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All temporary folders of a test, also of its child processes, are made in here.

    Its path is short, so that there are Unix sockets in it.
    """
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def echo_cluster(servers: int, *flags: str) -> LocalCluster:
    return LocalCluster(servers, prefer="embedded", flags=flags, program=ECHO)


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie of somebody else's has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    """Wait for the ends of processes that are not our own children."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with open(descriptor, "rb"):
            poll = select.poll()
            poll.register(descriptor)
            assert poll.poll(TIMEOUT_S * 1000), f"process {pid} lives on"


def test_servers_come_up_serve_and_leave_nothing(temporary: Path) -> None:
    with echo_cluster(2) as cluster:
        pids = [server.pid for server in cluster.servers]
        assert [server.name for server in cluster.servers] == ["s1", "s2"]
        for server in cluster.servers:
            for address in ((server.address.host, server.address.port), server.address.unix_path):
                with WirePeer(address) as peer:
                    assert isinstance(peer.greet(CLUSTER), Welcome)
        assert cluster.coordination.kind == "embedded"
    assert not any(map(is_running, pids))
    assert list(temporary.iterdir()) == []
    cluster.stop()


COMPILES = """
import os, select, signal, sys, tempfile
compiling = os.path.join(tempfile.gettempdir(), "compiling")
os.close(os.open(compiling, os.O_CREAT | os.O_EXCL))
select.select([], [], [], 0.5)
os.unlink(compiling)
print("ready", sys.argv[sys.argv.index("--name") + 1], "127.0.0.1:1", flush=True)
signal.pause()
"""


def test_the_first_server_compiles_before_the_second_starts() -> None:
    program = (sys.executable, "-c", COMPILES)  # fails while another of its kind compiles
    with LocalCluster(2, prefer="embedded", program=program) as cluster:
        assert all(server.is_alive() for server in cluster.servers)


def test_a_server_can_be_killed_paused_resumed_and_restarted() -> None:
    with echo_cluster(2) as cluster:
        cluster.kill("s1")
        assert not cluster.server("s1").is_alive()
        with pytest.raises(BadInput, match="server s2 is running: kill or stop it first"):
            cluster.restart("s2")
        with pytest.raises(NotFound, match="no server 's3' in this cluster; there are s1, s2"):
            cluster.kill("s3")
        cluster.restart("s1")
        with WirePeer(cluster.server("s1").address.unix_path) as peer:
            assert isinstance(peer.greet(CLUSTER), Welcome)
            cluster.pause("s1")
            peer.send(Ask(1, "x"))
            cluster.resume("s1")
            assert peer.receive() == Told(1, "x")
        assert cluster.stop_server("s2") == 0
        cluster.restart("s2")
        cluster.pause("s1")  # and stopped while it is paused


def test_a_server_that_ends_unasked_is_dead_and_one_that_was_killed_is_not() -> None:
    with echo_cluster(3) as cluster:
        cluster.kill("s1")
        cluster.stop_server("s2")
        assert cluster.dead() == []
        with WirePeer(cluster.server("s3").address.unix_path) as peer:
            peer.greet(CLUSTER)
            peer.ask(Ask(1, "exit 3"))
        assert cluster.server("s3").wait(TIMEOUT_S) == 3
        assert [server.name for server in cluster.dead()] == ["s3"]


def test_a_server_that_does_not_end_is_killed_at_the_deadline() -> None:
    with echo_cluster(1, "--stubborn") as cluster:
        assert cluster.stop_server("s1", deadline_s=0.2) == -signal.SIGKILL


def test_a_server_that_dies_at_start_is_an_error_with_the_end_of_its_log(temporary: Path) -> None:
    with pytest.raises(Unavailable, match=r"(?s)server s1 ended with exit code 2.*no-such-flag"):
        echo_cluster(1, "--no-such-flag").start()
    assert list(temporary.iterdir()) == []


def test_an_exception_leaves_nothing(temporary: Path) -> None:
    pids: list[int] = []

    def fail_in_a_cluster() -> None:
        with echo_cluster(1) as cluster:
            pids.extend(server.pid for server in cluster.servers)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_cluster()
    assert not any(map(is_running, pids))
    assert list(temporary.iterdir()) == []


SCRIPT = """
import sys, threading
from resilient_ps.runtime.local import LocalCluster
cluster = LocalCluster(1, prefer="embedded", program=sys.argv[1:])
cluster.start()
print(*[server.pid for server in cluster.servers], flush=True)
{then}
"""


def start_script(then: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    script = SCRIPT.format(then=then)
    process = subprocess.Popen([sys.executable, "-c", script, *ECHO], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 1
    return process, pids


@pytest.mark.parametrize(
    ("then", "number", "code"),
    [
        ("sys.exit(3)", None, 3),
        ("threading.Event().wait()", signal.SIGINT, -signal.SIGINT),
    ],
    ids=["exit", "ctrl-c"],
)
def test_the_end_of_the_process_leaves_nothing(
    temporary: Path, then: str, number: int | None, code: int
) -> None:
    process, pids = start_script(then)
    with process:
        if number is not None:
            process.send_signal(number)
        assert process.wait(TIMEOUT_S) == code
    assert not any(map(is_running, pids))
    assert list(temporary.iterdir()) == []


def test_when_the_process_is_killed_the_servers_die_too() -> None:
    process, pids = start_script("threading.Event().wait()")
    with process:
        process.kill()
        wait_until_gone(pids)


@pytest.mark.parametrize("servers", [0, 65])
def test_a_cluster_of_an_impossible_size_is_an_error(servers: int) -> None:
    with pytest.raises(BadInput, match=f"a local cluster of {servers} servers: use 1 to 64"):
        LocalCluster(servers)


@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "why"),
    [
        (0, 1, "--replicas 0: use 1 to 16"),
        (17, 1, "--replicas 17: use 1 to 16"),
        (2, 0, "--min-in-sync 0 with --replicas 2: use 1 to 2"),
        (2, 3, "--min-in-sync 3 with --replicas 2: use 1 to 2"),
        (3, 3, "--min-in-sync 3 with --servers 2: use at most 2, or more servers"),
    ],
)
def test_a_replication_that_cannot_be_is_an_error(
    replicas: int, min_in_sync: int, why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        LocalCluster(2, replicas=replicas, min_in_sync=min_in_sync)

"""The coordination processes: they start, tell what is wrong, and never outlive their parent."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kv_stores import NO_ETCD, PATIENCE_S, Recorder, eventually

from resilient_ps.coordinator.kv import put
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import (
    MemberAt,
    find_etcd,
    start_coordination,
    start_embedded,
    start_etcd,
)
from resilient_ps.errors import BadInput, NotFound, Unavailable
from resilient_ps.runtime.spawn import ReservedPorts

EMBEDDED = [sys.executable, "-m", "resilient_ps.coordinator.runtime.embedded"]

# Starts a store, prints the numbers of its processes, and waits to be killed; the store is started
# from a thread that ends, which must not end the store.
PARENT = """
import sys, threading
from resilient_ps.coordinator.runtime.processes import start_coordination
made = []
thread = threading.Thread(target=lambda: made.append(start_coordination(sys.argv[1])))
thread.start()
thread.join()
print(*made[0].pids, made[0].folder, made[0].endpoints[0], flush=True)
sys.stdin.readline()
"""

FORGETFUL = """
from resilient_ps.coordinator.kv import put
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.coordinator.runtime.processes import start_embedded
process = start_embedded()
for kv in (EtcdKv(process.endpoints), MemoryClient(MemoryKv())):
    kv.watch(b"", 0, lambda change: None)
    put(kv, b"k", b"")
print("end")
"""

needs_etcd = pytest.mark.skipif(find_etcd() is None, reason=NO_ETCD)
KINDS = ["embedded", pytest.param("etcd", marks=needs_etcd)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_started_store_answers_and_leaves_nothing_behind(kind: str) -> None:
    process = start_coordination(kind)  # type: ignore[arg-type]
    assert process.kind == kind
    with closing(EtcdKv(process.endpoints)) as kv:
        put(kv, b"k", b"v")
        process.pause(0)  # it must be possible to stop what hangs
    assert process.folder.exists()
    process.stop()
    process.stop()
    assert not process.folder.exists()
    assert not any(is_alive(pid) for pid in process.pids)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("embedded", signal.SIGKILL),
        pytest.param("etcd", signal.SIGKILL, marks=needs_etcd),
        pytest.param("etcd", signal.SIGINT, marks=needs_etcd),
    ],
)
def test_a_store_dies_with_its_parent_however_that_dies(kind: str, number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    *pids, folder, endpoint = parent.stdout.readline().decode().split()
    with closing(EtcdKv(endpoint)) as kv:
        put(kv, b"k", b"the thread that started the store has ended, the store lives")
    parent.send_signal(number)
    parent.communicate(timeout=PATIENCE_S)
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids), "the end of the store")
    if number == signal.SIGINT:  # an orderly end also removes the folder
        assert not Path(folder).exists()
    subprocess.run(["rm", "-rf", folder], check=True)


@needs_etcd
def test_data_in_a_named_folder_stays(tmp_path: Path) -> None:
    with start_etcd(folder=tmp_path / "etcd") as process, closing(EtcdKv(process.endpoints)) as kv:
        put(kv, b"k", b"v")
    with start_etcd(folder=tmp_path / "etcd") as process, closing(EtcdKv(process.endpoints)) as kv:
        assert kv.read(b"k").items[0].value == b"v"
    with pytest.raises(BadInput, match="empty folder"):
        start_etcd(folder=tmp_path / "etcd", members=3)


@needs_etcd
def test_a_member_listens_where_it_is_told_and_is_reached_elsewhere(tmp_path: Path) -> None:
    with closing(ReservedPorts()) as ports:
        clients, peers, public, public_peers = (f"127.0.0.1:{ports.take()}" for _ in range(4))
        log = tmp_path / "own.log"
        place = MemberAt("e0", log, clients, peers, public, public_peers)
        with start_etcd(places=[place]) as etcd:
            assert etcd.endpoints == (clients,)
            etcd.kill(0)
            etcd.restart(0)  # its port has remained its own
        told = log.read_text()
    assert f"http://{public}" in told
    assert f"http://{public_peers}" in told


def test_a_missing_etcd_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotFound, match="apt-get install etcd-server"):
        start_etcd()
    with start_coordination() as process:
        assert process.kind == "embedded"


@needs_etcd
def test_an_etcd_that_cannot_start_is_quoted() -> None:
    with pytest.raises(Unavailable, match="no-such-flag"):
        start_etcd(options=("--no-such-flag",))
    with pytest.raises(BadInput, match="members"):
        start_etcd(members=0)


def test_a_used_port_is_a_clear_error() -> None:
    with start_embedded() as process:
        second = subprocess.run(
            [*EMBEDDED, "--listen", process.endpoints[0]], capture_output=True, text=True
        )
    assert second.returncode == 3
    assert f"cannot listen on {process.endpoints[0]}" in second.stderr
    assert "in use" in second.stderr
    assert second.stdout == ""


def test_a_client_that_nobody_closed_does_not_keep_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "Traceback" not in done.stderr


def test_garbage_on_the_port_does_no_harm() -> None:
    with start_embedded() as process, closing(EtcdKv(process.endpoints)) as kv:
        host, port = process.endpoints[0].split(":")
        for garbage in (b"\x80\x04\x95pickle", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 999):
            with socket.create_connection((host, int(port))) as wire, suppress(OSError):
                wire.sendall(garbage)
                wire.shutdown(socket.SHUT_WR)
                while wire.recv(65_536):
                    pass
        put(kv, b"k", b"alive")
        assert kv.read(b"k").items[0].value == b"alive"


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_wrong_address_is_a_clear_error(address: str) -> None:
    done = subprocess.run([*EMBEDDED, "--listen", address], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"address '{address}' is not of the form host:port" in done.stderr
    with pytest.raises(BadInput, match="host:port"):
        EtcdKv(address)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_process_says_what_it_is_and_ends_on_a_signal(number: int) -> None:
    process = subprocess.Popen(
        [*EMBEDDED, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert select.select([process.stdout], [], [], PATIENCE_S)[0]
    words = process.stdout.readline().decode().split()
    assert words[:2] == ["listening", "on"]
    with closing(EtcdKv(words[2])) as kv:
        seen = Recorder()
        kv.watch(b"", 0, seen)
        put(kv, b"k", b"")
        seen.wait_for_key("put", b"k")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert b"state in memory only" in errors
    assert b"Traceback" not in errors


@pytest.mark.skipif(not find_etcd(), reason=NO_ETCD)
def test_etcdctl_talks_to_the_embedded_process() -> None:
    with start_embedded() as process:

        def etcdctl(*arguments: str) -> str:
            command = ["etcdctl", "--endpoints", process.endpoints[0], *arguments]
            environment = {**os.environ, "ETCDCTL_API": "3"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            return done.stdout + done.stderr

        assert etcdctl("put", "k", "v") == "OK\n"
        assert etcdctl("get", "--prefix", "") == "k\nv\n"
        assert "granted with TTL(10s)" in etcdctl("lease", "grant", "10")
        assert "is healthy" in etcdctl("endpoint", "health")
        assert etcdctl("del", "k") == "1\n"
        assert etcdctl("compaction", "3") == "compacted revision 3\n"
        assert "does not offer it" in etcdctl("get", "k", "--rev", "2")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"

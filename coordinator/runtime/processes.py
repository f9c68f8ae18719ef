"""Coordination processes for local clusters and tests: real etcd, or the embedded one.

They listen on free loopback ports, keep their data in a folder of their own that `stop` removes,
and never outlive the process that started them, however it dies.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput, NotFound, RetryLater, Unavailable
from resilient_ps.runtime.spawn import free_ports, spawn

MAX_MEMBERS = 9
READY_DEADLINE_S = 20.0
STOP_DEADLINE_S = 5.0
_START_TRIES = 3
_LOG_TAIL_BYTES = 800
_POLL_S = 0.02
_EMBEDDED = "resilient_ps.coordinator.runtime.embedded"

Prefer: TypeAlias = Literal["auto", "etcd", "embedded"]


class _Running:
    """What all handles share: endpoints, the folder, and stopping exactly once."""

    def __init__(self, folder: Path | None) -> None:
        self._owns_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="resilient-ps-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.endpoints: tuple[str, ...] = ()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the processes, and removes the folder if it is our own. May be repeated."""
        atexit.unregister(self.stop)
        self._end()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _end(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class MemberAt:
    """Where a member is to be: HOST:PORT where it listens for clients and for its peers, and under
    which addresses they reach it. `log`: its file."""

    name: str
    log: Path
    clients: str
    peers: str
    public_clients: str
    public_peers: str

    def command(self, binary: str, folder: Path, cluster: str) -> list[str]:
        """`folder` has a folder for each member's data; `cluster` names all members' peers."""
        words = [binary, "--name", self.name, "--data-dir", str(folder / self.name)]
        words += ["--listen-client-urls", f"http://{self.clients}"]
        words += ["--advertise-client-urls", f"http://{self.public_clients}"]
        words += ["--listen-peer-urls", f"http://{self.peers}"]
        words += ["--initial-advertise-peer-urls", f"http://{self.public_peers}"]
        return [*words, "--initial-cluster", cluster]


@dataclass(slots=True)
class _Member:
    name: str
    endpoint: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes]


class EtcdProcess(_Running):
    """Real etcd with one or more members, numbered from 0; see `start_etcd`."""

    kind: Literal["etcd"] = "etcd"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self._members: list[_Member] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(one.process.pid for one in self._members)

    def kill(self, member: int) -> None:
        """SIGKILL, and waits for the end."""
        self._members[member].process.kill()
        self._members[member].process.wait()

    def pause(self, member: int) -> None:
        """SIGSTOP: the member hangs, its connections stay open."""
        self._members[member].process.send_signal(signal.SIGSTOP)

    def resume(self, member: int) -> None:
        self._members[member].process.send_signal(signal.SIGCONT)

    def restart(self, member: int) -> None:
        """Starts a killed member again on its data, and waits until it answers."""
        one = self._members[member]
        if one.process.poll() is None:
            raise BadInput(f"etcd member {member} is running: kill it first")
        self.launch(member)
        self.wait_ready(member)

    def process(self, member: int) -> subprocess.Popen[bytes]:
        """The member's present process."""
        return self._members[member].process

    def launch(
        self, member: int, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a member that is not running on its data, and waits for nothing."""
        one = self._members[member]
        one.process = spawn(one.command, one.log, environment=environment)
        return one.process

    def leader(self) -> int:
        """The number of the leading member. `Unavailable` while there is none."""
        for number, one in enumerate(self._members):
            kv = EtcdKv(one.endpoint)
            with contextlib.closing(kv), contextlib.suppress(RetryLater):
                if kv.leads(deadline_s=0.5):
                    return number
        raise Unavailable(f"etcd at {','.join(self.endpoints)} has no leader: wait for one")

    def wait_ready(
        self, member: int | None = None, *, deadline_s: float = READY_DEADLINE_S
    ) -> None:
        """Returns when the member, or else each of them, answers a linearizable read."""
        until_s = time.monotonic() + deadline_s
        for one in self._members if member is None else [self._members[member]]:
            _wait_until_it_answers(one.endpoint, one.process, one.log, until_s)

    def start(self, binary: str, places: Sequence[MemberAt], options: list[str]) -> None:
        """Called by `start_etcd`."""
        cluster = ",".join(f"{each.name}=http://{each.public_peers}" for each in places)
        for each in places:
            command = [*each.command(binary, self.folder, cluster), *options]
            process = spawn(command, each.log)
            self._members.append(_Member(each.name, each.clients, command, each.log, process))
        self.endpoints = tuple(each.clients for each in places)

    def forget(self) -> None:
        """After a failed start: ends the processes so that `start` can be called again."""
        self._end()
        for one in self._members:
            shutil.rmtree(self.folder / one.name, ignore_errors=True)
        self._members.clear()

    def _end(self) -> None:
        _end_all([one.process for one in self._members], in_order=not self._owns_folder)


class EmbeddedProcess(_Running):
    """The embedded single-node coordination process; its state is gone when it ends."""

    kind: Literal["embedded"] = "embedded"

    def __init__(self) -> None:
        super().__init__(None)
        log = self.folder / "embedded.log"
        command = [sys.executable, "-m", _EMBEDDED, "--listen", "127.0.0.1:0"]
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._processes.append(spawn(command, log, stdout=subprocess.PIPE))
            self.endpoints = (_read_address(self._processes[0], log),)
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def kill(self, member: int = 0) -> None:
        """SIGKILL, and waits for the end. `member` is there for likeness with `EtcdProcess`."""
        self._processes[member].kill()
        self._processes[member].wait()

    def pause(self, member: int = 0) -> None:
        self._processes[member].send_signal(signal.SIGSTOP)

    def resume(self, member: int = 0) -> None:
        self._processes[member].send_signal(signal.SIGCONT)

    def _end(self) -> None:
        _end_all(self._processes, in_order=True)
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()


Coordination: TypeAlias = EtcdProcess | EmbeddedProcess


def find_etcd() -> str | None:
    """The path of the etcd binary, or None."""
    found = shutil.which("etcd")
    return os.path.abspath(found) if found else None


def start_etcd(
    *,
    members: int = 1,
    folder: Path | None = None,
    heartbeat_ms: int = 100,
    election_ms: int = 1000,
    pre_vote: bool = True,
    options: tuple[str, ...] = (),
    places: Sequence[MemberAt] = (),
) -> EtcdProcess:
    """Starts a cluster on loopback ports and waits until each member answers.

    The data goes to `folder` and stays there, or to a temporary one that `stop` removes. `options`
    are further arguments of etcd. `places`: of the members, instead of `members` on free ports.
    `NotFound` when etcd is not installed.
    """
    members = len(places) or members
    binary = find_etcd()
    if binary is None:
        raise NotFound(
            "no `etcd` on the PATH: install it (on Debian: apt-get install etcd-server), or use "
            "the embedded coordination process"
        )
    if not 1 <= members <= MAX_MEMBERS:
        raise BadInput(f"etcd with {members} members: use 1 to {MAX_MEMBERS}")
    if members > 1 and folder is not None and (folder / "m0").exists():
        raise BadInput(f"{folder} holds data of a cluster on other ports: use an empty folder")
    arguments = ["--heartbeat-interval", str(heartbeat_ms), "--election-timeout", str(election_ms)]
    arguments += [f"--pre-vote={'true' if pre_vote else 'false'}", *options]
    handle = EtcdProcess(folder)
    try:
        # A folder with data is never tried twice, because a failed start is wiped.
        for tries_left in reversed(range(1 if folder or places else _START_TRIES)):
            handle.start(binary, places or _free_places(members, handle.folder), arguments)
            try:
                handle.wait_ready()
                break
            except Unavailable as error:
                # Another process can take a port between our choice and etcd's start.
                if not tries_left or "address already in use" not in str(error):
                    raise
                handle.forget()
    except BaseException:
        handle.stop()
        raise
    return handle


def _free_places(members: int, folder: Path) -> list[MemberAt]:
    ports = free_ports(2 * members)
    places = []
    for number, (port, peer_port) in enumerate(zip(ports[:members], ports[members:], strict=True)):
        clients, peers = f"127.0.0.1:{port}", f"127.0.0.1:{peer_port}"
        name = f"m{number}"
        places.append(MemberAt(name, folder / f"{name}.log", clients, peers, clients, peers))
    return places


def start_embedded() -> EmbeddedProcess:
    """Starts the embedded process on a free loopback port and waits until it listens."""
    return EmbeddedProcess()


def start_coordination(prefer: Prefer = "auto") -> Coordination:
    """Real etcd (one member) where it is installed, else the embedded process; or as preferred.
    The handle's `kind` says which it is, `endpoints` where."""
    if prefer == "embedded" or (prefer == "auto" and find_etcd() is None):
        return start_embedded()
    return start_etcd()


def _read_address(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_DEADLINE_S)
    words = process.stdout.readline().decode().split() if readable else []
    if words[:2] != ["listening", "on"]:
        raise Unavailable(f"the embedded coordination process did not start: {_tail(log)}")
    return words[2]


def _wait_until_it_answers(
    endpoint: str, process: subprocess.Popen[bytes], log: Path, until_s: float
) -> None:
    kv = EtcdKv(endpoint)
    with contextlib.closing(kv):
        while True:
            if process.poll() is not None:
                raise Unavailable(
                    f"etcd at {endpoint} ended with exit code {process.returncode}: {_tail(log)}"
                )
            if time.monotonic() > until_s:
                raise Unavailable(f"etcd at {endpoint} does not answer: {_tail(log)}")
            try:
                kv.read(b"ready", deadline_s=0.5)
            except RetryLater:
                time.sleep(_POLL_S)
                continue
            except BadInput:
                pass  # it wants a user: that is an answer, too
            return


def _end_all(processes: list[subprocess.Popen[bytes]], *, in_order: bool) -> None:
    """SIGTERM when the end should be orderly; SIGKILL otherwise, or when it takes too long."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if in_order else signal.SIGKILL)
            process.send_signal(signal.SIGCONT)
    for process in processes:
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        text = ""
    return f"the end of its log says: {text}" if text else "its log is empty"

"""Faults on what one server has: room for files, its interpreter lock, its event loop.

*No room for files.* A server writes its log, to a folder when that is its store, and to temporary
files. A running process can be kept from writing any of them by its limit on the size of files
(`RLIMIT_FSIZE`): no rights are needed for that, no other process feels it, and it is lifted
at once. The kernel answers EFBIG where a full file system answers ENOSPC; a SIGXFSZ comes with it,
which Python ignores, and without which nothing is done here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.orders import Order, What
from resilient_ps.chaos.live.running import Running
from resilient_ps.chaos.live.scene import Party, Scene, Skipped
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.errors import DeadlineExceeded, ResilientPsError

GARBAGE = b"nothing that a server understands\n" * 4
DIAL_S = 1.0


def running_server(scene: Scene, name: str) -> Party:
    """The party, as long as it runs. Raises `Skipped`."""
    party = scene.party(name)
    if party.state != "running":
        raise Skipped(f"{name} is {party.state}")
    return party


def record_of(scene: Scene, name: str) -> ServerRecord:
    """What etcd says of a live server. Raises `Skipped`."""
    for record in scene.records.look().servers:
        if record.server == name:
            return record
    raise Skipped(f"{name} has no lease at the moment")


def speak_to(scene: Scene, name: str) -> bool:
    """Say something to a server that it refuses, which it writes to its log. Did it hear that?"""
    try:
        record = record_of(scene, name)
        with socket.create_connection((record.host, record.port), DIAL_S) as line:
            line.settimeout(DIAL_S)
            line.sendall(GARBAGE)
            return bool(line.recv(1))  # it says why
    except (OSError, Skipped, ResilientPsError):
        return False


@dataclass
class DiskFull:
    """A server can write no byte to any file.

    Nothing else strikes it meanwhile: what it could not write down would go with it.
    """

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _claimed: str = ""
    _process: Running | None = None
    _before: tuple[int, int] = (0, 0)
    _size: int = -1  # of its log, since when it could not grow
    _told: str = ""

    def inject(self) -> None:
        self.scene.claims.claim(self.planned.target[0])
        self._claimed = self.planned.target[0]
        party = running_server(self.scene, self._claimed)
        process = Running.look(party.pid)
        if process is None:
            raise Skipped(f"{party.name} is over")
        if not _ignores(process.pid, signal.SIGXFSZ):
            raise Skipped(f"{party.name} would be ended by a limit on its files, not only refused")
        before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        if before[0] == 0:
            raise Skipped(f"{party.name} cannot write files already")
        self.struck = (party.name,)
        self._process, self._before = process, before
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
        self._size = _size(party.log)
        speak_to(self.scene, party.name)

    def heal(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._told = self._seen(process)
            with contextlib.suppress(ProcessLookupError):
                if process.is_there:
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, self._before)
        name, self._claimed = self._claimed, ""
        if name:
            self.scene.claims.release(name)

    def evidence(self) -> str:
        return self._told

    def _seen(self, process: Running) -> str:
        name = self.struck[0]
        if not process.is_there:
            return f"{name} could write to no file until it ended"
        if resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] != 0:
            return ""
        heard = speak_to(self.scene, name)
        if _size(self.scene.party(name).log) != self._size:
            return ""
        return f"no file of {name} could grow; its log did not" + (
            ", though it had something to say" if heard else ""
        )


@dataclass
class Held:
    """A server holds its interpreter lock, or its event loop is blocked; then it goes on by itself.

    It cannot be told to stop that: healing waits until it is over.
    """

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _claimed: str = ""
    _order: Order | None = None
    _begun_s: float = 0.0
    _told: str = ""

    def inject(self) -> None:
        name = self.planned.target[0]
        self.scene.claims.claim(name)
        self._claimed = name
        running_server(self.scene, name)
        self.struck = (name,)
        self._begun_s = time.monotonic()
        what: What = "gil" if self.planned.kind == "gil" else "loop"
        self._order = self.scene.order(name, what, self.planned.lasts_s)

    def heal(self) -> None:
        order, self._order = self._order, None
        if order is not None:
            with order, contextlib.suppress(DeadlineExceeded):
                order.wait()
                took_s = time.monotonic() - self._begun_s
                self._told = f"{self._claimed} says that it has hung; it was over in {took_s:.2f} s"
        if self._claimed:
            self.scene.claims.release(self._claimed)
            self._claimed = ""

    def evidence(self) -> str:
        return self._told


def _ignores(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return -1


FAULTS = {"disk-full": DiskFull, "gil": Held, "loop": Held}

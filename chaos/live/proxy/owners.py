"""Who dialled: the party whose process, or a process that it started, has the other end open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator

from resilient_ps.chaos.live.proxy.sockets import Endpoint, SocketTable

HARNESS = "harness"


class Owners:
    """Of connections to this process. Thread-safe."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._table = SocketTable()
        self._lock = threading.Lock()

    def own(self, party: str, pid: int) -> None:
        """The party is this process now."""
        self._pids = {**self._pids, party: pid}

    def inode(self, dialler: Endpoint, own: Endpoint) -> int:
        """Names the dialling socket; 0: it is gone."""
        with self._lock:
            return self._table.inode(dialler, own)

    def find(self, inodes: Iterable[int]) -> dict[int, str]:
        """By inode of a socket, the party that has it; without those that no party has."""
        wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
        found: dict[int, str] = {}
        own = {pid: party for party, pid in self._pids.items()}
        for pid, party in _with_descendants(own):
            found |= {wanted[name]: party for name in _open_files(pid) if name in wanted}
            if len(found) == len(wanted):
                break
        return found

    def close(self) -> None:
        with self._lock:
            self._table.close()


def _with_descendants(parties: dict[int, str]) -> Iterator[tuple[int, str]]:
    """The processes of the parties first: mostly it is one of them. The harness has started all
    of them; what it started else is nobody's."""
    yield from parties.items()
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    waiting = [(pid, party) for pid, party in parties.items() if party != HARNESS]
    while waiting:
        pid, party = waiting.pop()
        for child in children.get(pid, ()):
            if child not in parties:
                yield child, party
                waiting.append((child, party))


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program may hold anything, also brackets.
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")

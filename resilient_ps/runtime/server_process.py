"""One server process on this machine: started, watched for its ready line, killed, paused, ended.

The process dies with this one, however this one dies. Its log goes to a file.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.addresses import Address, parse_address
from resilient_ps.runtime.spawn import spawn

READY_DEADLINE_S = 120.0  # the first server on a machine compiles its kernels
LOG_TAIL_BYTES = 2000
MAX_LINE_BYTES = 4096


class ServerProcess:
    """`command` prints `ready <name> <host:port>` on standard output once it serves."""

    def __init__(self, name: str, command: Sequence[str], log: Path, unix_path: str = "") -> None:
        self.name = name
        self.log = log
        self.is_asked_to_end = False
        self._command = list(command)
        self._unix_path = unix_path
        self._process = spawn(self._command, log, stdout=subprocess.PIPE)
        self._address: Address | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> Address:
        """Where it listens; known after `wait_ready`."""
        if self._address is None:
            raise BadInput(f"server {self.name} is not ready yet: call wait_ready first")
        return self._address

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return when it serves. `Unavailable`, with the end of its log, if it does not."""
        if self._address is None:
            tcp = read_ready(self._process, self.name, self.log, deadline_s)
            self._address = Address(tcp.host, tcp.port, self._unix_path)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.is_asked_to_end = True
        self._process.kill()
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it hangs, its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """SIGTERM; a paused process is resumed to take it."""
        self.is_asked_to_end = True
        if self.is_alive():
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)

    def wait(self, deadline_s: float | None = None) -> int:
        """Its exit code (negative: the signal). Kills it at the deadline."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def log_tail(self) -> str:
        """The end of its log."""
        return tail_of(self.log)


def read_ready(
    process: subprocess.Popen[bytes], name: str, log: Path, deadline_s: float
) -> Address:
    """Return when the server serves, as its first line says: where it listens.

    `Unavailable`, with the end of its log, if it does not.
    """
    line = _first_line(process, time.monotonic() + deadline_s)
    words = line.split()
    if len(words) == 3 and words[:2] == ["ready", name]:
        return parse_address(words[2])
    what = f"said {line!r}" if line else "did not become ready"
    if _ended_soon(process):
        what = f"ended with exit code {process.returncode}"
    raise Unavailable(f"server {name} {what}. The end of {log}:\n{tail_of(log)}")


def tail_of(log: Path) -> str:
    """The end of a log; "" where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _first_line(process: subprocess.Popen[bytes], until_s: float) -> str:
    """What it prints first; as far as it got, if it ends or the time is over."""
    assert process.stdout is not None
    descriptor, data = process.stdout.fileno(), b""
    while b"\n" not in data and len(data) < MAX_LINE_BYTES:
        left_s = max(until_s - time.monotonic(), 0)
        if not select.select([descriptor], [], [], left_s)[0]:
            break
        piece = os.read(descriptor, MAX_LINE_BYTES)
        if not piece:
            break
        data += piece
    return data.partition(b"\n")[0].decode(errors="replace")


def _ended_soon(process: subprocess.Popen[bytes]) -> bool:
    """Whether it is ending: its output may close a moment before."""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        return False
    return True

"""Two ends for lines: a server that keeps what it hears, and processes that dial."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

PATIENCE_S = 20.0
DIALS = """
import socket, sys
for line in sys.stdin:
    host, _, port = line.strip().rpartition(":")
    with socket.create_connection((host, int(port)), 20) as sock:
        try:
            sock.sendall(b"me")
            print(sock.recv(100).decode() or "ended", flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
"""
STARTS_ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def eventually(holds: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(min(count - len(data), 1 << 20))
        if not more:
            break
        data += more
    return data


def is_silent(sock: socket.socket) -> bool:
    """Nothing has come."""
    sock.settimeout(0)
    try:
        return not sock.recv(1, socket.MSG_PEEK) and False
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)


def ended_by(sock: socket.socket) -> str:
    """`end` or `reset`; waits for it."""
    try:
        while sock.recv(65_536):
            pass
    except ConnectionResetError:
        return "reset"
    return "end"


class Server:
    """Listens at `address`. `accept` gives the next connection that came."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        host, _, port = address.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._came: queue.Queue[socket.socket] = queue.Queue()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def accept(self) -> socket.socket:
        return self._came.get(timeout=PATIENCE_S)

    @property
    def is_untouched(self) -> bool:
        """No connection has come that was not accepted."""
        return self._came.empty()

    def echo(self) -> None:
        """To one more connection, in a thread."""
        threading.Thread(target=_echo, args=(self.accept,), daemon=True).start()

    def close(self) -> None:
        """As a process that dies: first it listens no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            one.settimeout(PATIENCE_S)
            self._open.append(one)
            self._came.put(one)


def _echo(accept: Callable[[], socket.socket]) -> None:
    with contextlib.suppress(OSError, queue.Empty):
        sock = accept()
        while data := sock.recv(1 << 20):
            sock.sendall(data)
        sock.close()


class Dialler:
    """A process that dials, or one whose child does; says `me`, and tells what it heard."""

    def __init__(self, *, through_child: bool = False) -> None:
        program = ["-c", STARTS_ANOTHER, DIALS] if through_child else ["-c", DIALS]
        self._process = subprocess.Popen(
            [sys.executable, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def begin(self, address: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{address}\n")
        self._process.stdin.flush()

    def heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # that ends it, and its child
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

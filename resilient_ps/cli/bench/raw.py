"""The raw limits: plain blocking sockets between two processes, and memcpy.

Run as a module it is the other process: it listens on a TCP port and a Unix socket, and takes
orders of 16 bytes: `sink` (receive so many bytes, then answer one) or `echo` (send them back).
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from resilient_ps.errors import Unavailable
from resilient_ps.runtime.spawn import spawn

ORDER = struct.Struct("<QQ")
SINK, ECHO = 1, 2
CHUNK_BYTES = 1 << 20
ORDER_BYTES_MAX = 1 << 32
START_DEADLINE_S = 20.0


class RawPeer:
    """The other process, and connections to it. Use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "raw.sock")
        command = [sys.executable, "-m", "resilient_ps.cli.bench.raw", self._path]
        self._process = spawn(command, folder / "raw.log", stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_DEADLINE_S)[0]:
            raise Unavailable("the process for the raw measurements did not start")
        self._port = int(self._process.stdout.readline())
        self._socks = {"tcp": self._dial_tcp(), "unix": self._dial_unix()}
        self._chunk = np.ones(CHUNK_BYTES, np.uint8).data

    def _dial_tcp(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _dial_unix(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(self._path)
        return sock

    def one_way_bytes_per_s(self, transport: str, total: int = 64 << 20) -> float:
        """Rate of a stream of 1 MiB writes, acknowledged once at its end."""
        sock = self._socks[transport]
        start = time.perf_counter()
        sock.sendall(ORDER.pack(SINK, total))
        for _ in range(total // CHUNK_BYTES):
            sock.sendall(self._chunk)
        _receive(sock, memoryview(bytearray(1)))
        return total / (time.perf_counter() - start)

    def round_trip_s(self, transport: str, size: int = 100, times: int = 200) -> float:
        """Mean round trip of `size` bytes."""
        sock = self._socks[transport]
        payload, answer = bytes(size), memoryview(bytearray(size))
        order = ORDER.pack(ECHO, size) + payload
        start = time.perf_counter()
        for _ in range(times):
            sock.sendall(order)
            _receive(sock, answer)
        return (time.perf_counter() - start) / times

    def close(self) -> None:
        """End the other process."""
        for sock in self._socks.values():
            sock.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memcpy_bytes_per_s(size: int = 256 << 20) -> float:
    """Rate of copying a large array into another one that exists already."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    start = time.perf_counter()
    np.copyto(target, source)
    return size / (time.perf_counter() - start)


def _receive(sock: socket.socket, view: memoryview) -> bool:
    while view.nbytes:
        count = sock.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def _serve(sock: socket.socket) -> None:
    order = memoryview(bytearray(ORDER.size))
    sink = memoryview(bytearray(CHUNK_BYTES))
    while _receive(sock, order):
        kind, size = ORDER.unpack(order)
        if size > ORDER_BYTES_MAX:
            return
        if kind == ECHO:
            if not _receive(sock, sink[:size]):
                return
            sock.sendall(sink[:size])
            continue
        while size:
            count = sock.recv_into(sink[: min(size, CHUNK_BYTES)])
            if not count:
                return
            size -= count
        sock.sendall(b"k")


def main() -> None:
    """The other process: serves whichever of its two connections has something to say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("unix_path")
    path = parser.parse_args().unix_path
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(path)
    unix.listen()
    print(tcp.getsockname()[1], flush=True)
    first, _ = tcp.accept()
    first.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    second, _ = unix.accept()
    threads = [threading.Thread(target=_serve, args=(sock,)) for sock in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

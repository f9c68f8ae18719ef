"""A server as tests need it: the usual command in a process that can be told to hang.

    python hurt_server.py FOLDER OPTIONS server-options...

OPTIONS is JSON: by server name, further options. The server takes orders at `FOLDER/<name>.orders`,
a Unix socket: `gil SECONDS` holds the interpreter lock, so that no Python of the process runs;
`loop SECONDS` blocks the event loop only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

PROGRAM = Path(__file__)
PATIENCE_S = 20.0
_LOOP_ORDERS: list[tuple[float, threading.Event]] = []


def orders_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.orders"


class Order:
    """Given when it is made; `wait` returns when it has been carried out."""

    def __init__(self, folder: Path, name: str, what: str, seconds: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / f"{name}.{time.monotonic_ns()}"))
        self._socket.settimeout(seconds + PATIENCE_S)
        self._socket.sendto(f"{what} {seconds}".encode(), str(orders_of(folder, name)))

    def wait(self) -> None:
        with self._socket:
            assert self._socket.recv(100) == b"done"


def _obey(orders: socket.socket) -> None:
    libc = ctypes.PyDLL(None)  # does not give the lock away while it is called
    while True:
        order, sender = orders.recvfrom(100)
        what, seconds = order.decode().split()
        if what == "gil":
            libc.usleep(int(float(seconds) * 1e6))
        else:
            done = threading.Event()
            _LOOP_ORDERS.append((float(seconds), done))
            os.kill(os.getpid(), signal.SIGUSR1)
            done.wait()
        orders.sendto(b"done", sender)


def _block_the_loop(number: int, frame: object) -> None:
    seconds, done = _LOOP_ORDERS.pop()
    time.sleep(seconds)
    done.set()


def main() -> None:
    folder, options, *arguments = sys.argv[1:]
    name = arguments[arguments.index("--name") + 1]
    orders_of(Path(folder), name).unlink(missing_ok=True)
    orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    orders.bind(str(orders_of(Path(folder), name)))
    signal.signal(signal.SIGUSR1, _block_the_loop)
    threading.Thread(target=_obey, args=(orders,), daemon=True).start()
    sys.argv[1:] = ["server", *arguments, *json.loads(options).get(name, [])]
    from resilient_ps.cli.main import main as command

    command()


if __name__ == "__main__":
    main()

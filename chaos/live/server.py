"""A server that can be told to hang: the usual command, and a thread that takes orders.

    python -m resilient_ps.chaos.live.server FOLDER server-options...

The server takes orders at `FOLDER/<name>.orders`, a Unix socket (see `orders`): `gil SECONDS` holds
the interpreter lock, so that no Python of the process runs; `loop SECONDS` blocks the event loop
only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import SupportsIndex

from resilient_ps.chaos.live.audit import install_if_asked
from resilient_ps.chaos.live.orders import BEGUN, DONE, ORDER_BYTES_MAX, orders_of

LONGER_THAN_ANY_ORDER_S = 3600.0
_LOOP_ORDERS: list[tuple[float, threading.Event, Callable[[bytes], None]]] = []


def server_program(folder: Path) -> tuple[str, ...]:
    """What is run in place of the usual server command; orders go through sockets in `folder`."""
    return (sys.executable, "-m", "resilient_ps.chaos.live.server", str(folder))


def _obey(orders: socket.socket) -> None:
    while True:
        order, sender = orders.recvfrom(ORDER_BYTES_MAX)
        what, seconds = order.decode().split()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as answers:
            with contextlib.suppress(OSError):
                answers.connect(sender)
            tell = partial(_tell, answers)
            if what == "gil":
                _hold_the_lock(float(seconds), answers.fileno())
            else:
                done = threading.Event()
                _LOOP_ORDERS.append((float(seconds), done, tell))
                os.kill(os.getpid(), signal.SIGUSR1)
                done.wait()
            tell(DONE)


def _tell(answers: socket.socket, text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answers.send(text)


def _hold_the_lock(seconds: float, answers: int) -> None:
    libc = ctypes.PyDLL(None)  # does not give the lock away while it is called
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(LONGER_THAN_ANY_ORDER_S)  # nor is it taken away between two calls
    time.sleep(0.0)  # who waits already does it by the old interval
    libc.send(answers, BEGUN, len(BEGUN), 0)
    libc.usleep(int(seconds * 1e6))
    sys.setswitchinterval(interval_s)


def _block_the_loop(number: int, frame: object) -> None:
    seconds, done, tell = _LOOP_ORDERS.pop()
    tell(BEGUN)
    time.sleep(seconds)
    done.set()


def _sleep(seconds: float | SupportsIndex) -> None:
    """libfaketime 0.9 gets sleeps until a moment of the monotonic clock wrong, as Python's are."""
    select.select([], [], [], float(seconds))


def main(folder: str, *options: str) -> None:
    """The process itself."""
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        time.sleep = _sleep
    name = options[options.index("--name") + 1]
    install_if_asked(name)
    path = orders_of(Path(folder), name)
    path.unlink(missing_ok=True)  # of a killed one
    orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    orders.bind(str(path))
    signal.signal(signal.SIGUSR1, _block_the_loop)
    threading.Thread(target=_obey, args=(orders,), daemon=True).start()
    sys.argv[1:] = ["server", *options]
    from resilient_ps.cli.main import main as command

    command()


if __name__ == "__main__":
    main(*sys.argv[1:])

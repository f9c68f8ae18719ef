"""A host's way to one server: dial when there is something to say, queue meanwhile.

One dial per call for help: whether and when to try again is the machine's decision, which it takes
when `PeerLost` tells it that this attempt failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from resilient_ps.machine import Peer, PeerLost, Send
from resilient_ps.messages import Hello
from resilient_ps.runtime.addresses import Address
from resilient_ps.runtime.connection import Connection
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.wire import encode

Failed = Callable[["Outbound", PeerLost, str], None]
"""Told (which, the event, why) when a dial came to nothing."""


class Outbound:
    """What waits for one server until the connection to it stands."""

    def __init__(self, peer: Peer, limits: HostLimits) -> None:
        self.peer = peer
        self._limits = limits
        self._queue: deque[Send] = deque()
        self._queued_bytes = 0
        self._dialling: asyncio.Task[None] | None = None

    def dial(self, address: Address, connect: Callable[[], Connection], failed: Failed) -> None:
        """Begin. `connect` makes the connection's protocol."""
        self._dialling = asyncio.get_running_loop().create_task(
            self._dial(address, connect, failed)
        )

    def enqueue(self, send: Send) -> bool:
        """Keep a message; False when the queue is full (the dial is then to be given up)."""
        self._queued_bytes += sum(map(len, encode(send.message)))
        if self._queue and self._queued_bytes > self._limits.dial_queue_bytes:
            return False
        self._queue.append(send)
        return True

    def send_all(self, connection: Connection, hello: Hello | None) -> None:
        """The connection stands: say what has waited, in order."""
        if hello is not None:
            connection.send(hello)
        while self._queue:
            send = self._queue.popleft()
            connection.send(send.message, send.until_ns)
        connection.flush()

    def cancel(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()

    async def _dial(
        self, address: Address, connect: Callable[[], Connection], failed: Failed
    ) -> None:
        refused, why = False, ""
        try:
            async with asyncio.timeout(self._limits.dial_timeout_s):
                await _connect(address, connect)
        except ConnectionRefusedError as error:
            refused, why = True, str(error)
        except TimeoutError:
            why = f"no connection within {self._limits.dial_timeout_s:g} s"
        except (OSError, UnicodeError) as error:
            why = str(error)
        if why:
            failed(self, PeerLost(self.peer, refused=refused), why)


async def _connect(address: Address, connect: Callable[[], Connection]) -> None:
    """Through the Unix socket when it is there and answers, else by TCP."""
    loop = asyncio.get_running_loop()
    if address.unix_path and Path(address.unix_path).is_socket():
        try:
            await loop.create_unix_connection(connect, address.unix_path)
        except OSError:
            pass  # left over: TCP decides
        else:
            return
    await loop.create_connection(connect, address.host, address.port)

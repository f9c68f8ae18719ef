"""A plain blocking peer for tests: a socket and a frame reader, nothing of the product's client."""

from __future__ import annotations

import socket
from typing import Any

from resilient_ps.messages import PROTOCOL, Hello, Message
from resilient_ps.wire import FrameReader, encode

TIMEOUT_S = 60.0
"""No test waits for this long; it only turns a hang into a failure."""


class WirePeer:
    """Speaks the protocol over `where`: ("127.0.0.1", port), the path of a Unix socket, or a socket
    that is connected.
    """

    def __init__(self, where: tuple[str, int] | str | socket.socket) -> None:
        if isinstance(where, socket.socket):
            self.socket = where
        else:
            family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
            self.socket = socket.socket(family, socket.SOCK_STREAM)
            self.socket.connect(where)
        self.socket.settimeout(TIMEOUT_S)
        self.reader = FrameReader()
        self._waiting: list[Message] = []

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()

    def send(self, *messages: Message) -> None:
        for message in messages:
            for buffer in encode(message):
                self.socket.sendall(buffer)

    def receive(self) -> Message:
        """The next message. Raises `EOFError` when the other side has closed."""
        while not self._waiting:
            count = self.socket.recv_into(self.reader.get_buffer())
            if not count:
                raise EOFError
            self._waiting += self.reader.received(count)
        return self._waiting.pop(0)

    def ask(self, message: Message) -> Message:
        self.send(message)
        return self.receive()

    def greet(self, cluster: str) -> Message:
        return self.ask(Hello(PROTOCOL, cluster, "a test"))

    def is_closed(self) -> bool:
        """Wait until the other side closes; True when it did so without another word."""
        try:
            self.receive()
        except (EOFError, ConnectionError):
            return True
        return False

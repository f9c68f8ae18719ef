"""A TCP proxy that loses answers, or everything, without closing a connection; or cuts them all."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536


class LossyProxy:
    """In front of `target` (host:port). What is lost on a connection does not come later."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._losing_answers = threading.Event()
        self._losing_requests = threading.Event()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> None:
        """Requests pass; what the target says does not."""
        self._losing_answers.set()

    def lose_everything(self) -> None:
        """As a cut cable: connections stand, and new ones come about, but nothing passes."""
        self._losing_answers.set()
        self._losing_requests.set()

    def heal(self) -> None:
        """End all connections; new ones lose nothing."""
        self._losing_answers.clear()
        self._losing_requests.clear()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            doomed, self._open = self._open, []
        for one in doomed:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

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
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            self._forward(client, server, self._losing_requests)
            self._forward(server, client, self._losing_answers)

    def _forward(self, source: socket.socket, sink: socket.socket, losing: threading.Event) -> None:
        threading.Thread(target=_pump, args=(source, sink, losing), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, losing: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            if not losing.is_set():
                sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

"""A TCP proxy in front of a store: it can swallow answers, cut connections, change its target."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK_BYTES = 65_536


class AnswerProxy:
    """Forwards everything, until `mute`: then requests still pass and answers are swallowed.
    `cut` ends all connections, and nothing more of their answers passes; later connections are
    forwarded normally again."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.request_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._muted = threading.Event()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._start(self._accept)

    def mute(self) -> None:
        self._muted.set()

    def cut(self) -> None:
        with self._lock:
            doomed, self._open = self._open, []
            self._muted = threading.Event()  # the old connections keep theirs, which stays set
        for one in doomed:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

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
                muted = self._muted
            self._start(self._forward, client, server, None)
            self._start(self._forward, server, client, muted)

    def _forward(
        self, source: socket.socket, sink: socket.socket, swallow: threading.Event | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if swallow is None:
                    self.request_bytes += len(data)
                if swallow is None or not swallow.is_set():
                    sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

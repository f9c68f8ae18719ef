"""An HTTP proxy in front of an S3 server, that does to it what networks and bad days do.

It passes everything on, until told otherwise: see `Fault`, and the attributes of `StoreProxy`.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

BLOCK_BYTES = 65_536
SMALL_BUFFER_BYTES = 65_536
PATIENCE_S = 60.0
CONDITIONS = ("if-match", "if-none-match")
_HOP = ("connection", "expect", "transfer-encoding", "keep-alive", "content-length")

Kind = Literal["lose answer", "status", "truncate", "corrupt upload", "corrupt answer", "hang"]


@dataclass
class Fault:
    """What happens to the next `times` requests of `method` whose path or query has `part` in it.

    lose answer: the server carries it out, and the connection ends. status: `status` is answered,
    with `code`, and the server hears of nothing. truncate: half of the answer's body, then the end.
    corrupt: one bit of the body is flipped. hang: no answer until the proxy is closed.
    """

    kind: Kind
    method: str = ""
    part: str = ""
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    happened: threading.Event = field(default_factory=threading.Event)

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and self.part in path


class StoreProxy:
    """`endpoint` stands for the server's.

    `bytes_per_s`: how fast bodies pass, all together, in both directions (0: unhindered).
    `is_down`: connections end without an answer. `ignores_conditions`: If-Match and If-None-Match
    are taken out of puts; for that, and only then, requests are signed anew with the `credentials`.
    `hides_s`: what was put that recently is in no listing. `requests`: (method, path with query).
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: tuple[str, str] = ("", ""),
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.target = target
        self.credentials = credentials
        self.bytes_per_s = 0
        self.is_down = False
        self.ignores_conditions = False
        self.hides_s = 0.0
        self.requests: list[tuple[str, str]] = []
        self.put_at_s: dict[str, float] = {}
        self.closed = threading.Event()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._free_at_s = 0.0  # when what has passed may have passed
        self._server = _Server(self)
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05), daemon=True
        )
        self._thread.start()

    def plan(self, kind: Kind, **more: Any) -> Fault:
        """Something that is to happen; the fault tells when it has."""
        fault = Fault(kind, **more)
        with self._lock:
            self._faults.append(fault)
        return fault

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self._faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None

    def pace(self, nbytes: int) -> None:
        """Return when so many further bytes may have passed."""
        if not self.bytes_per_s:
            return
        with self._lock:
            begin_s = max(self._free_at_s, time.monotonic())
            self._free_at_s = begin_s + nbytes / self.bytes_per_s
            wait_s = self._free_at_s - time.monotonic()
        self.closed.wait(max(wait_s, 0.0))

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> StoreProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: StoreProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what we are here for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        if self.server.proxy.bytes_per_s:  # else the kernel's buffers hide the slowness
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.upstream: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self.upstream is not None:
            self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_any(self) -> None:
        proxy = self.server.proxy
        fault = proxy.take_fault(self.command, self.path)
        kind = fault.kind if fault is not None else ""
        if proxy.is_down:
            self.close_connection = True
            return
        body = self._receive()
        try:
            self._carry_out(kind, fault, body)
        finally:
            if fault is not None:
                fault.happened.set()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815

    def _carry_out(self, kind: str, fault: Fault | None, body: bytes) -> None:
        proxy = self.server.proxy
        if kind == "status":
            assert fault is not None
            self._refuse(fault.status, fault.code)
            return
        if kind == "hang":
            proxy.closed.wait(PATIENCE_S)
            self.close_connection = True
            return
        if kind == "corrupt upload":
            body = flipped(body)
        answer, content = self._ask(body)
        if self.command in ("PUT", "POST") and answer.status == 200:
            proxy.put_at_s[unquote(urlsplit(self.path).path)] = time.monotonic()
        if kind == "lose answer":
            self.close_connection = True
            return
        if kind == "corrupt answer":
            content = flipped(content)
        if proxy.hides_s and self.command == "GET" and "list-type=2" in self.path:
            content = self._without_newest(content)
        self._answer(answer, content, is_truncated=kind == "truncate")

    def _receive(self) -> bytes:
        left = int(self.headers.get("Content-Length") or 0)
        blocks = []
        while left:
            block = self.rfile.read(min(left, BLOCK_BYTES))
            if not block:
                raise ConnectionError("the client went away")
            self.server.proxy.pace(len(block))
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        if self.server.proxy.ignores_conditions:
            headers = self._signed_anew(headers, body)
        for last in (False, True):
            if self.upstream is None:
                host = urlsplit(self.server.proxy.target).netloc
                self.upstream = http.client.HTTPConnection(host, timeout=PATIENCE_S)
            try:
                self.upstream.request(self.command, self.path, body, headers)
                answer = self.upstream.getresponse()
                return answer, answer.read()
            except (OSError, http.client.HTTPException):
                self.upstream.close()
                self.upstream = None
                if last:
                    raise
        raise AssertionError

    def _signed_anew(self, headers: dict[str, str], body: bytes) -> dict[str, str]:
        kept = {
            name: value
            for name, value in headers.items()
            if name.lower() not in (*CONDITIONS, "authorization", "x-amz-date")
        }
        url = f"http://{headers['Host']}{self.path}"
        request = AWSRequest(self.command, url, kept, body)
        S3SigV4Auth(Credentials(*self.server.proxy.credentials), "s3", "us-east-1").add_auth(
            request
        )
        return dict(request.headers.items())

    def _answer(
        self, answer: http.client.HTTPResponse, content: bytes, *, is_truncated: bool
    ) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("Content-Length", answer.headers.get("Content-Length", "0"))
            content = b""
        elif answer.status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if is_truncated:
            content = content[: len(content) // 2]
            self.close_connection = True
        for begin in range(0, len(content), BLOCK_BYTES):
            block = content[begin : begin + BLOCK_BYTES]
            self.server.proxy.pace(len(block))
            self.wfile.write(block)

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
        self.send_response_only(status, code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _without_newest(self, content: bytes) -> bytes:
        proxy, bucket = self.server.proxy, urlsplit(self.path).path.strip("/")
        since_s = time.monotonic() - proxy.hides_s
        hidden = {path for path, at_s in list(proxy.put_at_s.items()) if at_s > since_s}

        def kept(match: re.Match[bytes]) -> bytes:
            key = re.search(rb"<Key>(.*?)</Key>", match[0])
            assert key is not None
            return b"" if f"/{bucket}/{unquote(key[1].decode())}" in hidden else match[0]

        return re.sub(rb"<Contents>.*?</Contents>", kept, content, flags=re.DOTALL)


def flipped(data: bytes) -> bytes:
    """One bit in the middle is another one."""
    if not data:
        return data
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]

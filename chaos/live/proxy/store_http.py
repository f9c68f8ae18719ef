"""The HTTP of the proxy in front of an S3 server: takes requests, asks the server, answers."""

from __future__ import annotations

import contextlib
import http.client
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from resilient_ps.chaos.live.proxy.store import Fault, StoreProxy

BLOCK_BYTES = 65_536
SMALL_BUFFER_BYTES = 65_536
PATIENCE_S = 60.0
CONDITIONS = ("if-match", "if-none-match")
_HOP = ("connection", "expect", "transfer-encoding", "keep-alive", "content-length")


class StoreServer(ThreadingHTTPServer):
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
    server: StoreServer

    def setup(self) -> None:
        if self.server.proxy.trouble.bytes_per_s:  # else the kernel's buffers hide the slowness
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
        if proxy.is_down:
            self.close_connection = True
            return
        if proxy.trouble.bytes_per_s:
            proxy.struck()
        body = self._receive()
        try:
            self._carry_out(fault, body)
        finally:
            if fault is not None:
                fault.happened.set()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815

    def _carry_out(self, fault: Fault | None, body: bytes) -> None:
        proxy, kind = self.server.proxy, fault.kind if fault is not None else ""
        if fault is not None and kind == "status":
            self._refuse(fault.status, fault.code)
            return
        if kind == "hang":
            proxy.wait_for_change(PATIENCE_S)
            self.close_connection = True
            return
        if kind == "corrupt upload":
            body = flipped(body)
        answer, content = self._ask(body)
        if self.command in ("PUT", "POST") and answer.status == 200:
            proxy.was_put(unquote(urlsplit(self.path).path))
        if kind == "lose answer":
            self.close_connection = True
            return
        if kind == "corrupt answer":
            content = flipped(content)
        if proxy.trouble.hide_new_s and self.command == "GET" and "list-type=2" in self.path:
            content = proxy.listing(self.path, content)
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
        if self.server.proxy.trouble.ignore_conditions:
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
        # Imported here: it takes longer than the rest of the proxy's start.
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        proxy = self.server.proxy
        if any(name.lower() in CONDITIONS for name in headers) and self.command != "GET":
            proxy.struck()
        kept = {
            name: value
            for name, value in headers.items()
            if name.lower() not in (*CONDITIONS, "authorization", "x-amz-date")
        }
        url = f"http://{headers['Host']}{self.path}"
        request = AWSRequest(self.command, url, kept, body)
        S3SigV4Auth(Credentials(*proxy.credentials), "s3", "us-east-1").add_auth(request)
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


def flipped(data: bytes) -> bytes:
    """One bit in the middle is another one."""
    if not data:
        return data
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]

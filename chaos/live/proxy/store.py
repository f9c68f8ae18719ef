"""An HTTP proxy in front of an S3 server, that does to it what networks and bad days do.

It passes everything on, until told otherwise: by `trouble`, whose shares are left to chance, or one
by one with `plan`. Threads do it, one per connection; bodies are held whole.
"""

from __future__ import annotations

import random
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from resilient_ps.chaos.faults.links import Effect, StoreTrouble
from resilient_ps.chaos.live.proxy.sockets import Endpoint
from resilient_ps.chaos.live.proxy.store_http import StoreServer

KEPT_REQUESTS = 10_000
MAX_HIDDEN = 100_000

Kind: TypeAlias = Literal[
    "", "lose answer", "status", "truncate", "corrupt upload", "corrupt answer", "hang"
]


@dataclass
class Fault:
    """What happens to the next `times` requests of `method` whose path or query has `part` in it.

    lose answer: the server carries it out, and the connection ends. status: `status` is answered,
    with `code`, and the server hears of nothing. truncate: half of the answer's body, then the end.
    corrupt: one bit of the body is flipped. hang: no answer until the trouble changes.
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
    """`endpoint` stands for the server's at `target`, a URL with plain HTTP.

    `is_down`: connections end without an answer. `credentials`: where conditions are ignored,
    requests are signed anew with them, and only then. `requests`: (method, path with query).
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: tuple[str, str] = ("", ""),
        certificate: tuple[Path, Path] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.target = target
        self.credentials = credentials
        self.is_down = False
        self.requests: deque[tuple[str, str]] = deque(maxlen=KEPT_REQUESTS)
        self._trouble = StoreTrouble()
        self._put_at_s: dict[str, float] = {}
        self._changed = threading.Event()  # set, and replaced, when the trouble changes
        self._closed = threading.Event()
        self._faults: list[Fault] = []
        self._chance = chance or random.Random()
        self._concerned = self._struck = 0
        self._lock = threading.Lock()
        self._free_at_s = 0.0  # when what has passed may have passed
        self._server = StoreServer(self)
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.address: Endpoint = ("127.0.0.1", self._server.server_address[1])
        self.endpoint = f"{scheme}://127.0.0.1:{self.address[1]}"
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05), daemon=True
        )
        self._thread.start()

    @property
    def trouble(self) -> StoreTrouble:
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: StoreTrouble) -> None:
        """From now on; what hangs ends without an answer."""
        with self._lock:
            changed, self._changed = self._changed, threading.Event()
            self._trouble = trouble
            self._free_at_s = 0.0
        changed.set()

    @property
    def effect(self) -> Effect:
        """`connections`: requests while there was trouble; `pieces`: those that it struck."""
        with self._lock:
            return Effect(self._concerned, self._struck)

    def plan(self, kind: Kind, **more: Any) -> Fault:
        """Something that is to happen; the fault tells when it has."""
        fault = Fault(kind, **more)
        with self._lock:
            self._faults.append(fault)
        return fault

    def forget_puts(self) -> None:
        """What was put before is in listings."""
        with self._lock:
            self._put_at_s.clear()

    def close(self) -> None:
        self._closed.set()
        self.trouble = StoreTrouble()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- what the threads of the server ask

    def take_fault(self, method: str, path: str) -> Fault | None:
        """What is to happen to this request: planned, or by chance."""
        with self._lock:
            self.requests.append((method, path))
            self._concerned += self._trouble != StoreTrouble()
            for fault in self._faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
            drawn = drawn_fault(self._trouble, method, self._chance.random)
            self._struck += drawn is not None
            return drawn

    def struck(self) -> None:
        """One more request that the trouble made itself felt to."""
        with self._lock:
            self._struck += 1

    def wait_for_change(self, most_s: float) -> None:
        """Of the trouble; or the end."""
        if not self._closed.is_set():
            self._changed.wait(most_s)

    def pace(self, nbytes: int) -> None:
        """Return when so many further bytes may have passed."""
        with self._lock:
            if not self._trouble.bytes_per_s:
                return
            begin_s = max(self._free_at_s, time.monotonic())
            self._free_at_s = begin_s + nbytes / self._trouble.bytes_per_s
            wait_s = self._free_at_s - time.monotonic()
            changed = self._changed
        changed.wait(max(wait_s, 0.0))

    def was_put(self, path: str) -> None:
        """An object, by its path in the URL."""
        with self._lock:
            self._put_at_s.pop(path, None)
            self._put_at_s[path] = time.monotonic()
            if len(self._put_at_s) > MAX_HIDDEN:
                del self._put_at_s[next(iter(self._put_at_s))]

    def listing(self, path: str, content: bytes) -> bytes:
        """A listing of a bucket, without what is too new."""
        with self._lock:
            since_s = time.monotonic() - self._trouble.hide_new_s
            hidden = {name for name, at_s in self._put_at_s.items() if at_s > since_s}
        shown = without_objects(content, urlsplit(path).path.strip("/"), hidden)
        if shown != content:
            self.struck()
        return shown


def drawn_fault(trouble: StoreTrouble, method: str, chance: Callable[[], float]) -> Fault | None:
    """What happens to a request by chance, `chance` being from 0 to 1: at most one thing."""
    has_body = method in ("GET", "POST")
    shares: tuple[tuple[Fault, float], ...] = (
        (Fault("status", status=500, code="InternalError"), trouble.error_share / 2),
        (Fault("status"), trouble.error_share / 2),
        (Fault("hang"), trouble.timeout_share),
        (Fault("truncate"), trouble.truncate_share if has_body else 0.0),
        (Fault("lose answer"), trouble.lost_answer_share),
    )
    value = chance()
    for fault, share in shares:
        if value < share:
            return fault
        value -= share
    return None


def without_objects(content: bytes, bucket: str, hidden: set[str]) -> bytes:
    """A listing without the objects that are `hidden`, given as /bucket/key."""

    def kept(match: re.Match[bytes]) -> bytes:
        key = re.search(rb"<Key>(.*?)</Key>", match[0])
        assert key is not None
        return b"" if f"/{bucket}/{unquote(key[1].decode())}" in hidden else match[0]

    return re.sub(rb"<Contents>.*?</Contents>", kept, content, flags=re.DOTALL)

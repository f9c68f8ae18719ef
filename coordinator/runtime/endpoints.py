"""The members of an etcd cluster as a client sees them: a channel each, and who is worth trying.

A client stays with the member that answers. One that failed is skipped for a back-off that doubles
with every further failure; when all are backing off, the one that is due first is tried.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.errors import BadInput

MAX_ENDPOINTS = 32
MAX_ANSWER_BYTES = 64 * 1024 * 1024
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 5.0

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A connection of its own: gRPC otherwise shares one among all channels to an address, and with
    # it the state of waiting for a reconnect.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # repeats are decided by the caller, who knows what is safe
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the time that one connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # Replaces connections that a silent network swallowed. Slower than the 5 s that etcd allows by
    # default, else it closes the connection ("too_many_pings"); hung members are found by deadlines
    # and by the watches' probes, much earlier.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the authority that signed the members' certificates, and our own certificate with
    its key, where the members ask for one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> Any:
        if (self.cert is None) != (self.key is None):
            raise BadInput("a client certificate needs both its certificate and its key file")
        return grpc.ssl_channel_credentials(
            root_certificates=_read_pem(self.ca),
            private_key=_read_pem(self.key) if self.key else None,
            certificate_chain=_read_pem(self.cert) if self.cert else None,
        )


class Endpoint:
    """One member: its address, channel and stubs."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        if tls is None:
            self.channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, tls.credentials(), options=_CHANNEL_OPTIONS)
        self.kv: Any = rpc.KVStub(self.channel)
        self.lease: Any = rpc.LeaseStub(self.channel)
        self.watch: Any = rpc.WatchStub(self.channel)
        self.maintenance: Any = rpc.MaintenanceStub(self.channel)
        self.auth: Any = rpc.AuthStub(self.channel)
        self.failures = 0
        self.retry_at_s = 0.0


class Endpoints:
    """All members. `pick` names the one to try; say how it went with `worked` and `failed`."""

    def __init__(self, addresses: str | Sequence[str], *, tls: Tls | None = None) -> None:
        self.addresses = parse_addresses(addresses)
        self._members = [Endpoint(address, tls) for address in self.addresses]
        self._lock = threading.Lock()
        # Clients spread over the members; each then stays with its own.
        self._current = random.randrange(len(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def __str__(self) -> str:
        return ",".join(self.addresses)

    def pick(self) -> Endpoint:
        """The current member, or the next that is not backing off, or the one due first."""
        now_s = time.monotonic()
        with self._lock:
            count = len(self._members)
            for step in range(count):
                index = (self._current + step) % count
                if self._members[index].retry_at_s <= now_s:
                    self._current = index
                    return self._members[index]
            return min(self._members, key=lambda member: member.retry_at_s)

    def has_fresh(self) -> bool:
        """Whether some member is not backing off."""
        now_s = time.monotonic()
        with self._lock:
            return any(member.retry_at_s <= now_s for member in self._members)

    def worked(self, member: Endpoint) -> None:
        if member.failures:
            with self._lock:
                member.failures = 0
                member.retry_at_s = 0.0

    def failed(self, member: Endpoint) -> None:
        with self._lock:
            backoff_s = min(FIRST_BACKOFF_S * 2 ** min(member.failures, 10), MAX_BACKOFF_S)
            member.failures += 1
            member.retry_at_s = time.monotonic() + backoff_s

    def close(self) -> None:
        for member in self._members:
            member.channel.close()


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """`host:port`, comma-separated or as a sequence; `http://` in front is accepted."""
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    cleaned = [parse_address(part) for part in parts if part.strip()]
    if not cleaned:
        raise BadInput("no etcd endpoint given: name at least one as host:port")
    if len(cleaned) > MAX_ENDPOINTS:
        raise BadInput(f"{len(cleaned)} etcd endpoints; at most {MAX_ENDPOINTS} are allowed")
    return tuple(dict.fromkeys(cleaned))


def parse_address(text: str, *, lowest_port: int = 1) -> str:
    """`host:port` without a scheme; `lowest_port` 0 where 0 means any free port."""
    address = text.strip()
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    address = address.rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not lowest_port <= int(port) < 65536 or "/" in address:
        raise BadInput(f"address {text!r} is not of the form host:port, as 127.0.0.1:2379")
    return address


def _read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the PEM file {path}: {error.strerror}") from error

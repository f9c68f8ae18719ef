"""Addresses to listen on and to dial, and where a host looks up those of servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from resilient_ps.errors import BadInput

MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `unix_path`: a Unix socket *on this host* that serves the same."""

    host: str
    port: int
    unix_path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Directory(Protocol):
    """What a host asks when it is to dial `server:<name>`."""

    def address_of(self, server: str) -> Address | None:
        """The server's address, or None when no such server is known."""
        ...


def parse_address(text: str, flag: str = "address") -> Address:
    """Read `host:port` or `[ipv6]:port`. Raises `BadInput` naming `flag`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadInput(f"{flag} {text!r}: write an IPv6 address in brackets, as [::1]:7070")
    if not colon or not host:
        raise BadInput(f"{flag} {text!r} is not HOST:PORT, for example 127.0.0.1:7070")
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise BadInput(f"{flag} {text!r}: the port must be a number from 0 to {MAX_PORT}")
    return Address(host, int(port))

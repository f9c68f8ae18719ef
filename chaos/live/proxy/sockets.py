"""What the kernel knows of the TCP sockets of this machine, asked through netlink (`sock_diag`).

A look at all that listens costs some ten microseconds, and needs no rights; /proc/net/tcp costs
some milliseconds where the kernel's tables are large. See sock_diag(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import TypeAlias

from resilient_ps.errors import Unavailable

Endpoint: TypeAlias = tuple[str, int]

_SOCK_DIAG = 4  # the netlink family
_BY_FAMILY = 20
_REQUEST, _DUMP = 0x1, 0x300
_DONE, _ERROR = 3, 2
_LISTENING = 1 << 10
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = struct.pack("=II", 0xFFFFFFFF, 0xFFFFFFFF)
_HEADER = struct.Struct("=IHHII")
_PORT = struct.Struct("!H")
_INODE = struct.Struct("=I")
_ERRNO = struct.Struct("=i")
_PORT_AT, _INODE_AT = 4, 68  # in `struct inet_diag_msg`
_ANSWER_BYTES = 65_536
ANSWER_S = 5.0
_LINGER = struct.pack("ii", 1, 0)
_CLOSED = 7  # by a reset; what comes after it in the kernel's list: by an end in order


class SocketTable:
    """One question at a time; a thread needs a table of its own. Questions raise `OSError` when
    the kernel does not answer."""

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
        except OSError as error:
            raise Unavailable(
                f"the kernel tells nothing of its sockets ({error}): the network faults need "
                "Linux with inet_diag (`modprobe tcp_diag`)"
            ) from error
        self._socket.settimeout(ANSWER_S)
        self._asked = 0

    def listening(self) -> set[int]:
        """The TCP ports that somebody listens on."""
        ports = set()
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in self._ask(family, _LISTENING, _REQUEST | _DUMP, b""):
                ports.add(_PORT.unpack_from(message, _PORT_AT)[0])
        return ports

    def inode(self, local: Endpoint, remote: Endpoint) -> int:
        """Of the IPv4 socket at `local` that is connected with `remote`; 0: there is none."""
        where = _PORT.pack(local[1]) + _PORT.pack(remote[1])
        where += socket.inet_aton(local[0]).ljust(16, b"\0")
        where += socket.inet_aton(remote[0]).ljust(16, b"\0")
        for message in self._ask(socket.AF_INET, _ANY_STATE, _REQUEST, where):
            return int(_INODE.unpack_from(message, _INODE_AT)[0])
        return 0

    def close(self) -> None:
        self._socket.close()

    def _ask(self, family: int, states: int, flags: int, where: bytes) -> Iterator[bytes]:
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, states)
        body += where.ljust(36, b"\0") + struct.pack("=I", 0) + _NO_COOKIE
        self._asked += 1
        asked = self._asked & 0xFFFFFFFF
        self._socket.send(_HEADER.pack(16 + len(body), _BY_FAMILY, flags, asked, 0) + body)
        while True:
            data, at = self._socket.recv(_ANSWER_BYTES), 0
            while at < len(data):
                size, kind, _, answered, _ = _HEADER.unpack_from(data, at)
                content = data[at + 16 : at + size]
                at += (size + 3) & ~3
                if answered != asked:  # late, to what was asked before
                    continue
                if kind == _ERROR:
                    self._check(-_ERRNO.unpack_from(content)[0])
                    return
                if kind == _DONE:
                    return
                yield content
                if not flags & _DUMP:
                    return

    def _check(self, number: int) -> None:
        if number not in (0, errno.ENOENT):  # no such socket: that is an answer, too
            raise OSError(number, os.strerror(number))


def reset(sock: socket.socket) -> None:
    """Close it so that the other end reads a reset, and not an end in order."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    sock.close()


def has_ended(sock: socket.socket) -> bool:
    """Whether the other end has closed the connection, though not all was read yet."""
    state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state >= _CLOSED


def held_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port (0: a free one) and does not listen: dials are refused.

    The kernel keeps a port for a socket that stops listening only where it was asked for by number.
    """
    first, second = _reusing(), _reusing()
    with first:
        first.bind((host, port))
        try:
            second.bind(first.getsockname())
        except BaseException:
            second.close()
            raise
    return second


def _reusing() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(0)
    return sock

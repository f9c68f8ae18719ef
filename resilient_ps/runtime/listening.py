"""The sockets on which a server is reached: one TCP address, and a Unix socket beside it.

They are bound before the server's machine is built, because it has to know (and publish) the port
that it got.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from resilient_ps.errors import BadInput
from resilient_ps.runtime.addresses import Address, parse_address

BACKLOG = 512
MAX_UNIX_PATH_BYTES = 107
PROBE_TIMEOUT_S = 1.0


class Listening:
    """Bound and listening sockets. `address` has the real port.

    `close` gives the Unix socket's file back; it may be called again.
    """

    def __init__(self, sockets: list[socket.socket], address: Address) -> None:
        self.sockets = sockets
        self.address = address
        self._inode = _inode(address.unix_path)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        path = self.address.unix_path
        if path and self._inode and _inode(path) == self._inode:  # nobody has taken our place
            Path(path).unlink(missing_ok=True)


def listen_on(listen: str, unix_path: str | None = None) -> Listening:
    """Bind `host:port` (port 0: any free one) and, if given, a Unix socket.

    A socket file that a dead process left is replaced. Raises `BadInput` with the address and
    what to do when it is in use, unknown, or not allowed.
    """
    wanted = parse_address(listen, "--listen")
    sock = _bind_tcp(wanted)
    port = sock.getsockname()[1]
    if not unix_path:
        return Listening([sock], Address(wanted.host, port))
    try:
        unix = _bind_unix(unix_path)
    except BaseException:
        sock.close()
        raise
    return Listening([sock, unix], Address(wanted.host, port, unix_path))


def _bind_tcp(wanted: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"cannot listen on {wanted}: host {wanted.host!r} is unknown ({error}); "
            "give --listen an address of this machine, for example 0.0.0.0:7070"
        ) from error
    family, kind, protocol, _, name = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise BadInput(f"cannot listen on {wanted}: {_remedy(error, wanted.port)}") from error
    sock.settimeout(0)
    return sock


def _remedy(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            "the port is in use; choose another with --listen (port 0 takes any free one), or "
            f"stop the process that has it: ss -ltnp 'sport = :{port}'"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not permitted; choose a port above 1023 with --listen"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; give --listen one that it has, or 0.0.0.0"
    return f"{error.strerror}; choose another address with --listen"


def _bind_unix(path: str) -> socket.socket:
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH_BYTES:
        raise BadInput(
            f"the Unix socket path {path!r} has {size} bytes, at most {MAX_UNIX_PATH_BYTES} are "
            "possible: choose a shorter --unix"
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise BadInput(
            f"cannot listen on the Unix socket {path!r}: {error.strerror}; choose another --unix "
            "in a folder that exists and may be written"
        ) from error
    sock.settimeout(0)
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket file of a dead process. Raises `BadInput` for anything else there."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # nothing there; `bind` says what else may be wrong
    if not stat.S_ISSOCK(mode):
        raise BadInput(f"{path!r} exists and is no socket: choose another --unix, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError:
            pass  # a full backlog, or not ours to connect to: somebody lives
    raise BadInput(
        f"the Unix socket {path!r} belongs to a process that is alive: choose another --unix, or "
        f"stop it (ss -lxp | grep {path})"
    )


def _inode(path: str) -> tuple[int, int] | None:
    if not path:
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

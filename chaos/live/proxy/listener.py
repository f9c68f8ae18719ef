"""Where a party is dialled: a port that listens exactly while the party's own port does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from resilient_ps.chaos.live.proxy.connection import Connection
from resilient_ps.chaos.live.proxy.sockets import Endpoint, held_port

BACKLOG = 512
_ACCEPTS_AT_ONCE = 64


class Listener:
    """`watched`: the port that shows whether the party lives; mostly the target's. While nothing
    listens there, or a rule wants it (`refuse`), dials are refused by the kernel."""

    def __init__(
        self,
        party: str,
        target: Endpoint,
        port: int,
        watched: int,
        accepted: Callable[[Listener, socket.socket, Endpoint], None],
        is_alive: Callable[[int], bool],
    ) -> None:
        self.party = party
        self.target = target
        self.connections: dict[int, Connection] = {}
        self._watched = watched
        self._accepted = accepted
        self._is_alive = is_alive
        self._refuses = False
        self._is_listening = False
        self._socket = held_port("127.0.0.1", port)
        self.address: Endpoint = self._socket.getsockname()

    def refuse(self, *, refuses: bool) -> None:
        """Whether a rule has all dials refused."""
        self._refuses = refuses
        self.look()

    def look(self) -> None:
        """Listen, or not, as the party does."""
        self.follow(is_alive=self._is_alive(self._watched))

    def follow(self, *, is_alive: bool) -> None:
        wanted = is_alive and not self._refuses
        if wanted == self._is_listening:
            return
        loop = asyncio.get_running_loop()
        self._is_listening = wanted
        if wanted:
            self._socket.listen(BACKLOG)
            loop.add_reader(self._socket.fileno(), self._on_dialled)
        else:
            loop.remove_reader(self._socket.fileno())
            self._socket.shutdown(socket.SHUT_RDWR)  # resets what nobody has accepted yet

    @property
    def watched(self) -> int:
        return self._watched

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)

    def close(self) -> None:
        """No more of it; its connections are reset."""
        self.follow(is_alive=False)
        self._socket.close()
        for connection in list(self.connections.values()):
            connection.reset()

    def _on_dialled(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, dialler = self._socket.accept()
            except OSError:  # no more, or gone again
                return
            client.settimeout(0)
            self._accepted(self, client, dialler)

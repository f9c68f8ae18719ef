"""Whom a server is connected with: who dialled it, and whom it has dialled.

A connection that breaks says nothing of the process at its other end. A fresh dial that is
*refused* does: nobody listens there any more. So after a break the process is dialled once
(`probe`), and the lease that was named in the broken connection's greeting tells which leader keys
were its own.
"""

from __future__ import annotations

from resilient_ps.coordinator.membership import Membership
from resilient_ps.coordinator.records import Member
from resilient_ps.machine import Drop, Effect, Send
from resilient_ps.messages import PROTOCOL, Ask, Hello, Refuse, Welcome
from resilient_ps.replication.home import Home
from resilient_ps.routing import PEER_PREFIX


class Peers:
    """The greetings of one server's connections."""

    def __init__(self, cluster: str, membership: Membership, home: Home) -> None:
        self.greeted: dict[str, Hello] = {}  # who dialled us
        self._cluster = cluster
        self._membership = membership
        self._home = home
        self._welcomes: dict[str, Welcome] = {}  # whom we have dialled
        self._broken: dict[str, int] = {}  # by server: the lease of a connection that broke

    def hello(self) -> Hello:
        """What is said first to a server that we dial."""
        me, lease = self._home.me, self._membership.lease
        return Hello(PROTOCOL, self._cluster, f"server {me.server}", me.server, me.process, lease)

    def greet(self, peer: str, hello: Hello, incarnation: int) -> list[Effect]:
        """Welcome who dialled us, or say why not."""
        if hello.protocol != PROTOCOL:
            why = (
                f"this server speaks protocol {PROTOCOL}, not {hello.protocol}: upgrade one of them"
            )
        elif hello.cluster != self._cluster:
            why = f"this server belongs to cluster {self._cluster!r}, not {hello.cluster!r}"
        else:
            self.greeted[peer] = hello
            me = self._home.me
            welcome = Welcome(me.server, me.process, incarnation, self._membership.lease)
            return [Send(peer, welcome)]
        return [Send(peer, Refuse(why)), Drop(peer, why)]

    def on_welcome(self, peer: str, welcome: Welcome) -> None:
        """A server that we dialled says who it is."""
        self._welcomes[peer] = welcome
        self._broken.pop(peer.removeprefix(PEER_PREFIX), None)
        self._home.refused.discard(Member(welcome.server, welcome.process))

    def member(self, peer: str) -> Member | None:
        """The process at the other end of a connection that we made; None before its welcome."""
        welcome = self._welcomes.get(peer)
        return None if welcome is None else Member(welcome.server, welcome.process)

    def strangers(self) -> list[str]:
        """Forget, and return, peers that are not the registered processes of their names."""
        found = []
        for peer, welcome in self._welcomes.items():
            present = self._home.present(welcome.server)
            if present is not None and present.process != welcome.process:
                found.append(peer)
        for peer in found:
            del self._welcomes[peer]
        return found

    def on_client_lost(self, peer: str) -> tuple[str, int]:
        """Who dialled us is gone: its server and lease, if it was one ("" and 0 otherwise)."""
        hello = self.greeted.pop(peer, None)
        return ("", 0) if hello is None else (hello.server, hello.lease)

    def on_server_lost(self, peer: str) -> int:
        """A connection that we made, or tried to make, is gone: its other end's lease, or 0."""
        welcome = self._welcomes.pop(peer, None)
        return 0 if welcome is None else welcome.lease

    def probe(self, server: str, lease: int) -> list[Effect]:
        """Dial a server whose connection broke, to see whether it is there."""
        self._broken[server] = lease
        return [Send(PEER_PREFIX + server, Ask(0, "ping"))]

    def on_refused(self, server: str) -> int:
        """Nobody listens where this server did: the lease of the connection that broke, or 0."""
        present = self._home.present(server)
        if present is not None:
            self._home.refused.add(present)
        return self._broken.pop(server, 0)

"""Looking at a cluster from outside: what etcd says, and what each server says of itself.

Nothing here waits for a cluster to be complete, so it also shows what is wrong with one.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from resilient_ps.coordinator.keys import ROOT, ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.errors import DeadlineExceeded, NotFound, ResilientPsError, Unavailable
from resilient_ps.messages import PROTOCOL, Ask, Hello, Message, Refuse, Told, Welcome
from resilient_ps.routing import PEER_PREFIX, Address
from resilient_ps.runtime.channel import Channel, WireError

ASKED_AT_ONCE = 16


class ServerProbe:
    """Asks one server what it is doing. The connection is kept for the next question."""

    def __init__(self, cluster: str, server: str, address: Address) -> None:
        self.server = server
        self._hello = Hello(PROTOCOL, cluster, "status")
        self._address = address
        self._channel: Channel | None = None
        self._asked = 0

    def ask(self, deadline_s: float = 2.0, what: str = "status") -> dict[str, Any]:
        """Its status, or what else it is asked. Raises `Unavailable` or `DeadlineExceeded`."""
        until_s = time.monotonic() + deadline_s
        try:
            return self._ask(what, until_s)
        except (OSError, WireError) as error:
            self.close()
            raise Unavailable(f"server {self.server}: {error}") from error
        except ResilientPsError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, what: str, until_s: float) -> dict[str, Any]:
        if self._channel is None:
            self._channel = Channel(
                PEER_PREFIX + self.server, self._address, self._hello, lambda _head, _meta: None
            )
        self._asked += 1
        self._channel.send(Ask(self._asked, what))
        while True:
            for message in self._receive(self._channel, until_s):
                match message:
                    case Told(request, body) if request == self._asked:
                        return dict(json.loads(body))
                    case Refuse(why):
                        raise Unavailable(f"server {self.server} refuses: {why}")
                    case Told() | Welcome():
                        pass  # an answer that came too late, or the greeting
                    case _:
                        raise Unavailable(f"server {self.server} answers something else")

    def _receive(self, channel: Channel, until_s: float) -> Iterable[Message]:
        poll = select.poll()
        poll.register(channel, select.POLLIN | (select.POLLOUT if channel.sending else 0))
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"server {self.server} does not answer: paused, or very busy")
        for _, mask in poll.poll(left_s * 1000):
            if mask & select.POLLOUT:
                channel.flush()
            if mask & ~select.POLLOUT:
                return channel.receive()
        return []


def ask_all(probes: Iterable[ServerProbe], deadline_s: float = 2.0) -> dict[str, Any]:
    """By server: its status, or the error (a `ResilientPsError`) for which there is none."""

    def ask(probe: ServerProbe) -> Any:
        try:
            return probe.ask(deadline_s)
        except ResilientPsError as error:
            return error

    asked = list(probes)
    if not asked:
        return {}
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(asked))) as threads:
        return {p.server: told for p, told in zip(asked, threads.map(ask, asked), strict=True)}


def no_such_cluster(kv: Kv, keys: ClusterKeys) -> NotFound | Unavailable:
    """The error for a cluster without a configuration, naming those that etcd knows."""
    known = clusters(kv)
    if keys.cluster in known:
        return Unavailable(
            f"cluster {keys.cluster!r} has servers, but is not there yet: they wait for its store, "
            "or for more servers; their logs say which (`resilient-ps doctor --store` examines the "
            "store)"
        )
    return NotFound(
        f"there is no cluster {keys.cluster!r} in this etcd; clusters: "
        f"{', '.join(known) or 'none'}. Start servers with "
        f"`resilient-ps server --cluster {keys.cluster}`"
    )


def clusters(kv: Kv) -> list[str]:
    """Names of all clusters in an etcd."""
    items = kv.read(ROOT.encode(), prefix=True).items
    names = {item.key.decode(errors="replace").removeprefix(ROOT).split("/")[0] for item in items}
    return sorted(names)

"""Runs a session on blocking calls: sockets, timers and etcd are served while somebody waits.

There is no thread: what a caller waits for moves on while it waits. A driver serves one caller at a
time; others wait for the lock. A server that takes nothing holds nobody up for longer than the
caller's deadline: what it has not taken by then stays queued, and leaves while somebody waits.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Iterable

from resilient_ps.coordinator.kv import Kv, KvCall
from resilient_ps.errors import Unavailable
from resilient_ps.machine import Drop, Event, MessageArrived, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import Hello, Message
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.runtime.channel import Channel, ChannelRefused, WireError
from resilient_ps.runtime.kv_calls import outcome
from resilient_ps.session import Resolved, Session, SessionEffect

KV_DEADLINE_S = 1.0
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Driver:
    """One session, its connections and its timers."""

    def __init__(
        self, session: Session, kv: Kv, hello: Hello, *, unix_sockets: bool = True
    ) -> None:
        self.session = session
        self.lock = threading.RLock()
        self._kv = kv
        self._hello = hello
        self._unix_sockets = unix_sockets
        self._channels: dict[str, Channel] = {}
        self._by_fd: dict[int, Channel] = {}
        self._poll = select.poll()
        self._timers: dict[str, int] = {}
        self._events: deque[Event] = deque()
        self._resolved: dict[int, Resolved] = {}
        self._ops = 0

    def next_op(self) -> int:
        """A number for an operation."""
        self._ops += 1
        return self._ops

    def perform(self, effects: Iterable[SessionEffect], until_ns: int = 0) -> None:
        """Perform effects in list order; then wait until `until_ns` for servers to take them."""
        sending: list[Channel] = []
        for effect in effects:
            match effect:
                case Send(peer, message):
                    sending += self._send(peer, message)
                case Resolved(op):
                    self._resolved[op] = effect
                case SetTimer(name, at_ns):
                    self._timers[name] = at_ns
                case KvCall():
                    self._events.append(outcome(self._kv, effect, KV_DEADLINE_S))
                case Drop(peer):
                    self._lose(peer, refused=False)
                case _:
                    pass
        if sending:
            self._send_rest(sending, until_ns)

    def take(self, op: int) -> Resolved | None:
        """The outcome of an operation, once."""
        return self._resolved.pop(op, None)

    def is_resolved(self, op: int) -> bool:
        """Is its outcome there?"""
        return op in self._resolved

    def wait(self, op: int, deadline_ns: int) -> Resolved:
        """Serve everything until this operation is resolved; at the deadline it is abandoned."""
        while op not in self._resolved:
            if not self.serve(deadline_ns):
                self.perform(self.session.abandon(op, time.monotonic_ns()))
        return self._resolved.pop(op)

    def serve(self, deadline_ns: int) -> bool:
        """One round of whatever comes next; False when the deadline has come first."""
        if self._drain_events():
            return True
        now_ns = time.monotonic_ns()
        if now_ns >= deadline_ns:
            return False
        until_ns = min([deadline_ns, *self._timers.values()])
        self.poll(max(0, (until_ns - now_ns + 999_999) // 1_000_000))
        return True

    def poll(self, timeout_ms: int = 0) -> None:
        """Take in what has arrived, or arrives within the time."""
        for fd, mask in self._poll.poll(timeout_ms):
            self._on_ready(fd, mask)
        self._fire_timers()
        self._drain_events()

    def close(self) -> None:
        """Close all connections."""
        for channel in list(self._channels.values()):
            self._forget(channel)

    # -- events

    def _drain_events(self) -> bool:
        if not self._events:
            return False
        while self._events:
            event = self._events.popleft()
            self.perform(self.session.handle(event, time.monotonic_ns()))
        return True

    def _fire_timers(self) -> None:
        if not self._timers:
            return
        now_ns = time.monotonic_ns()
        for name in [name for name, at_ns in self._timers.items() if at_ns <= now_ns]:
            del self._timers[name]
            self._events.append(TimerFired(name))

    # -- connections

    def _send(self, peer: str, message: Message) -> list[Channel]:
        """The channel, where something is left to be sent."""
        try:
            channel = self._channels.get(peer) or self._open(peer)
            channel.send(message)
        except (OSError, Unavailable) as error:
            self._lose(peer, refused=isinstance(error, ChannelRefused))
            return []
        if not channel.sending:
            return []
        self._poll.modify(channel, select.POLLIN | select.POLLOUT)
        return [channel]

    def _send_rest(self, channels: list[Channel], until_ns: int) -> None:
        """Read meanwhile: a server may be waiting for us to."""
        while any(self._channels.get(each.peer) is each and each.sending for each in channels):
            left_ns = until_ns - time.monotonic_ns()
            if left_ns <= 0:
                return
            for fd, mask in self._poll.poll(left_ns / 1e6):
                self._on_ready(fd, mask)

    def _open(self, peer: str) -> Channel:
        address = self.session.routing.servers.get(peer.removeprefix(PEER_PREFIX))
        if address is None:
            raise Unavailable(f"{peer} has no address")
        if not self._unix_sockets:
            address = address._replace(unix_path="")
        channel = Channel(peer, address, self._hello, self.session.calls.places)
        self._channels[peer] = channel
        self._by_fd[channel.fileno()] = channel
        self._poll.register(channel, select.POLLIN)
        return channel

    def _on_ready(self, fd: int, mask: int) -> None:
        channel = self._by_fd.get(fd)
        if channel is None:
            return
        try:
            if mask & select.POLLOUT:
                channel.flush()
                if not channel.sending:
                    self._poll.modify(channel, select.POLLIN)
            if mask & _READABLE:
                for message in channel.receive():
                    self._events.append(MessageArrived(channel.peer, message))
        except (OSError, WireError):
            self._lose(channel.peer, refused=False)

    def _lose(self, peer: str, *, refused: bool) -> None:
        channel = self._channels.get(peer)
        if channel is not None:
            self._forget(channel)
        self._events.append(PeerLost(peer, refused))

    def _forget(self, channel: Channel) -> None:
        self._poll.unregister(channel)
        del self._by_fd[channel.fileno()]
        del self._channels[channel.peer]
        channel.close()


def deadline_after(seconds: float) -> int:
    """The moment, in monotonic nanoseconds, so many seconds from now."""
    return time.monotonic_ns() + int(seconds * 1e9)

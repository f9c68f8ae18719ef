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
from functools import partial
from typing import Any

from numpy.typing import NDArray

from resilient_ps.calls import Folded
from resilient_ps.coordinator.kv import Kv, KvCall
from resilient_ps.errors import Unavailable
from resilient_ps.machine import Drop, Event, MessageArrived, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import Hello, Message
from resilient_ps.quick_calls import PlainTable, QuickCall
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.runtime.channel import RECEIVE_PATIENCE_S, Channel, ChannelRefused, WireError
from resilient_ps.runtime.kv_calls import outcome
from resilient_ps.session import Resolved, Session, SessionEffect
from resilient_ps.wire import TakeWhole, encode

KV_DEADLINE_S = 1.0
RECEIVE_PATIENCE_MS = int(RECEIVE_PATIENCE_S * 1000)
RECEIVE_PATIENCE_NS = RECEIVE_PATIENCE_MS * 1_000_000
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
        folded = self.session.calls.folded
        if folded is not None and folded.op == op:
            self._receive_answer(folded, deadline_ns)
        while op not in self._resolved:
            if not self.serve(deadline_ns):
                self.perform(self.session.abandon(op, time.monotonic_ns()))
        return self._resolved.pop(op)

    # -- the quick way of plain calls: see `quick_calls`

    def pull_quickly(
        self, table: PlainTable, keys: Any, out: NDArray[Any], deadline_s: float, wait_ns: int
    ) -> QuickCall | None:
        """Start a pull into `out`; None where only the usual way will do."""
        channel = self._idle_channel()
        if channel is None:
            return None
        now_ns = time.monotonic_ns()
        call = self.session.pull_quickly(table, keys, out, now_ns, wait_ns=wait_ns)
        return None if call is None else self._leave(call, channel, now_ns, deadline_s)

    def push_quickly(
        self, table: PlainTable, keys: Any, grads: NDArray[Any], deadline_s: float
    ) -> QuickCall | None:
        """Start a push; None where only the usual way will do."""
        channel = self._idle_channel()
        if channel is None:
            return None
        now_ns = time.monotonic_ns()
        call = self.session.push_quickly(table, keys, grads, now_ns)
        return None if call is None else self._leave(call, channel, now_ns, deadline_s)

    def _idle_channel(self) -> Channel | None:
        """That of the server of all shards, if nothing is to be done first."""
        peer = self.session.routing.only_peer
        channel = None if peer is None or self._events else self._channels.get(peer)
        return None if channel is None or channel.sending else channel

    def _leave(
        self, call: QuickCall, channel: Channel, now_ns: int, deadline_s: float
    ) -> QuickCall:
        call.op = self.next_op()
        try:
            channel.send_call(call)
        except OSError:
            self._lose(channel.peer, refused=False)
        else:
            if channel.sending:
                self._poll.modify(channel, select.POLLIN | select.POLLOUT)
                self._send_rest([channel], now_ns + int(deadline_s * 1e9))
        return call

    def _receive_answer(self, call: Folded, deadline_ns: int) -> None:
        """One attempt; what it gives that is not the plain answer goes the usual way."""
        channel, now_ns = self._only_channel(), time.monotonic_ns()
        if channel is None or self._events or now_ns + RECEIVE_PATIENCE_NS > deadline_ns:
            return
        try:
            for message in channel.receive_answer(call):
                self._events.append(MessageArrived(channel.peer, message))
        except (OSError, WireError):
            self._lose(channel.peer, refused=False)
        if call.over:
            self._resolved[call.op] = Resolved(call.op)
            self.perform(self.session.settle(call, now_ns))

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
        only = self._only_channel() if timeout_ms >= RECEIVE_PATIENCE_MS else None
        if only is not None:
            self._receive(only, wait=True)
        else:
            for fd, mask in self._poll.poll(timeout_ms):
                self._on_ready(fd, mask)
        self._fire_timers()
        self._drain_events()

    def _only_channel(self) -> Channel | None:
        """The one that all there is to wait for comes from: to receive waits as well as to poll."""
        if len(self._channels) != 1:
            return None
        (channel,) = self._channels.values()
        return None if channel.sending else channel

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
        except (OSError, Unavailable) as error:
            self._lose(peer, refused=isinstance(error, ChannelRefused))
            return []
        self._hand_over(channel, encode(message))
        return [channel] if channel.sending else []

    def _hand_over(self, channel: Channel, buffers: list[Any]) -> None:
        try:
            channel.send_bytes(buffers)
        except OSError:
            self._lose(channel.peer, refused=False)
            return
        if channel.sending:
            self._poll.modify(channel, select.POLLIN | select.POLLOUT)

    def _send_rest(self, channels: list[Channel], until_ns: int) -> None:
        """Read meanwhile: a server may be waiting for us to."""
        while any(self._channels.get(each.peer) is each and each.sending for each in channels):
            left_ns = until_ns - time.monotonic_ns()
            if left_ns <= 0:
                return
            for fd, mask in self._poll.poll(left_ns / 1e6):
                self._on_ready(fd, mask)

    def _open(self, peer: str) -> Channel:
        address = self.session.servers.get(peer.removeprefix(PEER_PREFIX))
        if address is None:
            raise Unavailable(f"{peer} has no address")
        if not self._unix_sockets:
            address = address._replace(unix_path="")
        place = partial(self.session.calls.places, peer=peer)
        channel = Channel(peer, address, self._hello, place)
        self._channels[peer] = channel
        self._by_fd[channel.fileno()] = channel
        self._poll.register(channel, select.POLLIN)
        return channel

    def _on_ready(self, fd: int, mask: int) -> None:
        channel = self._by_fd.get(fd)
        if channel is None:
            return
        if mask & select.POLLOUT:
            try:
                channel.flush()
            except OSError:
                self._lose(channel.peer, refused=False)
                return
            if not channel.sending:
                self._poll.modify(channel, select.POLLIN)
        if mask & _READABLE:
            self._receive(channel, wait=False)

    def _receive(self, channel: Channel, take: TakeWhole | None = None, *, wait: bool) -> None:
        try:
            for message in channel.receive(wait=wait, take=take):
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

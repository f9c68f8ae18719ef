"""One connection of a host: bytes of a socket to messages, and messages to bytes.

States. *Open*: messages are delivered. *Finishing*: the last words are on their way, what arrives
is thrown away, and the peer has `close_grace_s` to go. *Lost*: nothing more happens. A connection
that closed at once with unread input would be reset, and the peer could not read why.

Messages may have an end (`until_ns`). It is looked at when the bytes go to the socket's transport,
not earlier. When it is past, nothing of what was gathered leaves, and the connection is aborted:
whoever waits for the message hears at once that it has to ask again. What the kernel has not taken
by then is not called back, as little as what is in its own buffers.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from typing import Any, Protocol, cast

from resilient_ps.machine import Peer
from resilient_ps.messages import Message, Refuse, Request
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.runtime.clock import Clock
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.wire import GREETING, FrameReader, WireError, encode

FLUSH_BYTES = 128 * 1024
"""Answers are gathered into one write until they are this large."""
MAX_REFUSAL_CHARS = 1000
BUFFERS_MAX = 1_000  # of one gathering write; Linux allows 1,024
UNIX_SEND_BYTES = 4 << 20
"""Of a Unix socket's buffer, as far as the system permits: its default holds a fraction of a large
message, and both ends would wake up for each fraction."""
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3

LARGE_BYTES, LOW_WATER_BYTES = 64 * 1024, 512 * 1024
"""Of arrays that are received: what counts as large, and how much of one is to be there at least
when its connection is woken up. Waking up costs both ends more than to copy that much."""

_TCP = (socket.AF_INET, socket.AF_INET6)
_WASTE = memoryview(bytearray(64 * 1024))
"""Where input of finishing connections goes; never read."""


class Owner(Protocol):
    """What a connection tells its host."""

    def on_opened(self, connection: Connection) -> None: ...

    def on_messages(self, connection: Connection, messages: list[Message]) -> None: ...

    def answered(
        self, connection: Connection, scratch: memoryview, lo: int, hi: int, limits: tuple[int, int]
    ) -> bool:
        """Was the message in these bytes answered at once, and is it over?"""
        ...

    def received_push(
        self, connection: Connection, request: Request, left_bytes: int
    ) -> tuple[int, bool] | None:
        """Receive more of a push of which so many bytes of values are still to come, and make what
        is there: how much that is, and whether all of it was made and answered. None: nothing."""
        ...

    def on_refused(self, connection: Connection, why: str) -> None:
        """The peer breaks the protocol or a limit; it has been told, and is being closed."""
        ...

    def on_expired(self, connection: Connection, messages: int) -> None:
        """So many messages were thrown away at their end; the connection is being aborted."""
        ...

    def on_lost(self, connection: Connection) -> None:
        """The socket is closed, for whatever reason; called exactly once after `on_opened`."""
        ...


class Connection(asyncio.BufferedProtocol):
    """A socket with a frame reader. All methods are called in the loop's thread."""

    def __init__(self, owner: Owner, peer: Peer, limits: HostLimits, clock: Clock) -> None:
        self.peer = peer
        self.remote = "?"
        self.greeted = False  # a whole first frame has arrived
        self.dropped = False  # closed by our own side: nobody wants to hear of it
        self._owner = owner
        self._limits = limits
        self._clock = clock
        self._is_server = peer.startswith(PEER_PREFIX)
        self._unsent_limit = limits.server_unsent_bytes if self._is_server else limits.unsent_bytes
        self._reader = FrameReader(limits.frame, greeting=GREETING)
        self._outgoing: list[Any] = []
        self._outgoing_bytes = 0
        self._outgoing_messages = 0
        self._until_ns = 0  # the earliest end of an outgoing message
        self._finishing = False
        self._patience: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self.descriptor = -1
        self._sock: Any = None  # of TCP; others know no low water
        self._low_water = 1
        self._is_new = True  # the frame that is under way: its arrays have just begun

    # --------------------------------------------------------------------------- for the host

    @property
    def finishing(self) -> bool:
        return self._finishing

    @property
    def is_sending(self) -> bool:
        """Is there something that the peer's host has not taken yet?"""
        if self._transport.get_write_buffer_size():
            return True
        descriptor = self._transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return False
        (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
        return bool(waiting)

    def send(self, message: Message, until_ns: int = 0) -> bool:
        """Put a message to the outgoing ones; True when `flush` is to be called soon.

        It does not leave after `until_ns` (0: never too late).
        """
        if self._finishing:
            return False
        if until_ns and (not self._until_ns or until_ns < self._until_ns):
            self._until_ns = until_ns
        buffers = encode(message)
        self._outgoing += buffers
        self._outgoing_messages += 1
        self._outgoing_bytes += sum(map(len, buffers))
        if self._outgoing_bytes < FLUSH_BYTES:
            return True
        self.flush()
        return False

    def send_bytes(self, buffers: list[Any], until_ns: int) -> None:
        """Write the bytes of a message, behind what has been gathered."""
        if not self._until_ns or until_ns < self._until_ns:
            self._until_ns = until_ns
        self._outgoing += buffers
        self._outgoing_messages += 1
        self.flush()

    def flush(self) -> None:
        """Write what has been gathered."""
        if not self._outgoing:
            return
        buffers, until_ns, messages = self._outgoing, self._until_ns, self._outgoing_messages
        self._forget_outgoing()
        if self._transport.is_closing():
            return
        if until_ns and self._clock.now_ns() > until_ns:
            self._owner.on_expired(self, messages)
            self.abort()
            return
        if not self._write_at_once(buffers):
            self._transport.writelines(buffers)
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes > self._unsent_limit:
            what = "what it is sent" if self._is_server else "its answers"
            self._owner.on_refused(self, f"it does not take {what}: {unsent_bytes} bytes wait")
            self.abort()

    def _write_at_once(self, buffers: list[Any]) -> bool:
        """Give the kernel what it takes, without the transport's detour; True if that was all."""
        if len(buffers) > BUFFERS_MAX or self._transport.get_write_buffer_size():
            return False
        try:
            sent = os.writev(self.descriptor, buffers)
        except OSError:  # the transport will find out what it is
            return False
        while buffers and sent >= (size := memoryview(buffers[0]).nbytes):
            sent -= size
            del buffers[0]
        if sent:
            buffers[0] = memoryview(buffers[0])[sent:]
        return not buffers

    def refuse(self, why: str) -> None:
        """Tell the peer why, and finish."""
        self.send(Refuse(why[:MAX_REFUSAL_CHARS]))
        self.finish()

    def finish(self) -> None:
        """Close once the peer has had a chance to read everything sent so far."""
        if self._finishing:
            return
        self.flush()
        self._finishing = True
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._transport.write_eof()
        self._be_patient(self._limits.close_grace_s)

    def abort(self) -> None:
        """Close at once."""
        self._finishing = True
        self._forget_outgoing()
        self._transport.abort()

    # ----------------------------------------------------------------------- for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(
            self._limits.high_water_bytes, self._limits.low_water_bytes
        )
        self.remote = _remote_name(transport)
        silence_s = self._limits.server_silence_s if self._is_server else 0
        sock = transport.get_extra_info("socket")
        self.descriptor = sock.fileno()
        if sock.family in _TCP:
            self._sock = sock
        _configure(sock, silence_s)
        self._be_patient(self._limits.greeting_timeout_s)
        self._owner.on_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _WASTE if self._finishing else self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._finishing:
            return
        try:
            if self._reader.received_whole(nbytes, self._take):
                return
            messages = self._reader.received(nbytes)
            if self._reader.filling and not messages:
                messages = self._read_on()
            if not self._reader.filling:
                self._is_new = True
            self._set_low_water()
        except WireError as error:
            self._refuse_peer(str(error))
            return
        except MemoryError:
            self._refuse_peer("no memory for a frame of this size: send smaller ones, or later")
            return
        if messages:
            if not self.greeted:
                self.greeted = True
                self._stop_waiting()
            self._owner.on_messages(self, messages)

    def _read_on(self) -> list[Message]:
        """What has arrived of all arrays of a frame, without the transport's turn for each."""
        reader = self._reader
        while reader.filling:
            request = reader.request
            if request is not None and self._is_new:
                self._is_new = False  # who is slow is waited for once, as others wait meanwhile
                left_bytes = sum([view.nbytes for view in reader.get_targets()])
                received = self._owner.received_push(self, request, left_bytes)
                if received is not None:
                    count, is_over = received
                    self._low_water = 1
                    messages = reader.received(count)
                    if is_over or messages:
                        return [] if is_over else messages
            try:
                count = os.readv(self.descriptor, reader.get_targets())
            except OSError:  # nothing is there, or the transport will find out what it is
                return []
            if count == 0:
                return []
            if messages := reader.received(count):
                return messages
        return []

    def _set_low_water(self) -> None:
        """While a large array is received, wake up for much of it: not for each segment.

        It is never more than what is still to come of the array, so the last of it wakes us up.
        """
        left_bytes = self._reader.left_bytes
        low_water = min(left_bytes, LOW_WATER_BYTES) if left_bytes >= LARGE_BYTES else 1
        if low_water != self._low_water and self._sock is not None:
            self._low_water = low_water
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def _take(
        self, scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int
    ) -> bool:
        return self._owner.answered(self, scratch, lo, hi, (meta_limit, payload_limit))

    def eof_received(self) -> bool:
        if not self._finishing:
            self._finishing = True
            self._be_patient(self._limits.close_grace_s)
        return False  # the transport closes once its buffer is written

    def pause_writing(self) -> None:
        """Who asks has to take the answers before it may ask for more.

        Where we are the ones who ask, reading goes on: two ends that both waited for the other to
        read would wait for ever.
        """
        if not self._finishing and not self._is_server:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finishing = True
        self._stop_waiting()
        self._forget_outgoing()
        self._owner.on_lost(self)

    def _forget_outgoing(self) -> None:
        self._outgoing = []
        self._outgoing_bytes = self._outgoing_messages = self._until_ns = 0

    # ------------------------------------------------------------------------------- patience

    def _be_patient(self, seconds: float) -> None:
        self._stop_waiting()
        self._patience = asyncio.get_running_loop().call_later(seconds, self._on_patience_lost)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _on_patience_lost(self) -> None:
        if self._finishing:
            self._transport.abort()
        else:
            seconds = self._limits.greeting_timeout_s
            self._refuse_peer(f"no whole greeting within {seconds:g} s: connect again")

    def _refuse_peer(self, why: str) -> None:
        self._owner.on_refused(self, why)
        self.refuse(why)


def _remote_name(transport: asyncio.Transport) -> str:
    peername = transport.get_extra_info("peername")
    if isinstance(peername, tuple):
        return f"{peername[0]}:{peername[1]}"
    return "unix socket"


def _configure(sock: Any, silence_s: float) -> None:
    """No delay for small answers; peers whose host vanished are noticed some day.

    With `silence_s`, those that leave something unacknowledged are noticed by then.
    """
    if sock is not None and sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
    if sock is None or sock.family not in _TCP:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if silence_s and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))

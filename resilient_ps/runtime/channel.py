"""A client's connection to one server.

The socket blocks, but never for longer than `SEND_PATIENCE_S` or `RECEIVE_PATIENCE_S`: large arrays
move in few system calls, and both directions are served in turn when one of them is stuck.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from resilient_ps.calls import SILENCE_NS, Folded
from resilient_ps.engine import native
from resilient_ps.errors import Unavailable
from resilient_ps.messages import Hello, Message
from resilient_ps.quick_calls import QuickCall
from resilient_ps.routing import Address
from resilient_ps.wire import FrameReader, Place, TakeWhole, WireError, encode

CONNECT_TIMEOUT_S = 1.0
SEND_PATIENCE_S = 0.1
RECEIVE_PATIENCE_S = 0.1
STALLED_NS = SILENCE_NS  # an answer that has begun: whoever asked should look elsewhere then
WAIT_FOR_ALL_BYTES = 64 * 1024  # arrays from this size on are received in one call
BUFFERS_MAX = 1_000  # of one gathering write; Linux allows 1,024
HOSTNAME = socket.gethostname()


class ChannelRefused(Unavailable):
    """Nobody listens at the address."""


class Channel:
    """An open connection. `peer` is the name that the session gives to the server."""

    def __init__(self, peer: str, address: Address, hello: Hello, place: Place) -> None:
        self.peer = peer
        self.reader = FrameReader(place=place)
        self.sock = _dial(address)
        self.sock.settimeout(None)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_PATIENCE_S))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(RECEIVE_PATIENCE_S))
        self._unsent: list[Any] = []
        self.send(hello)

    def fileno(self) -> int:
        """For poll."""
        return self.sock.fileno()

    @property
    def sending(self) -> bool:
        """Is there something that the kernel has not taken yet?"""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Queue a message and hand over what the kernel takes. Raises `OSError`."""
        self.send_bytes(encode(message))

    def send_bytes(self, buffers: list[Any]) -> None:
        """Queue the bytes of a message and hand over what the kernel takes. Raises `OSError`."""
        stuck = self.sending
        self._unsent += buffers
        if not stuck:  # else it leaves when the kernel takes something again
            self.flush()

    def send_call(self, call: QuickCall) -> None:
        """Send a request, while nothing is being sent. Raises `OSError`."""
        if len(call.buffers) > 1:
            self.send_bytes(call.buffers)
            return
        frame = call.frame
        sent = call.fill(self.sock.fileno())
        if not sent:
            try:
                sent = self.sock.send(frame)
            except BlockingIOError:
                sent = 0
        if sent < frame.nbytes:
            self.send_bytes([frame[sent:]])

    def flush(self) -> None:
        """Hand over more of what is queued. Raises `OSError`."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self.sock.sendmsg(unsent[:BUFFERS_MAX])
            except BlockingIOError:
                return
            done = 0
            for buffer in unsent:
                if sent < len(buffer):
                    break
                sent -= len(buffer)
                done += 1
            del unsent[:done]
            if sent:
                unsent[0] = memoryview(unsent[0])[sent:]

    def receive(self, *, wait: bool = False, take: TakeWhole | None = None) -> list[Message]:
        """What has arrived, or with `wait` arrives within `RECEIVE_PATIENCE_S`.

        `take` is offered it first: see `FrameReader.received_whole`. Raises `OSError` when the
        connection is over, `WireError` for junk.
        """
        buffer = self.reader.get_buffer()
        flags = 0 if wait else socket.MSG_DONTWAIT
        if self.reader.filling and buffer.nbytes >= WAIT_FOR_ALL_BYTES:
            flags = socket.MSG_WAITALL
        try:
            count = self.sock.recv_into(buffer, 0, flags)
        except BlockingIOError:
            return []
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        if take is not None and self.reader.received_whole(count, take):
            return []
        return self.reader.received(count)

    def receive_answer(self, call: Folded) -> list[Message]:
        """As `receive`, waiting, but the answer that `call` hopes for is taken in as it comes.

        Once it has begun to come, its end is waited for: but not if nothing comes for `STALLED_NS`.
        """
        reader = self.reader
        scratch = reader.empty_scratch()
        if scratch is None:
            return self.receive(wait=True, take=call.take)
        limits = reader.limits
        count = native.receive(
            self.sock.fileno(),
            scratch,
            limits.meta_bytes,
            limits.payload_bytes,
            STALLED_NS,
            *call.hoped,
        )
        call.over = count == 0
        return reader.received(count) if count > 0 else []

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))


def _dial(address: Address) -> socket.socket:
    """Through the Unix socket on the server's own host, else through TCP. Raises `Unavailable`."""
    where = f"{address.host}:{address.port}"
    try:
        if address.unix_path and address.hostname == HOSTNAME and os.path.exists(address.unix_path):
            where = address.unix_path
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(CONNECT_TIMEOUT_S)
            sock.connect(address.unix_path)
            return sock
        sock = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except ConnectionRefusedError as error:
        raise ChannelRefused(f"nobody listens at {where}") from error
    except OSError as error:
        raise Unavailable(f"no connection to {where}: {error}") from error
    return sock


__all__ = ["Channel", "ChannelRefused", "WireError"]

"""A watch on etcd that survives its members: nothing lost, nothing twice, in order.

One thread per watch follows a stream at one member and moves to another when the stream ends, when
the member has no leader (`hasleader`), or when it hangs. gRPC does not notice a hung member by
itself, so after a second of silence the stream asks for progress, and is given up when that stays
unanswered. The answers to it only prove life; their revisions are not used, because etcd before
3.4.25 and 3.5.8 may send them ahead of events.

A stream resumes at the last revision that was seen, and what is known is dropped. Resuming one
later would be enough but for a fault of etcd (before 3.5.22, and in 3.4): a watch that starts
exactly at the compacted revision misses the deletions of that revision and says nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.kv import OnWatch, ReadResult, Reset, WatchBatch
from resilient_ps.coordinator.runtime.codec import decode_events, encode_range
from resilient_ps.coordinator.runtime.endpoints import Endpoint, Endpoints
from resilient_ps.coordinator.runtime.login import Login
from resilient_ps.coordinator.runtime.pin import Pin
from resilient_ps.coordinator.runtime.refusals import describe
from resilient_ps.errors import ResilientPsError

LOG = logging.getLogger(__name__)

PROBE_AFTER_S = 1.0
SILENCE_LIMIT_S = 2.5
_LOGIN_TIMEOUT_S = 1.0
_PAUSE_S = 0.1
_JOIN_S = 5.0


class _StreamEnded(Exception):
    """The member ended the stream, and says why."""


class _Stream:
    """One stream at one member; `requests` runs on gRPC's thread and watches over its life."""

    def __init__(self, create: Any, silence_limit_s: float) -> None:
        self.call: Any = None
        self.hung = False
        self._create = create
        self._silence_limit_s = silence_limit_s
        self._probe_after_s = min(PROBE_AFTER_S, silence_limit_s / 2)
        self._ended = threading.Event()
        self._heard_s = time.monotonic()
        self._is_delivering = False

    def requests(self) -> Iterator[Any]:
        yield rpc.WatchRequest(create_request=self._create)
        while not self._ended.wait(self._probe_after_s):
            silent_s = time.monotonic() - self._heard_s
            if self._is_delivering or silent_s < self._probe_after_s:
                continue
            if silent_s >= self._silence_limit_s:
                self.hung = True
                self.end()
                return
            yield rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())

    def responses(self) -> Iterator[Any]:
        for response in self.call:
            # A slow consumer is not a silent member.
            self._is_delivering = True
            yield response
            self._heard_s = time.monotonic()
            self._is_delivering = False

    def end(self) -> None:
        self._ended.set()
        if self.call is not None:
            self.call.cancel()


class Watcher:
    """Delivers the changes under `prefix` from `next_revision` on to `on_event`, on its thread.

    `read` is a linearizable read of a prefix, used when the history was compacted.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        login: Login,
        pin: Pin,
        read: Callable[[bytes], ReadResult],
        *,
        prefix: bytes,
        next_revision: int,
        on_event: OnWatch,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        self._endpoints = endpoints
        self._login = login
        self._pin = pin
        self._read = read
        self._prefix = prefix
        self._next_revision = next_revision
        self._on_event = on_event
        self._silence_limit_s = silence_limit_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self.member: str = ""
        """The address of the member that is being watched, for diagnosis."""
        self._thread = threading.Thread(
            target=self._run, name=f"etcd-watch-{prefix.decode(errors='replace')}", daemon=True
        )
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            member = self._endpoints.pick()
            try:
                self._follow(member)
                continue
            except (_StreamEnded, ResilientPsError, ValueError) as error:
                reason = str(error)
            except grpc.RpcError as error:
                reason = describe(error)
            if self._closed.is_set():
                return
            LOG.warning(
                "watch of %r at etcd %s ended (%s); resuming after revision %d",
                self._prefix,
                member.address,
                reason,
                self._next_revision - 1,
            )
            self._endpoints.failed(member)
            self._login.forget()  # an old token is refused in the same way as a missing right
            while not self._endpoints.has_fresh() and not self._closed.wait(_PAUSE_S):
                pass

    def _follow(self, member: Endpoint) -> None:
        """Returns after a reset or when closed; raises when the stream at this member failed."""
        metadata = self._login.metadata(member, _LOGIN_TIMEOUT_S)
        stream = self._open(member, metadata)
        try:
            for response in stream.responses():
                self._pin.check(response.header, member.address)
                if response.compact_revision:
                    return self._reset()
                if response.canceled:
                    raise _StreamEnded(response.cancel_reason or "cancelled by the member")
                self._endpoints.worked(member)
                self._deliver_new(response.events)
        except grpc.RpcError as error:
            if stream.hung:
                raise _StreamEnded(f"silent for {self._silence_limit_s:g} s") from None
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return self._reset()  # the history is too large for one message; the state may fit
            raise
        finally:
            stream.end()
        raise _StreamEnded("the member closed the stream")

    def _open(self, member: Endpoint, metadata: Any) -> _Stream:
        key, range_end = encode_range(self._prefix, prefix=True)
        create = rpc.WatchCreateRequest(
            key=key, range_end=range_end, start_revision=max(1, self._next_revision - 1)
        )
        stream = _Stream(create, self._silence_limit_s)
        stream.call = member.watch.Watch(stream.requests(), metadata=metadata)
        self.member = member.address
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.end()
        return stream

    def _deliver_new(self, events: Any) -> None:
        for batch in decode_events(events):
            if batch.revision >= self._next_revision:
                self._next_revision = batch.revision + 1
                self._deliver(batch)

    def _reset(self) -> None:
        found = self._read(self._prefix)
        LOG.warning("watch of %r: history compacted, read anew at %d", self._prefix, found.revision)
        self._next_revision = found.revision + 1
        self._deliver(Reset(found.items, found.revision))

    def _deliver(self, change: WatchBatch | Reset) -> None:
        if self._closed.is_set():
            return
        try:
            self._on_event(change)
        except Exception:
            LOG.exception("the consumer of the watch of %r failed; going on", self._prefix)

"""The blocking `Kv` interface over the in-memory model: for tests, and for one-process use.

One thread delivers to all watches and lets leases expire. A clock that does not run by itself (a
test's) needs a `wake()` after it was moved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from resilient_ps.coordinator.kv import (
    DEFAULT_DEADLINE_S,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    OnWatch,
    Read,
    ReadResult,
    Reset,
    Txn,
    TxnResult,
    WatchBatch,
)
from resilient_ps.coordinator.memory import NS_PER_S, Compacted, MemoryKv
from resilient_ps.coordinator.repeats import check_nonce
from resilient_ps.errors import BadInput, Unavailable

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_JOIN_S = 5.0
_LONGEST_WAIT_S = 3600.0


class MemoryWatch:
    """A watch on the model. `close` waits for a callback that is running."""

    def __init__(self, prefix: bytes, number: int, on_event: OnWatch, client: MemoryClient) -> None:
        self.prefix = prefix
        self.number = number
        self.is_closed = False
        self._on_event = on_event
        self._client = client
        self._delivering = threading.RLock()

    def deliver(self, change: WatchBatch | Reset) -> None:
        with self._delivering:
            if self.is_closed:
                return
            try:
                self._on_event(change)
            except Exception:
                LOG.exception("the consumer of the watch of %r failed; going on", self.prefix)

    def close(self) -> None:
        self.is_closed = True
        if self._delivering.acquire(timeout=_JOIN_S):
            self._delivering.release()
        self._client.forget(self)


class MemoryClient:
    """`Kv` over a `MemoryKv`. `clock_ns` gives monotonic nanoseconds."""

    def __init__(self, store: MemoryKv, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._changed = threading.Condition()
        self._watches: list[MemoryWatch] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="memory-kv", daemon=True)
        self._thread.start()

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        if nonce:
            check_nonce(txn, nonce)
        return self._with_store(lambda now_ns: self._store.apply(txn, now_ns))

    def read(
        self,
        key: bytes,
        *,
        prefix: bool = False,
        limit: int = 0,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> ReadResult:
        request = Read(key, prefix=prefix, limit=limit)
        return self._with_store(lambda now_ns: self._store.apply(request, now_ns))

    def grant(self, ttl_s: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Leased:
        request = LeaseGrant(ttl_s)
        return self._with_store(lambda now_ns: self._store.apply(request, now_ns))

    def refresh(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        request = LeaseRefresh(lease)
        return self._with_store(lambda now_ns: self._store.apply(request, now_ns)).ttl_s

    def revoke(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        self._with_store(lambda now_ns: self._store.apply(LeaseRevoke(lease), now_ns))

    def watch(self, prefix: bytes, from_revision: int, on_event: OnWatch) -> MemoryWatch:
        if from_revision < 0:
            raise BadInput(f"watch of {prefix!r} from revision {from_revision}; use 0 for now")

        def start(now_ns: int) -> MemoryWatch:
            number = self._store.watch(prefix, from_revision)
            watch = MemoryWatch(prefix, number, on_event, self)
            self._watches.append(watch)
            return watch

        return self._with_store(start)

    def identity(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        return self._store.cluster_id

    def compact(self, revision: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        self._with_store(lambda now_ns: self._store.compact(revision))

    def wake(self) -> None:
        """The clock was moved: look at it again."""
        with self._changed:
            self._changed.notify_all()

    def forget(self, watch: MemoryWatch) -> None:
        """Called by a watch that was closed."""
        with self._changed:
            self._store.unwatch(watch.number)
            self._watches = [one for one in self._watches if one is not watch]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            watches = list(self._watches)
            self._changed.notify_all()
        for watch in watches:
            watch.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _with_store(self, act: Callable[[int], T]) -> T:
        with self._changed:
            if self._is_closed:
                raise Unavailable("this in-memory store was closed: open another")
            try:
                return act(self._clock_ns())
            finally:
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                self._store.expire(self._clock_ns())
                due = [(watch, self._due(watch)) for watch in self._watches]
                due = [(watch, changes) for watch, changes in due if changes]
                if not due:
                    self._changed.wait(self._until_expiry_s())
            for watch, changes in due:
                for change in changes:
                    watch.deliver(change)

    def _due(self, watch: MemoryWatch) -> tuple[WatchBatch | Reset, ...]:
        polled = self._store.poll(watch.number)
        if not isinstance(polled, Compacted):
            return polled
        found = self._store.apply(Read(watch.prefix, prefix=True), self._clock_ns())
        watch.number = self._store.watch(watch.prefix, found.revision + 1)
        return (Reset(found.items, found.revision),)

    def _until_expiry_s(self) -> float:
        expiry_ns = self._store.next_expiry_ns()
        if expiry_ns is None:
            return _LONGEST_WAIT_S
        return min(max(expiry_ns - self._clock_ns(), 0) / NS_PER_S, _LONGEST_WAIT_S)

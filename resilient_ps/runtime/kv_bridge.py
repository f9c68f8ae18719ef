"""The blocking coordination client, for a host whose loop must never block.

Calls wait in two bounded queues with threads of their own: lease refreshes in one, so that they
stand behind no slow transaction; everything else in the other. Answers and changes return into the
loop as events. Changes that the loop has not taken yet are bounded too: beyond that, the client's
watch thread waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from resilient_ps.coordinator.kv import (
    Kv,
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    LeaseRefresh,
    Reset,
    WatchBatch,
    WatchHandle,
)
from resilient_ps.errors import BadInput, Bug, ResilientPsError, Unavailable
from resilient_ps.runtime.kv_calls import outcome
from resilient_ps.runtime.lane import Lane
from resilient_ps.runtime.logs import Logger

MAX_WAITING_CALLS = 1024
MAX_WAITING_CHANGES = 1024
MAX_WATCHES = 64
CALL_THREADS = 4
CALL_DEADLINE_S = 5.0
REFRESH_DEADLINE_S = 1.0
_LOOK_S = 0.1  # how often a waiting watch thread looks whether the bridge was closed

KvEvent = KvAnswered | KvFailed | KvChanged | KvReset
Post = Callable[[KvEvent], None]


class KvBridge:
    """Performs `KvCall` and `KvWatch`; `post` gets the events in the loop's thread.

    Made and used in one thread, except for what the bridge's own threads do. `kv` stays the
    caller's, who closes it after the bridge.
    """

    def __init__(self, kv: Kv | None, post: Post, log: Logger) -> None:
        self._kv = kv
        self._post = post
        self._log = log
        self._closed = threading.Event()
        self._calls = Lane("kv", threads=CALL_THREADS, waiting=MAX_WAITING_CALLS)
        self._refreshes = Lane("kv-lease", threads=1, waiting=MAX_WAITING_CALLS)
        self._changes = threading.Semaphore(MAX_WAITING_CHANGES)
        self._watches: dict[int, WatchHandle] = {}
        self._watch_count = 0
        self._under_way = 0  # calls whose outcome has not come back
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """To be called in the loop's thread, before the first call."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        """Are there calls under way?"""
        return self._under_way > 0

    def call(self, effect: KvCall) -> None:
        """Begin a call. Its outcome comes as `KvAnswered` or `KvFailed`, never before this ends."""
        refresh = isinstance(effect.request, LeaseRefresh)
        self._submit(self._refreshes if refresh else self._calls, effect.ref, self._call, effect)

    def watch(self, effect: KvWatch) -> None:
        """Begin a watch; it lasts until the bridge is closed."""
        self._watch_count += 1
        if self._watch_count > MAX_WATCHES:
            error = Bug(f"more than {MAX_WATCHES} watches")
            self._loop.call_soon(self._post, KvFailed(effect.ref, error, unknown=False))
            return
        self._submit(self._calls, effect.ref, self._watch, effect)

    def close(self) -> None:
        """End the watches and drop what waits. Calls under way end by their own deadlines."""
        self._closed.set()
        self._calls.close()
        self._refreshes.close()
        for handle in list(self._watches.values()):
            handle.close()

    # --------------------------------------------------------------------------- in the loop

    def _submit(
        self, lane: Lane, ref: int, work: Callable[..., None], effect: KvCall | KvWatch
    ) -> None:
        error: ResilientPsError | None = None
        if self._kv is None:
            error = BadInput("this process was started without a coordination store")
        elif not lane.put(lambda: work(effect)):
            error = Unavailable(f"{MAX_WAITING_CALLS} calls to the coordination store wait already")
        if error is not None:
            self._loop.call_soon(self._post, KvFailed(ref, error, unknown=False))
        elif isinstance(effect, KvCall):
            self._under_way += 1

    def _returned(self, event: KvEvent) -> None:
        self._under_way -= 1
        self._post(event)

    def _taken(self, event: KvEvent) -> None:
        self._changes.release()
        if not self._closed.is_set():
            self._post(event)

    # --------------------------------------------------------------------- in bridge threads

    def _call(self, effect: KvCall) -> None:
        self._into_loop(self._returned, self._outcome(effect))

    def _outcome(self, effect: KvCall) -> KvEvent:
        assert self._kv is not None
        refresh = isinstance(effect.request, LeaseRefresh)
        try:
            return outcome(self._kv, effect, REFRESH_DEADLINE_S if refresh else CALL_DEADLINE_S)
        except Exception as error:
            self._log.error("bug: a coordination call failed", error=repr(error))
            bug = Bug(f"the coordination client failed with {error!r}: please report it")
            return KvFailed(effect.ref, bug, unknown=True)

    def _watch(self, effect: KvWatch) -> None:
        assert self._kv is not None

        def on_event(change: WatchBatch | Reset) -> None:
            self._changed(effect.ref, change)

        try:
            handle = self._kv.watch(effect.prefix, effect.from_revision, on_event)
        except ResilientPsError as error:
            self._report(KvFailed(effect.ref, error, unknown=False))
            return
        self._watches[effect.ref] = handle
        if self._closed.is_set():
            handle.close()

    def _changed(self, ref: int, change: WatchBatch | Reset) -> None:
        while not self._changes.acquire(timeout=_LOOK_S):
            if self._closed.is_set():
                return
        if isinstance(change, Reset):
            self._into_loop(self._taken, KvReset(ref, change.items, change.revision))
        else:
            self._into_loop(self._taken, KvChanged(ref, change))

    def _report(self, event: KvEvent) -> None:
        self._into_loop(self._post, event)

    def _into_loop(self, take: Post, event: KvEvent) -> None:
        if self._closed.is_set():
            return
        try:
            self._loop.call_soon_threadsafe(take, event)
        except RuntimeError:
            if not self._closed.is_set():  # the loop may end while we look
                raise

"""The blocking object store, for a host whose loop must never block.

Calls wait in a bounded queue with threads of their own: encoding, hashing, sending and decoding
happen there. What became of them returns into the loop as events. A store that hangs holds these
threads until its calls' own deadlines, and nothing else: the threads are daemons, and closing the
bridge waits for none of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from resilient_ps.errors import BadInput, Bug, ResilientPsError, RetryLater
from resilient_ps.runtime.lane import Lane
from resilient_ps.runtime.logs import Logger
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobRequest,
    Blobs,
    GetBlob,
    ListBlobs,
    StoreUnavailable,
)

MAX_WAITING_BLOB_CALLS = 1024
BLOB_THREADS = 4

BlobEvent = BlobAnswered | BlobFailed
Post = Callable[[BlobEvent], None]


class BlobBridge:
    """Performs `BlobCall`; `post` gets the events in the loop's thread.

    Made and used in one thread, except for what the bridge's own threads do. `blobs` stays the
    caller's, who closes it after the bridge.
    """

    def __init__(
        self, blobs: Blobs | None, post: Post, log: Logger, *, threads: int = BLOB_THREADS
    ) -> None:
        self._blobs = blobs
        self._post = post
        self._log = log
        self._closed = threading.Event()
        self._lane = Lane("blobs", threads=threads, waiting=MAX_WAITING_BLOB_CALLS)
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """To be called in the loop's thread, before the first call."""
        self._loop = asyncio.get_running_loop()

    def call(self, effect: BlobCall) -> None:
        """Begin a call. Its outcome comes as an event, never before this ends."""
        error: ResilientPsError | None = None
        if self._blobs is None:
            error = BadInput(
                "this process was started without an object store: name one with --store"
            )
        elif not self._lane.put(lambda: self._call(effect)):
            error = StoreUnavailable(
                f"{MAX_WAITING_BLOB_CALLS} calls to the object store wait already"
            )
        if error is not None:
            self._loop.call_soon(self._post, BlobFailed(effect.ref, error))

    def close(self) -> None:
        """Drop what waits. Calls under way end by their own deadlines; nobody hears of them."""
        self._closed.set()
        self._lane.close()

    # --------------------------------------------------------------------- in bridge threads

    def _call(self, effect: BlobCall) -> None:
        if self._closed.is_set():
            return
        event = self._outcome(effect)
        if self._closed.is_set():
            return
        try:
            self._loop.call_soon_threadsafe(self._take, event)
        except RuntimeError:
            if not self._closed.is_set():  # the loop may end while we look
                raise

    def _take(self, event: BlobEvent) -> None:
        if not self._closed.is_set():
            self._post(event)

    def _outcome(self, effect: BlobCall) -> BlobEvent:
        assert self._blobs is not None
        try:
            return BlobAnswered(effect.ref, self._blobs.do(effect.request))
        except ResilientPsError as error:
            return BlobFailed(effect.ref, error, unknown=is_unknown(effect.request, error))
        except MemoryError:
            why = StoreUnavailable("no memory left for a call to the object store")
            return BlobFailed(effect.ref, why, unknown=is_unknown(effect.request, why))
        except Exception as error:
            self._log.error("bug: a call to the object store failed", error=repr(error))
            bug = Bug(f"the object store's client failed with {error!r}: please report it")
            return BlobFailed(effect.ref, bug, unknown=True)


def is_unknown(request: BlobRequest, error: ResilientPsError) -> bool:
    """Whether a request that failed so may have changed the store."""
    return isinstance(error, RetryLater) and not isinstance(request, GetBlob | ListBlobs)

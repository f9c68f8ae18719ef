"""Reads from the object store: several at a time, handed on in order, tried again for ever.

At most so many calls are under way, and what is under way or waits to be taken holds at most so
many bytes (one call is always allowed). While the store cannot be reached, or refuses for a reason
that its operator can mend, calls are tried again with growing pauses. What no attempt will change,
a missing or a damaged object, is `failed`: nothing more is read then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from resilient_ps.checkpoints.refs import Refs
from resilient_ps.errors import ResilientPsError, RetryLater
from resilient_ps.machine import Effect, SetTimer
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    GetBlob,
    StoreRefused,
)

CALLS_MAX = 8
BYTES_MAX = 96 << 20
PAUSE_FIRST_NS = 250_000_000
PAUSE_MOST_NS = 10_000_000_000


class Wanted(NamedTuple):
    """A read, and the bytes that it will hold in memory."""

    request: GetBlob
    nbytes: int


class Fetching:
    """See the module. `timer`: the name of the timer to call `advance` at."""

    def __init__(
        self,
        refs: Refs,
        wanted: Sequence[Wanted],
        timer: str,
        *,
        calls_max: int = CALLS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.failed: ResilientPsError | None = None
        self.failed_at = -1  # which one
        self.trouble = ""  # why the store cannot be read at the moment
        self.taken = 0
        self._refs = refs
        self._wanted = wanted
        self._timer = timer
        self._calls_max, self._bytes_max = calls_max, bytes_max
        self._next = 0
        self._again: list[int] = []
        self._by_ref: dict[int, int] = {}
        self._arrived: dict[int, BlobGot] = {}
        self._held_bytes = 0
        self._pause_ns = PAUSE_FIRST_NS
        self._not_before_ns = 0

    @property
    def done(self) -> bool:
        """Has everything been taken?"""
        return self.taken == len(self._wanted)

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call under way?"""
        return ref in self._by_ref

    def advance(self, now_ns: int) -> list[Effect]:
        """Start what may be started."""
        if self.failed is not None:
            return []
        if now_ns < self._not_before_ns:
            return [SetTimer(self._timer, self._not_before_ns)]
        calls: list[Effect] = []
        while len(self._by_ref) < self._calls_max:
            place = self._again[0] if self._again else self._next
            if place == len(self._wanted):
                break
            nbytes = self._wanted[place].nbytes
            if not self._again and self._held_bytes and not self._has_room(nbytes):
                break
            if self._again:
                self._again.pop(0)
            else:
                self._next += 1
                self._held_bytes += nbytes
            ref = self._refs.draw()
            self._by_ref[ref] = place
            calls.append(BlobCall(ref, self._wanted[place].request))
        return calls

    def _has_room(self, nbytes: int) -> bool:
        return self._held_bytes + nbytes <= self._bytes_max

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """What became of a call of ours."""
        place = self._by_ref.pop(event.ref)
        if isinstance(event, BlobFailed):
            return self._on_failed(place, event.error, now_ns)
        assert isinstance(event.result, BlobGot)
        self._arrived[place] = event.result
        self.trouble, self._pause_ns = "", PAUSE_FIRST_NS
        return self.advance(now_ns)

    def _on_failed(self, place: int, error: ResilientPsError, now_ns: int) -> list[Effect]:
        if not may_mend(error):
            if self.failed is None:
                self.failed, self.failed_at = error, place
            return []
        self.trouble = str(error)
        self._again = sorted([*self._again, place])
        if now_ns >= self._not_before_ns:
            self._not_before_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, PAUSE_MOST_NS)
        return [SetTimer(self._timer, self._not_before_ns)]

    def take(self) -> BlobGot | None:
        """The next one in order, once, if it is here; call `advance` then."""
        got = self._arrived.pop(self.taken, None)
        if got is not None:
            self._held_bytes -= self._wanted[self.taken].nbytes
            self.taken += 1
        return got


def may_mend(error: ResilientPsError) -> bool:
    """Is it worth another attempt, now or when somebody has mended the store or the settings?"""
    if isinstance(error, StoreRefused):
        return error.why != "request"
    return isinstance(error, RetryLater)

"""How hard a server works on a checkpoint: gently while pushes come in, else as fast as it can.

What is uploaded takes processors and memory from whoever trains. So while pushes come in, one
object is written after the other, with a rest behind each, so that `share` of the time is spent on
writing. It must not be the reason for a checkpoint to fail, or to come too late: what is kept aside
for its images grows meanwhile, and the next one may be due. So there are no rests any more when
more than a small part of what is allowed is kept, when half of the interval is over, and in an
attempt that follows a failed one.

Invariants: nobody rests while nothing is pushed, nor for longer than `REST_MOST_NS`, nor at all
with a share of 1.
"""

from __future__ import annotations

SPAN_NS = 100_000_000  # what came in is counted in spans of at least this
BUSY_PER_S = 20  # so many entries in a second, of all shards, and pushes are coming in
REST_MOST_NS = 2_000_000_000  # where the store is slow, an upload is in nobody's way
KEPT_SHARE_MOST = 0.125  # of what may be kept aside
GENTLE_PART = 0.5  # of the interval between checkpoints
SECOND_NS = 1_000_000_000


class Pace:
    """See the module. `share`: above 0; 1 is as fast as possible whatever comes in. `every_s`: the
    seconds after which the next checkpoint is due; 0: nobody knows."""

    def __init__(self, share: float, every_s: float = 0.0) -> None:
        self._share = share
        self._most_ns = int(every_s * GENTLE_PART * SECOND_NS)
        self._hurried = False
        self._begun_ns = 0
        self._busy = False
        self._entries = 0
        self._counted_ns = 0
        self._rested_ns = 0

    def begin(self, entries: int, now_ns: int, *, hurried: bool = False) -> None:
        """The first image of a checkpoint is there. `entries`: how many the server has applied, in
        all its shards. `hurried`: an attempt has failed before."""
        self._hurried, self._begun_ns = hurried, now_ns
        self._busy = False
        self._entries, self._counted_ns = entries, now_ns

    def count(self, entries: int, now_ns: int) -> None:
        """So many it has applied by now."""
        span_ns = now_ns - self._counted_ns
        if span_ns >= SPAN_NS:
            self._busy = (entries - self._entries) * SECOND_NS >= BUSY_PER_S * span_ns
            self._entries, self._counted_ns = entries, now_ns

    def is_gentle(self, kept_share: float, now_ns: int) -> bool:
        """Objects one after the other, with rests? `kept_share`: of what may be kept aside."""
        late = self._hurried or 0 < self._most_ns <= now_ns - self._begun_ns
        return self._busy and not late and self._share < 1 and kept_share <= KEPT_SHARE_MOST

    def rest(self, lasted_ns: int, now_ns: int) -> None:
        """An object is written, which has lasted so long."""
        rest_ns = int(lasted_ns * (1 / self._share - 1))
        self._rested_ns = now_ns + min(rest_ns, REST_MOST_NS)

    def has_rested(self, now_ns: int) -> bool:
        """May one who is gentle begin with the next object?"""
        return now_ns >= self._rested_ns

"""Lines of a log that say again what was said a moment ago.

While etcd is away a server tries again several times a second, and each try fails for the same
reason. One line in ten seconds tells that as well, and how many more there were.
"""

from __future__ import annotations

import threading

from xxhash import xxh3_64_intdigest

from resilient_ps.runtime.clock import NS_PER_S, Clock, MonotonicClock

QUIET_NS = 10 * NS_PER_S
MAX_LINES = 256
"""How many different lines are remembered; the one that was said longest ago goes first."""


class Repeats:
    """Remembers what was said, and when. Safe to use from several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._said: dict[int, tuple[int, int]] = {}  # when, and how often it was withheld since
        self._lock = threading.Lock()

    def withheld(self, said: str) -> int | None:
        """How often this was withheld since it was said last; None: withhold it now, too."""
        now_ns = self._clock.now_ns()
        key = xxh3_64_intdigest(said.encode(errors="replace"))  # peers may send long ones
        with self._lock:
            said_ns, count = self._said.get(key, (now_ns - QUIET_NS, 0))
            if now_ns - said_ns < QUIET_NS:
                self._said[key] = (said_ns, count + 1)
                return None
            self._said.pop(key, None)
            if len(self._said) >= MAX_LINES:
                self._said.pop(next(iter(self._said)))
            self._said[key] = (now_ns, 0)
            return count

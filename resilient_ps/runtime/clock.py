"""The clocks of the real world: monotonic nanoseconds for machines, wall time for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Where a host takes `now_ns` from."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds from an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    """The operating system's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


def wall_time() -> str:
    """The time of day for log lines: ISO 8601, UTC, milliseconds. Nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

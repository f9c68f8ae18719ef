"""Counts of what was asked of a store: requests, retries, failures, bytes and seconds, by kind.

They cost nothing to keep; who wants them looks at a snapshot, or has them exported.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from resilient_ps.figures import Figure

KINDS = ("put", "get", "list", "delete", "sweep")
_TEXTS = {
    "requests": "Requests to the object store",
    "retries": "Attempts after the first one of a request",
    "failures": "Requests that failed after all attempts",
    "bytes_out": "Bytes of objects sent",
    "bytes_in": "Bytes of objects received",
    "seconds": "Seconds that requests took, in sum over all threads",
}


@dataclass(slots=True)
class Count:
    """Of one kind of request. `failures`: that failed for good; `retries`: attempts after the
    first."""

    requests: int = 0
    retries: int = 0
    failures: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0


class StoreMetrics:
    """For all threads that use a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {kind: Count() for kind in KINDS}
        self._last_failure = ""
        self._failures_in_a_row = 0

    def retried(self, kind: str) -> None:
        """Another attempt begins."""
        with self._lock:
            self._counts[kind].retries += 1

    def succeeded(self, kind: str, seconds: float, *, sent: int = 0, got: int = 0) -> None:
        """A request was carried out; `sent` and `got` are bytes of objects."""
        with self._lock:
            count = self._counts[kind]
            count.requests += 1
            count.seconds += seconds
            count.bytes_out += sent
            count.bytes_in += got
            self._failures_in_a_row = 0

    def failed(self, kind: str, seconds: float, why: str) -> None:
        """A request failed after all attempts. `why` is shown to people."""
        with self._lock:
            count = self._counts[kind]
            count.requests += 1
            count.failures += 1
            count.seconds += seconds
            self._last_failure = why
            self._failures_in_a_row += 1

    def answered(self, kind: str, seconds: float) -> None:
        """The store said no, as it should: no such object, or a condition that does not hold."""
        self.succeeded(kind, seconds)

    def counts(self) -> Mapping[str, Count]:
        """A copy, by kind of request."""
        with self._lock:
            return {kind: Count(**asdict(count)) for kind, count in self._counts.items()}

    def figures(self) -> list[Figure]:
        """For a metrics system."""
        with self._lock:
            row = float(self._failures_in_a_row)
        text = "Requests in a row that failed after all attempts: 0 when the store works"
        found = [Figure("resilient_ps_store_failures_in_a_row", row, text)]
        for kind, count in self.counts().items():
            for name, text in _TEXTS.items():
                found.append(
                    Figure(
                        f"resilient_ps_store_{name}_total",
                        float(getattr(count, name)),
                        text,
                        "counter",
                        (("kind", kind),),
                    )
                )
        return found

    def snapshot(self) -> dict[str, Any]:
        """As JSON values, for `status`; only kinds that there were requests of."""
        counts = {kind: asdict(count) for kind, count in self.counts().items() if count.requests}
        with self._lock:
            return {
                "failures_in_a_row": self._failures_in_a_row,
                "last_failure": self._last_failure,
                "requests": counts,
            }

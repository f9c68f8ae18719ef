"""A set whose least member is at hand: who has waited longest, which task comes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)
SLACK = 64  # entries of the heap that may be of removed members before it is built anew


class LeastFirst(Generic[K]):
    """Adding and discarding take O(log n). Members are ordered and hashable."""

    def __init__(self) -> None:
        self._members: set[K] = set()
        self._heap: list[K] = []  # all members, and some that were removed

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: K) -> bool:
        return key in self._members

    def add(self, key: K) -> None:
        """Take it in; it may be in already."""
        if key not in self._members:
            self._members.add(key)
            heappush(self._heap, key)

    def discard(self, key: K) -> None:
        """Take it out, if it is in."""
        self._members.discard(key)
        if len(self._heap) > 2 * len(self._members) + SLACK:
            self._heap = list(self._members)
            heapify(self._heap)

    def first(self) -> K | None:
        """The least member; None: there is none."""
        heap, members = self._heap, self._members
        while heap and heap[0] not in members:
            heappop(heap)
        return heap[0] if heap else None

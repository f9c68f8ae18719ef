"""What was known at a moment: means over events of a group that happened in a window before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Groups lie this many minutes apart on one line, so that one sorted array holds all of them
_GROUP_SPAN_MINUTES = 1 << 24


class Events:
    """Events of groups, each at a minute (0 .. 2**23) and with a value.

    Every question is about events *before* the moment asked about, never at it or after it.
    """

    def __init__(self, groups: Integers, minutes: Integers, values: Floats) -> None:
        places = groups * _GROUP_SPAN_MINUTES + minutes
        order = np.argsort(places, kind="stable")
        self._places = places[order]
        self._values = values[order]
        self._sums = np.concatenate(([0.0], np.cumsum(self._values)))

    def mean(self, groups: Integers, minutes: Integers, window_minutes: int) -> Floats:
        """Mean value in `[minute - window, minute)` of the group; NaN where nothing happened."""
        start, stop = self._bounds(groups, minutes, window_minutes)
        count = stop - start
        totals = self._sums[stop] - self._sums[start]
        return np.where(count > 0, totals / np.maximum(count, 1), np.nan)

    def count(self, groups: Integers, minutes: Integers, window_minutes: int) -> Integers:
        """Events in `[minute - window, minute)` of the group."""
        start, stop = self._bounds(groups, minutes, window_minutes)
        return stop - start

    def last(self, groups: Integers, minutes: Integers, window_minutes: int) -> Floats:
        """Value of the latest event in `[minute - window, minute)`; NaN where nothing happened."""
        start, stop = self._bounds(groups, minutes, window_minutes)
        return np.where(stop > start, self._values[np.maximum(stop - 1, 0)], np.nan)

    def _bounds(
        self, groups: Integers, minutes: Integers, window_minutes: int
    ) -> tuple[Integers, Integers]:
        places = groups * _GROUP_SPAN_MINUTES + minutes
        # Questions in order are answered several times faster: each search begins near the last
        order = np.argsort(places, kind="stable")
        asked = places[order]
        start, stop = np.empty_like(places), np.empty_like(places)
        start[order] = np.searchsorted(self._places, asked - window_minutes)
        stop[order] = np.searchsorted(self._places, asked)
        return start, stop

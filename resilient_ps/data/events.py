"""What was known at a moment: means over events of a group that happened in a window before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Groups lie this many minutes apart on one line, so that one sorted array holds all of them
_GROUP_SPAN_MINUTES = 1 << 24
_PLACE_BITS = 63


class Moments:
    """Questions about groups, each at a minute (0 .. 2**23), as they are quick to answer.

    `places` are the distinct ones, sorted, because each search then begins near the last; question
    i is about `places[codes[i]]`.
    """

    def __init__(self, groups: Integers, minutes: Integers) -> None:
        order, places = _sorted(groups * _GROUP_SPAN_MINUTES + minutes)
        fresh = np.ones(len(places), np.bool_)
        fresh[1:] = places[1:] != places[:-1]
        self.places = places[fresh]
        self.codes = np.empty(len(places), np.int64)
        self.codes[order] = np.cumsum(fresh) - 1


class Events:
    """Events of groups, each at a minute (0 .. 2**23) and with a value."""

    def __init__(self, groups: Integers, minutes: Integers, values: Floats) -> None:
        order, self._places = _sorted(groups * _GROUP_SPAN_MINUTES + minutes)
        self._values = values[order]
        self._sums = np.concatenate(([0.0], np.cumsum(self._values)))

    def before(self, moments: Moments) -> Before:
        """What happened *before* each moment, never at it or after it."""
        return Before(moments, self._places, self._values, self._sums)


class Before:
    """The events before some moments; the answers are in the order in which these were given."""

    def __init__(self, moments: Moments, places: Integers, values: Floats, sums: Floats) -> None:
        self._moments = moments
        self._places, self._values, self._sums = places, values, sums
        self._stop = np.searchsorted(places, moments.places)

    def mean(self, window_minutes: int) -> Floats:
        """Mean value in `[minute - window, minute)` of the group; NaN where nothing happened."""
        start = self._start(window_minutes)
        count = self._stop - start
        totals = self._sums[self._stop] - self._sums[start]
        means = np.where(count > 0, totals / np.maximum(count, 1), np.nan)
        return means[self._moments.codes]

    def count(self, window_minutes: int) -> Integers:
        """Events in `[minute - window, minute)` of the group."""
        return (self._stop - self._start(window_minutes))[self._moments.codes]

    def last(self, window_minutes: int) -> Floats:
        """Value of the latest event in `[minute - window, minute)`; NaN where nothing happened."""
        happened = self._stop > self._start(window_minutes)
        latest = self._values[np.maximum(self._stop - 1, 0)]
        return np.where(happened, latest, np.nan)[self._moments.codes]

    def _start(self, window_minutes: int) -> Integers:
        return np.searchsorted(self._places, self._moments.places - window_minutes)


def _sorted(places: Integers) -> tuple[Integers, Integers]:
    """(stable order, places in this order)."""
    bits = len(places).bit_length()
    if int(places.min(initial=0)) < 0 or int(places.max(initial=0)) >> (_PLACE_BITS - bits):
        order = np.argsort(places, kind="stable")
        return order, places[order]
    # Sorting numbers that hold the place and the row is several times faster than argsort
    both = (places << bits) | np.arange(len(places))
    both.sort()
    return both & ((1 << bits) - 1), both >> bits

"""Doing again what should be tried later: while faults go on, that is much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from resilient_ps.errors import ResilientPsError, RetryLater

POLL_S = 0.2

T = TypeVar("T")


def patiently(do: Callable[[], T], deadline_s: float, *also: type[ResilientPsError]) -> T:
    """Do it, again and again while it says that it should be tried later, or raises one of `also`.

    Raises what it raised last when the time is over.
    """
    until_s = time.monotonic() + deadline_s
    again: tuple[type[ResilientPsError], ...] = (RetryLater, *also)
    while True:
        try:
            return do()
        except again:
            if time.monotonic() > until_s:
                raise
            time.sleep(POLL_S)

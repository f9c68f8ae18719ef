"""A rank in this process: what it pushes and pulls is written down, for the checkers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from resilient_ps.chaos.history import History, process_name
from resilient_ps.client.connection import Client
from resilient_ps.client.future import Future
from resilient_ps.errors import RetryLater
from resilient_ps.tables.optimisers import Sum

TABLE = "counts"
JOB = "scenario"


class Begun(NamedTuple):
    """A push under way, and its number in the history."""

    number: int
    future: Future[None]


class Rank:
    """Rank `rank` of `of`, under ASP, with a table of whole numbers that are summed."""

    def __init__(self, client: Client, history: History, rank: int, of: int) -> None:
        self._history = history
        self._worker = client.worker(JOB, rank, of, "asp")
        self._table = self._worker.sparse_table(TABLE, dim=1, dtype="int64", optimiser=Sum())
        self._name = process_name(rank, 1)

    def begin(self, keys: Iterable[int]) -> list[Begun]:
        """Push 1 to each key: a push for each of them. They are under way when this returns."""
        return [self._begin(key) for key in keys]

    def _begin(self, key: int) -> Begun:
        rank, clock = self._worker.rank, self._worker.clock
        number = self._history.invoke(
            self._name, "push", rank, clock, time.monotonic_ns(), (key,), table=TABLE
        )
        keys, ones = np.array([key], np.uint64), np.ones((1, 1), np.int64)
        return Begun(number, self._table.push_async(keys, ones))

    def settle(self, pushes: Sequence[Begun], within_s: float) -> int:
        """Wait for all of them; how many were acknowledged. What is late stays unknown.

        It is still delivered, while something else is asked of this rank.
        """
        until_s = time.monotonic() + within_s
        acknowledged = 0
        for push in pushes:
            try:
                push.future.result(max(until_s - time.monotonic(), 0.01))
            except RetryLater:
                continue
            acknowledged += 1
            self._history.complete(push.number, time.monotonic_ns())
        return acknowledged

    def tick(self) -> None:
        """End the clock."""
        self._worker.tick()

    def pull(self, keys: Sequence[int]) -> tuple[int, ...]:
        """What these keys hold."""
        number = self._history.invoke(
            self._name,
            "pull",
            self._worker.rank,
            self._worker.clock,
            time.monotonic_ns(),
            tuple(keys),
            table=TABLE,
        )
        rows = self._table.pull(np.array(keys, np.uint64))
        values = tuple(rows[:, 0].tolist())
        self._history.complete(number, time.monotonic_ns(), values=values)
        return values

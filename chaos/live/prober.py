"""Probers: for each shard a rank that pushes to it again and again, and notes when it was answered.

How long a shard was away is read off these notes. Each prober pushes the number 1 to a key of its
own; so in the end the table shows whether anything was lost or applied twice.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.errors import ResilientPsError, Unavailable
from resilient_ps.hashing import shard_of
from resilient_ps.tables.optimisers import Sum

PAUSE_S = 0.005
NOTES_MOST = 50_000
KEYS_LOOKED_AT = 1_000_000
TABLE = "probe"


class Note(NamedTuple):
    """One acknowledged push, on the monotonic clock."""

    begun_s: float
    acked_s: float


@dataclass(eq=False)
class Prober:
    """The rank of one shard, in a thread of its own."""

    shard: int
    key: int
    worker: Worker
    table: SparseTable
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=NOTES_MOST))
    acked: int = 0
    error: ResilientPsError | None = None

    def run(self, ending: threading.Event, news: threading.Condition) -> None:
        """Push until it is to end, or a push has failed."""
        key, one = np.array([self.key], np.uint64), np.ones((1, 1), np.int64)
        while not ending.is_set():
            begun_s = time.monotonic()
            try:
                self.table.push(key, one)
            except ResilientPsError as error:
                self.error = error
            with news:
                if self.error is None:
                    self.acked += 1
                    self.notes.append(Note(begun_s, time.monotonic()))
                news.notify_all()
            if self.error is not None:
                return
            ending.wait(PAUSE_S)

    def first_behind(self, at_s: float) -> float | None:
        """How long after `at_s` the first push that was begun later was acknowledged."""
        for note in self.notes:
            if note.begun_s >= at_s:
                return note.acked_s - at_s
        return None

    def longest_stall(self, from_s: float, to_s: float) -> float:
        """The longest time between two acknowledgements, as far as it lies between the two."""
        acks = [note.acked_s for note in self.notes]
        inside = [from_s, *(at for at in acks if from_s < at < to_s), to_s]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))


class Probers:
    """One prober per shard. A context: it begins with all of them running, and ends them."""

    def __init__(self, client: Client, shards: int, job: str = "probe") -> None:
        self._ending = threading.Event()
        self._news = threading.Condition()
        self._client = client
        self._probers = [_prober(client, job, shard, shards) for shard in range(shards)]
        self._threads = [
            threading.Thread(target=each.run, args=(self._ending, self._news), daemon=True)
            for each in self._probers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        if kind is None:
            for each, thread in zip(self._probers, self._threads, strict=True):
                thread.join()
                each.worker.close()

    def wait_behind(
        self, at_s: float, shards: Iterable[int], deadline_s: float
    ) -> Mapping[int, float]:
        """By shard: how long after `at_s` a push that was begun later was acknowledged.

        Raises `Unavailable` at the deadline, and what a prober has failed with.
        """
        wanted = [self._probers[shard] for shard in sorted(shards)]

        def all_there() -> bool:
            failed = any(each.error is not None for each in self._probers)
            return failed or all(each.first_behind(at_s) is not None for each in wanted)

        with self._news:
            in_time = self._news.wait_for(all_there, deadline_s)
            self._raise_errors()
            found = {each.shard: each.first_behind(at_s) for each in wanted}
        missing = [shard for shard, seconds in found.items() if seconds is None]
        if not in_time or missing:
            raise Unavailable(f"shard {missing[0]} acknowledges nothing for {deadline_s:g} s")
        return {shard: seconds for shard, seconds in found.items() if seconds is not None}

    def longest_stall(self, from_s: float, to_s: float, shards: Iterable[int]) -> float:
        """The longest time without an acknowledgement on one of these shards; 0 for no shard."""
        with self._news:
            self._raise_errors()
            stalls = [self._probers[shard].longest_stall(from_s, to_s) for shard in shards]
        return max(stalls, default=0.0)

    def miscounted(self) -> list[str]:
        """After the end: where the table holds another number than was acknowledged."""
        self._raise_errors()
        table = self._client.table(TABLE)
        assert isinstance(table, SparseTable)
        rows = table.pull(np.array([each.key for each in self._probers], np.uint64)).ravel()
        return [
            f"shard {each.shard}: {each.acked} pushes acknowledged, {held} applied"
            for each, held in zip(self._probers, rows.tolist(), strict=True)
            if held != each.acked
        ]

    def _raise_errors(self) -> None:
        for each in self._probers:
            if each.error is not None:
                raise each.error


def _prober(client: Client, job: str, shard: int, shards: int) -> Prober:
    worker = client.worker(job, shard, shards, "asp")
    table = worker.sparse_table(TABLE, dim=1, dtype="int64", optimiser=Sum())
    return Prober(shard, key_of(shard, shards), worker, table)


def key_of(shard: int, shards: int) -> int:
    """The smallest key that belongs to the shard."""
    return next(key for key in range(KEYS_LOOKED_AT) if shard_of(key, shards) == shard)

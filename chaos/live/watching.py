"""Follows a cluster's records in etcd while a run goes on: leaderships, checkpoints, cuts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from resilient_ps.chaos.faults.leadership import Leadership
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Reset, WatchBatch
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.standing import standing_of

READ_DEADLINE_S = 10.0

T = TypeVar("T")


class Watching:
    """A context: it watches within it. `etcd`: endpoints that no fault cuts us off from.

    `copies`: how many each shard should have. Times are of the monotonic clock.
    """

    def __init__(self, etcd: str, cluster: str, copies: int) -> None:
        self._kv = EtcdKv(etcd)
        self._copies = copies
        self._lock = threading.Lock()
        self._keys = ClusterKeys(cluster)
        self._leadership = Leadership(self._keys)

    def __enter__(self) -> Self:
        prefix = self._keys.prefix
        found = self._kv.read(prefix, prefix=True, deadline_s=READ_DEADLINE_S)
        self._leadership.begin(found, time.monotonic())
        self._kv.watch(prefix, found.revision + 1, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kv.close()

    def _take(self, news: WatchBatch | Reset) -> None:
        with self._lock:
            self._leadership.take(news, time.monotonic())

    def ask(self, question: Callable[[Leadership], T]) -> T:
        """The answer to a question that is asked while nothing changes."""
        with self._lock:
            return question(self._leadership)

    def due_clock(self, job: str) -> int:
        """A cut waits until the ranks of this job have ended this clock; 0: none does."""
        return self.ask(lambda held: held.due_clock(job))

    def shard_states(self) -> dict[str, int]:
        """How many shards are in which state."""

        def count(held: Leadership) -> dict[str, int]:
            view = held.view
            states = [standing_of(r, view.processes, self._copies).state for r in view.shards]
            return dict(Counter(str(state) for state in states))

        return self.ask(count)

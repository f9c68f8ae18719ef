"""A bounded queue of blocking work, and the threads that do it beside a loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Lane:
    """Up to `threads` daemon threads, made when first needed; up to `waiting` pieces of work wait.

    Used in one thread, the loop's.
    """

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._waiting = waiting
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def put(self, work: Callable[[], None]) -> bool:
        """False when too much waits already. `work` must not raise."""
        if self._queue.qsize() >= self._waiting:
            return False
        if len(self._threads) < self._limit:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(work)
        return True

    def close(self) -> None:
        """Forget what waits; the threads end after what they are doing, and nobody waits for it."""
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

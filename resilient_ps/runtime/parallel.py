"""Runs the parts of a large request on several cores: standing threads beside the loop's own.

Kernels hold no interpreter lock, so parts of different shards really run at the same time. The
caller works too, and returns when all tasks are done: for it this is a plain call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
THREADS_MAX = 8


class _Batch(Generic[T]):
    """Tasks that whoever is free takes, each once."""

    def __init__(self, tasks: Sequence[Callable[[], T]]) -> None:
        self._tasks = tasks
        self._left = iter(range(len(tasks)))
        self._done: SimpleQueue[None] = SimpleQueue()
        self._results: dict[int, T] = {}
        self._error: BaseException | None = None

    def work(self) -> None:
        """Run tasks until none is left to be taken."""
        for number in self._left:
            try:
                self._results[number] = self._tasks[number]()
            except BaseException as error:
                self._error = error
            finally:
                self._done.put(None)

    def results(self) -> list[T]:
        """Wait for those that others have taken. Raises what a task has raised."""
        for _ in self._tasks:
            self._done.get()
        if self._error is not None:
            raise self._error
        return [self._results[number] for number in range(len(self._tasks))]


class Cores:
    """`helpers` threads (default: one per further core). Call it with tasks; close it at the end.

    For one caller at a time.
    """

    def __init__(self, helpers: int | None = None) -> None:
        spare = (os.cpu_count() or 1) - 1 if helpers is None else helpers
        self._batches: SimpleQueue[_Batch[object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"core-{number}", daemon=True)
            for number in range(min(spare, THREADS_MAX))
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run all tasks; their results, in the order of the tasks."""
        batch: _Batch[T] = _Batch(tasks)
        for _ in range(min(len(self._threads), len(tasks) - 1)):
            self._batches.put(batch)  # type: ignore[arg-type]  # what they return is no matter here
        batch.work()
        return batch.results()

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._batches.put(None)

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.work()

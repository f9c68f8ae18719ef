"""Tables in this process that sum or take gradient steps, on shards that may miss pushes.

A push is number n of its clock. A process that is killed has reached some shards with its pushes up
to some n, and others less far; its successor repeats the clock, and each shard takes only what it
lacks. `reached` and `held` say so, by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from resilient_ps.tables.initialisers import Uniform
from resilient_ps.tables.optimisers import SGD

EVERYTHING = 1 << 60


class Clock:
    """What of the present clock's pushes counts: those above `held`, up to `reached`."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.begin()

    def begin(self, held: Any = 0, reached: Any = EVERYTHING) -> None:
        self.pushes = 0
        self.held = np.broadcast_to(held, self.shards)
        self.reached = np.broadcast_to(reached, self.shards)

    def counts(self, keys: Any) -> Any:
        """Of the rows of one push: which are applied?"""
        shard = np.asarray(keys).astype(np.int64) * 7919 % self.shards
        return (self.held[shard] < self.pushes) & (self.pushes <= self.reached[shard])


class Done:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class Rows:
    """A sparse table; rows begin with zeros, whatever initialiser was asked for."""

    def __init__(self, clock: Clock, dim: int, dtype: Any, rest: Any) -> None:
        self._clock = clock
        self._rate = _rate(rest)
        self._places: dict[int, int] = {}
        self._rows = np.zeros((64, dim), dtype)

    def _at(self, keys: Any) -> Any:
        places = self._places
        at = np.array([places.setdefault(int(key), len(places)) for key in keys], np.int64)
        while len(places) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        return at

    def pull(self, keys: Any) -> Any:
        at = self._at(keys)
        return self._rows[at]

    def pull_async(self, keys: Any) -> Done:
        return Done(self.pull(keys))

    def push(self, keys: Any, values: Any) -> None:
        assert keys.dtype == np.uint64
        assert values.dtype == self._rows.dtype
        assert len(np.unique(keys)) == len(keys)
        self._clock.pushes += 1
        applied = self._clock.counts(keys)
        at = self._at(keys)[applied]
        self._rows[at] += self._rate * values[applied]

    def push_async(self, keys: Any, values: Any) -> Done:
        return Done(self.push(keys, values))


class Array:
    """A dense table, each number on a shard of its own choice."""

    def __init__(self, clock: Clock, name: str, shape: Any, dtype: Any, rest: Any) -> None:
        self._clock = clock
        self._rate = _rate(rest)
        self._values = np.zeros(shape, dtype)
        begun = rest.get("initialiser")
        if isinstance(begun, Uniform):
            drawn = np.random.default_rng(list(name.encode())).uniform(begun.low, begun.high, shape)
            self._values = drawn.astype(dtype)

    def pull(self) -> Any:
        return self._values.copy()

    def push(self, values: Any) -> None:
        assert values.dtype == self._values.dtype
        self._clock.pushes += 1
        applied = self._clock.counts(np.arange(self._values.size)).reshape(self._values.shape)
        self._values += np.where(applied, self._rate * values, 0).astype(self._values.dtype)


def _rate(rest: Any) -> Any:
    """What pushes are multiplied with."""
    optimiser = rest.get("optimiser")
    return -np.float32(optimiser.lr) if isinstance(optimiser, SGD) else np.int8(1)


class SummingTables:
    """Opens tables; the same name is the same table."""

    def __init__(self, shards: int = 1) -> None:
        self.pushed = Clock(shards)
        self.tables: dict[str, Any] = {}

    def sparse_table(self, name: str, *, dim: int, dtype: Any = "float32", **rest: Any) -> Rows:
        return self.tables.setdefault(name, Rows(self.pushed, dim, dtype, rest))

    def dense_table(self, name: str, *, shape: Any, dtype: Any = "float32", **rest: Any) -> Array:
        return self.tables.setdefault(name, Array(self.pushed, name, shape, dtype, rest))


class OneRank(SummingTables):
    """A rank that has its tables for itself."""

    rank, of = 0, 1

    def __init__(self) -> None:
        super().__init__()
        self.clock = 1
        self.cursor: Any = None

    def batches(self, dataset: Any, *, batch_size: int, epochs: int = 1, **_: Any) -> Iterable[Any]:
        for batch in dataset.batches(self.rank, self.of, batch_size, epochs, cursor=self.cursor):
            self.pushed.begin()
            yield batch
            self.clock += 1
            self.cursor = batch.cursor


class TasksInOrder(SummingTables):
    """Does the tasks of a graph in a given order."""

    def __init__(self, order: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._order = order

    def run(self, work: Callable[[Any], None]) -> int:
        done = 0
        for rank, step in self._order:
            self.pushed.begin()
            work(SimpleNamespace(rank=rank, step=step))
            done += 1
        return done


def some_order(graph: Any, rng: Any) -> Iterable[tuple[int, int]]:
    """The tasks of a graph in an order that its edges admit."""
    lanes = {space.name: space.ranks for space in graph.namespaces}
    done = np.zeros(graph.lanes_total, np.int64)
    while True:
        ready = [rank for rank in range(len(done)) if _may_begin(graph, lanes, done, rank)]
        if not ready:
            return
        rank = int(rng.choice(ready))
        done[rank] += 1
        yield rank, int(done[rank])


def _may_begin(graph: Any, lanes: Any, done: Any, rank: int) -> bool:
    lane, step = graph.lane(rank), int(done[rank]) + 1
    if step > graph.steps:
        return False
    for edge in graph.edges:
        if edge.namespace == lane.namespace:
            before = lanes[edge.predecessor]
            if edge.shift is not None:
                before = [before[(lane.n + edge.shift) % len(before)]]
            if any(done[each] < step - edge.lag for each in before):
                return False
    return True

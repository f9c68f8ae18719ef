"""What the tasks of the simulated graph are, what they read and write, and in what order they may.

The graph is a wavefront (three blocks of parameters go over the data shards, one behind the other),
and beside it a ring: three lanes that hand three blocks on to each other, with a tally after each
round. Blocks and tally share a counter, for which one of them must be alone.

Every float row has its own order of writers, which the graph prescribes, and a task writes each row
once; so the end is the same, byte for byte, in whatever order tasks are done. Everything else in a
task is *not* repeatable: how many pushes it makes, and which comes first, depends on its token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient_ps.chaos.checkers.tasks import Task
from resilient_ps.coordinator.graph import Graph, Lane
from resilient_ps.messages import Keys, Values
from resilient_ps.tables.optimisers import Adagrad, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec

GRAPH = "wave"
BLOCKS = 3
DATA_SHARDS = 2  # a block goes on with the next epoch when the last block has done with the data
RING = 3
ROWS = 4  # of a block, and of a data shard
DIM = 2
MARKS = 3  # of a task
PUSHES_MOST = 3
SHARED = DenseSpec("shared", (1,), "int64", Sum())
TABLES: dict[int, TableSpec] = {
    1: SparseSpec("marks", 1, "int64", Sum()),
    2: SparseSpec("tokens", 1, "int64", Sum()),
    3: SparseSpec("weights", DIM, "float32", Adagrad(0.1)),
    4: SHARED,
}
MARKS_TABLE, TOKENS_TABLE, WEIGHTS_TABLE, SHARED_TABLE = TABLES
ALIKE = (MARKS_TABLE, WEIGHTS_TABLE, SHARED_TABLE)  # tables whose end does not depend on tokens


def graph_of(steps: int) -> Graph:
    """The graph, with so many steps."""
    graph = Graph(GRAPH, steps)
    for block in range(BLOCKS):
        graph.add(f"wave/block-{block}")
    for block in range(1, BLOCKS):
        graph.after(f"wave/block-{block}", f"wave/block-{block - 1}")
    last = f"wave/block-{BLOCKS - 1}"
    graph.after("wave/block-0", last, lag=DATA_SHARDS)
    graph.add("ring", width=RING)
    graph.add("tally")
    graph.after("ring", "ring", lag=1, shift=1)
    graph.after("tally", "ring")
    graph.after("ring", "tally", lag=1)
    graph.exclusive(last, "tally")
    return graph


def predecessors(graph: Graph, lane: Lane, step: int) -> Iterator[Task]:
    """The tasks that this one comes after, as the graph's words say."""
    spaces = {space.name: space for space in graph.namespaces}
    if step > 1:
        yield lane.rank, step - 1
    for edge in graph.edges:
        if edge.namespace != lane.namespace or step - edge.lag < 1:
            continue
        space = spaces[edge.predecessor]
        lanes = list(space.ranks)
        if edge.shift is not None:
            lanes = [lanes[(lane.n + edge.shift) % space.width]]
        for rank in lanes:
            yield rank, step - edge.lag


def marks_of(task: Task) -> Keys:
    """The keys of a task's marks."""
    first = number_of(task) * MARKS
    return np.arange(first, first + MARKS, dtype=np.uint64)


def number_of(task: Task) -> int:
    """A key of its own for each task."""
    rank, step = task
    return step * 1_000 + rank


@dataclass(frozen=True, slots=True)
class Body:
    """What a task does. `reads` and `writes`: rows of the weights; `is_alone`: it counts in what an
    exclusive group shares."""

    lane: Lane
    step: int
    reads: Keys
    writes: Keys
    is_alone: bool

    def gradients(self, rows: Values) -> Values:
        """Of the written rows; depends on every bit of what was read."""
        offset = np.float32(self.lane.rank - self.step)
        spread = np.arange(rows.size, dtype=np.float32).reshape(rows.shape) * np.float32(0.25)
        mixed = np.zeros((len(self.writes), DIM), np.float32)
        for at, row in enumerate(rows + spread + offset):  # one after the other: rounded alike
            mixed[at % len(mixed)] += row
        return np.asarray((mixed - np.floor(mixed)) * 2 - 1, np.float32)

    def pushes(self, gradients: Values, token: int) -> list[tuple[int, Any, Values]]:
        """(table, keys or None, values) of each push."""
        marks, ones = marks_of((self.lane.rank, self.step)), np.ones((MARKS, 1), np.int64)
        number = np.array([number_of((self.lane.rank, self.step))], np.uint64)
        made: list[tuple[int, Any, Values]] = [
            (TOKENS_TABLE, number, np.array([[token]], np.int64)),
        ]
        for part in np.array_split(np.arange(len(self.writes)), 2 + token % (PUSHES_MOST - 1)):
            made.append((WEIGHTS_TABLE, self.writes[part], gradients[part]))
        for part in np.array_split(np.roll(np.arange(MARKS), token), 1 + token // 2 % MARKS):
            made.append((MARKS_TABLE, marks[part], ones[part]))
        if self.is_alone:
            made.append((SHARED_TABLE, None, np.ones(1, np.int64)))
        return made[token % len(made) :] + made[: token % len(made)]


def body_of(lane: Lane, step: int) -> Body:
    """What this task does."""
    if lane.namespace == "ring":
        rows = _rows("ring", (lane.n + step) % RING)
        return Body(lane, step, rows, rows, is_alone=False)
    if lane.namespace == "tally":
        ring = [_rows("ring", block) for block in range(RING)]
        tally = _rows("tally", 0)
        return Body(lane, step, np.concatenate([*ring, tally]), tally, is_alone=True)
    block = int(lane.namespace.rpartition("-")[2])
    rows = np.concatenate([_rows("block", block), _rows("data", step)])
    return Body(lane, step, rows, rows, is_alone=block == BLOCKS - 1)


def _rows(what: str, number: int) -> Keys:
    first = {"block": 0, "ring": 1_000, "tally": 2_000, "data": 3_000}[what] + number * ROWS
    return np.arange(first, first + ROWS, dtype=np.uint64)


def tasks_of(graph: Graph) -> list[Task]:
    """All of them."""
    return [(lane.rank, step) for lane in graph.lanes for step in range(1, graph.steps + 1)]

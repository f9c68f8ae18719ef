"""Workers that count: what a table of integers shows tells which pushes it holds.

In each clock a worker pulls the rows of all ranks, adds 1 to its own row, adds 1 to slots that only
this clock's pushes touch, and ticks. Rows are for `check_staleness`, slots for `check_one_hot`. The
program is repeatable: what a push covers depends on (rank, clock, n) only.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilient_ps.chaos.history import History
from resilient_ps.chaos.sim.worker import Operation, Pull, Push, SimWorker, Tick, Together, Wait
from resilient_ps.messages import Keys
from resilient_ps.split import TableHandle

SLOTS_PER_PUSH = 4
PUSHES_PER_CLOCK = 4
CLOCKS_MAX = 1_000


@dataclass(slots=True)
class Counters:
    """The workload over two tables of dimension 1, int64, that sum. `ranks` are observed."""

    rows: TableHandle
    slots: TableHandle
    ranks: tuple[int, ...]
    clocks: int
    last: dict[int, int] = field(default_factory=dict)  # by rank: where it ends before `clocks`
    compute_ns: int = 300_000  # on average; in every clock another rank takes five times as long
    row_history: History = field(default_factory=History)
    slot_history: History = field(default_factory=History)

    def program(self, worker: SimWorker) -> Generator[Operation, Any, None]:
        """What a worker does, from its first open clock to the last one."""
        while worker.clock <= self.last.get(worker.rank, self.clocks):
            clock = worker.clock
            yield from self._observe(worker, clock)
            yield Wait(self._compute_ns(worker, clock))
            yield from self._push_row(worker, clock)
            yield from self._push_slots(worker, clock)
            number = self.row_history.invoke(
                _name(worker), "tick", worker.rank, clock, worker.world.now_ns
            )
            yield Tick(str(clock).encode())
            self.row_history.complete(number, worker.world.now_ns)

    def _compute_ns(self, worker: SimWorker, clock: int) -> int:
        slow = self.ranks[clock % len(self.ranks)] == worker.rank
        return int(worker.world.rng.exponential(self.compute_ns * (5 if slow else 1)))

    def _observe(self, worker: SimWorker, clock: int) -> Generator[Operation, Any, None]:
        world, history = worker.world, self.row_history
        number = history.invoke(_name(worker), "pull", worker.rank, clock, world.now_ns, self.ranks)
        rows = yield Pull(self.rows, np.array(self.ranks, np.uint64))
        seen = tuple(rows[:, 0].tolist())
        history.complete(number, world.now_ns, "ok", seen)

    def _push_row(self, worker: SimWorker, clock: int) -> Generator[Operation, Any, None]:
        world, history, rank = worker.world, self.row_history, worker.rank
        number = history.invoke(_name(worker), "push", rank, clock, world.now_ns, (rank,))
        yield Push(self.rows, np.array([rank], np.uint64), np.ones((1, 1), np.int64))
        history.complete(number, world.now_ns)

    def _push_slots(self, worker: SimWorker, clock: int) -> Generator[Operation, Any, None]:
        world, history, rank = worker.world, self.slot_history, worker.rank
        pushes, numbers = [], []
        for n in range(PUSHES_PER_CLOCK):
            keys = self.slot_keys(rank, clock, n)
            slots = tuple(keys.tolist())
            numbers.append(history.invoke(_name(worker), "push", rank, clock, world.now_ns, slots))
            pushes.append(Push(self.slots, keys, np.ones((len(keys), 1), np.int64)))
        yield Together(tuple(pushes))
        for number in numbers:
            history.complete(number, world.now_ns)

    def slot_keys(self, rank: int, clock: int, n: int) -> Keys:
        """The slots of one push."""
        first = ((rank * CLOCKS_MAX + clock) * PUSHES_PER_CLOCK + n) * SLOTS_PER_PUSH
        return np.arange(first, first + SLOTS_PER_PUSH, dtype=np.uint64)

    def all_slots(self) -> Keys:
        """The slots of all pushes of all observed ranks."""
        keys = [
            self.slot_keys(rank, clock, n)
            for rank in self.ranks
            for clock in range(1, self.clocks + 1)
            for n in range(PUSHES_PER_CLOCK)
        ]
        return np.concatenate(keys)


def _name(worker: SimWorker) -> str:
    return f"{worker.rank}.{worker.session.worker.incarnation}"

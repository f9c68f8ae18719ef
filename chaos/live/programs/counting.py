"""A rank that counts: what tables of whole numbers show tells which pushes they hold.

    python -m resilient_ps.chaos.live.programs.counting --folder F ... -- ROWS SLOTS

In each clock it pulls the rows of all ranks, adds 1 to its own ones, makes `SLOTS` pushes that add
1 to slots which no other push touches, and ticks.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.life import Life, Push, Settings
from resilient_ps.tables.optimisers import Sum

SLOTS_PER_PUSH = 4
PUSHES_MOST = 16  # with slots, in a clock
RANKS_MOST = 1 << 10
OBSERVED_ROWS_MOST = 4  # of each rank, in a pull


class Counting:
    """`rows`: of each rank. `pushes`: with slots, in each clock."""

    def __init__(self, rows: int, pushes: int) -> None:
        self._row_count = rows
        self._push_count = pushes

    def open(self, life: Life) -> None:
        """Two tables that sum."""
        worker = life.worker
        rows, slots = table_names(life.settings.job)
        self._rows = worker.sparse_table(rows, dim=1, dtype="int64", optimiser=Sum())
        self._slots = worker.sparse_table(slots, dim=1, dtype="int64", optimiser=Sum())

    def one_clock(self, life: Life) -> None:
        """See the module."""
        rank, of, clock = life.settings.rank, life.settings.of, life.worker.clock
        observed = min(self._row_count, OBSERVED_ROWS_MOST)
        noted = [each for _ in range(observed) for each in range(of)]
        keys = [row_keys(each, observed) for each in range(of)]
        life.pull(self._rows, np.stack(keys, axis=1).reshape(-1), noted)
        life.rest(0.5)
        own = row_keys(rank, self._row_count)
        pushes = [Push(self._rows, own, _ones(own), [rank])]
        for n in range(self._push_count):
            slots = slot_keys(rank, clock, n)
            pushes.append(Push(self._slots, slots, _ones(slots)))
        life.push(*pushes)
        life.rest(0.5)
        life.tick(clock)


def table_names(job: str) -> tuple[str, str]:
    """Of rows and of slots: each job counts in its own."""
    return f"{job}/rows", f"{job}/slots"


def row_keys(rank: int, rows: int) -> NDArray[np.uint64]:
    """The keys of a rank's rows, which lie on several shards."""
    return np.arange(rows, dtype=np.uint64) * np.uint64(RANKS_MOST) + np.uint64(rank)


def slot_keys(rank: int, clock: int, n: int) -> NDArray[np.uint64]:
    """The slots of one push, which are those of no other one."""
    first = ((clock * RANKS_MOST + rank) * PUSHES_MOST + n) * SLOTS_PER_PUSH
    return np.arange(first, first + SLOTS_PER_PUSH, dtype=np.uint64)


def _ones(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.ones((len(keys), 1), np.int64)


def main(arguments: list[str]) -> None:
    """The process itself."""
    settings = Settings.parse(arguments)
    rows, pushes = settings.rest
    Life(settings).run(Counting(int(rows), int(pushes)))


if __name__ == "__main__":
    main(sys.argv[1:])

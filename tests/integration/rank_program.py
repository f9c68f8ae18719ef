"""A rank that counts its samples: run by `test_schedules` in processes of its own.

It prints a line for each push. `pause_behind`: after so many pushes it waits for a line of input.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import resilient_ps as ps
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.shards import Schedule

ROWS = 240
EPOCHS = 2
BATCH_SIZE = 5
DATA_SHARDS = 8
PUSHES = 3


def rows() -> SparseArrayDataset:
    """One sample for each number below `ROWS`; its number is its only key."""
    keys = np.arange(ROWS, dtype=np.uint64)
    return SparseArrayDataset(np.ones(ROWS), np.arange(ROWS + 1), keys, shuffle_seed=3)


def main(
    etcd: str,
    cluster: str,
    job: str,
    rank: str,
    of: str,
    mode: str,
    schedule: Schedule,
    option: str = "",
    pause_behind: str = "-1",
) -> None:
    pushes = 0
    with (
        ps.connect(etcd, cluster) as client,
        client.worker(job, int(rank), int(of), mode) as worker,
    ):
        table = worker.sparse_table(job, dim=1, dtype="int64", optimiser=ps.Sum())
        if option == "retire":
            worker.retire()
        stray = np.uint64(os.getpid() << 20 if option == "stray" else 0)
        for batch in worker.batches(
            rows(),
            batch_size=BATCH_SIZE,
            epochs=EPOCHS,
            schedule=schedule,
            data_shards=DATA_SHARDS if schedule == "dynamic" else None,
        ):
            table.pull(batch.keys)
            for keys in np.array_split(batch.keys, PUSHES):
                table.push(keys + stray, np.ones((len(keys), 1), np.int64))
                pushes += 1
                print(pushes, flush=True)
                if pushes == int(pause_behind):
                    sys.stdin.readline()
        print("ended in clock", worker.clock, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]

"""A rank that trains and counts its samples: run by `standby` in processes of its own.

It prints each clock when it has pushed, and waits `pause_ms` then, so that training lasts. Sample n
pushes a one to row n of an int64 table, and a gradient that depends on what it pulls to a table
with Adagrad and to a dense one with Adam.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

import resilient_ps as ps
from resilient_ps.data import SparseArrayDataset

ROWS = 2_000
BATCH_SIZE = 10
FEATURES = 6
WEIGHTS = 700


def rows() -> SparseArrayDataset:
    """Samples with six features each; the first key of a sample is its number."""
    random = np.random.default_rng(11)
    features = random.integers(0, WEIGHTS, (ROWS, FEATURES))
    keys = np.column_stack([np.arange(ROWS), features]).astype(np.uint64).reshape(-1)
    offsets = np.arange(ROWS + 1) * (FEATURES + 1)
    return SparseArrayDataset(random.integers(0, 2, ROWS), offsets, keys, shuffle_seed=3)


def main(
    etcd: str, cluster: str, rank: str, of: str, mode: str, epochs: str, pause_ms: str
) -> None:
    pause = threading.Event()
    with (
        ps.connect(etcd, cluster, deadline_s=90.0) as client,
        client.worker("count", int(rank), int(of), mode) as worker,
    ):
        counts = worker.sparse_table("counts", dim=1, dtype="int64", optimiser=ps.Sum())
        weights = worker.sparse_table("weights", dim=2, optimiser=ps.Adagrad(lr=0.1))
        bias = worker.dense_table("bias", shape=(40, 3), optimiser=ps.Adam(lr=0.01))
        print("ready at clock", worker.clock, flush=True)
        for batch in worker.batches(rows(), batch_size=BATCH_SIZE, epochs=int(epochs)):
            own = batch.keys.reshape(-1, FEATURES + 1)
            now, keys = bias.pull(), np.unique(own[:, 1:])
            gradient = (weights.pull(keys) + now[0, 0] + 1 / (1 + keys[:, None])).astype("f4")
            weights.push(keys, gradient)
            bias.push((now + np.float32(len(keys))).astype("f4") * np.float32(0.01))
            counts.push(own[:, 0], np.ones((len(own), 1), np.int64))
            print(worker.clock, flush=True)
            pause.wait(int(pause_ms) / 1000)
        print("ended in clock", worker.clock, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A training program as anybody might write it: it fits a line, and knows nothing of faults.

Each of its processes finds the cluster and its rank in the environment: RESILIENT_PS_ETCD,
RESILIENT_PS_CLUSTER, RESILIENT_PS_RANK and RESILIENT_PS_RANKS.
"""

from __future__ import annotations

import argparse

import numpy as np

import resilient_ps as ps
from resilient_ps import Client, Worker

TRUE = np.array([3.0, -2.0, 0.5, 1.0], np.float32)


def train(worker: Worker, clocks: int) -> None:
    """Until this rank has done `clocks` clocks; a successor goes on behind the last tick."""
    weights = worker.dense_table("fit/weights", shape=(4,), optimiser=ps.SGD(lr=0.1))
    seen = worker.dense_table("fit/seen", shape=(1,), optimiser=ps.Sum())
    for clock in range(worker.clock, clocks + 1):
        rng = np.random.default_rng([worker.rank, clock])
        x = rng.normal(size=(16, 4)).astype(np.float32)
        error = x @ (weights.pull() - TRUE)
        weights.push(x.T @ error / 16)
        seen.push(np.full(1, 16, np.float32))
        worker.tick()


def main() -> None:
    """Connect where the environment says, and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clocks", type=int, default=100)
    asked = parser.parse_args()
    with ps.connect() as client, client.worker("fit") as worker:
        train(worker, asked.clocks)


def samples_seen(client: Client) -> float:
    """How many samples the model has been trained on: each counts once, whatever happened."""
    return float(client.table("fit/seen").pull()[0])


def distance(client: Client) -> float:
    """From the true weights."""
    return float(np.abs(client.table("fit/weights").pull() - TRUE).max())


if __name__ == "__main__":
    main()

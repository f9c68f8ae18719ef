"""Matrix factorisation by rotation, in as many processes as you like: they share the tasks.

Each process finds the cluster in the environment (RESILIENT_PS_ETCD, RESILIENT_PS_CLUSTER), takes a
task, does it, and takes the next, until none is left. Any of them may be killed at any time. When
all is done, each trains the same model once more, alone and without a cluster, and ends with exit
code 1 unless both have the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

import resilient_ps as ps
from resilient_ps.data import SparseArrayDataset
from resilient_ps.models import MatrixFactorisation, Progress, RotatingFactorisation
from resilient_ps.models.api import TableReader

USERS, ITEMS, RATINGS = 300, 200, 20_000
HELD_OUT = 4_000
PARTS = 4
DEADLINE_S = 60.0
ROTATING = RotatingFactorisation(
    MatrixFactorisation("films", factors=8, lr=0.03, l2=0.03, mean=3.0), parts=PARTS
)


def planted(seed: int = 1) -> tuple[SparseArrayDataset, SparseArrayDataset]:
    """Ratings that users and items with known factors give: to train on, and held out."""
    rng = np.random.default_rng(seed)
    of_users, of_items = rng.normal(size=(USERS, 4)) / 2, rng.normal(size=(ITEMS, 4))
    users, items = rng.integers(0, USERS, RATINGS), rng.integers(0, ITEMS, RATINGS)
    ratings = 3 + (of_users[users] * of_items[items]).sum(axis=1)
    ratings += rng.normal(size=RATINGS) / 4
    keys = np.stack([users, USERS + items], axis=1).astype(np.uint64)
    parts = slice(HELD_OUT, None), slice(0, HELD_OUT)
    train, test = (
        SparseArrayDataset(ratings[p], np.arange(len(keys[p]) + 1) * 2, keys[p].ravel())
        for p in parts
    )
    return train, test


def train(client: ps.Client, data: SparseArrayDataset, epochs: int, pause_s: float) -> None:
    """Take tasks until all of the graph are done, by whomever."""

    def tell(progress: Progress) -> None:
        print("task", progress.rank, progress.clock, flush=True)
        time.sleep(pause_s)

    graph = ROTATING.schedule(epochs=epochs, name="films").graph
    with client.tasks(graph, deadline_s=2 * DEADLINE_S, lease_ttl_s=2) as tasks:
        ROTATING.train(tasks, data, epochs=epochs, on_task=tell)


def tables_of(client: ps.Client) -> list[ps.SparseTable]:
    """With the factors of users and of items."""
    found = [client.table(name) for name in ROTATING.table_names]
    return [table for table in found if isinstance(table, ps.SparseTable)]


def model_bytes(tables: Sequence[TableReader]) -> bytes:
    """All factors and biases."""
    keys = np.arange(USERS, dtype=np.uint64), np.arange(USERS, USERS + ITEMS, dtype=np.uint64)
    return b"".join(t.pull(k).tobytes() for t, k in zip(tables, keys, strict=True))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="after each task")
    asked = parser.parse_args()
    data, held_out = planted()
    with ps.connect(deadline_s=DEADLINE_S) as client:
        train(client, data, asked.epochs, asked.pause_ms / 1000)
        users, items = tables_of(client)
        print("metric rmse", ROTATING.evaluate((users, items), held_out).rmse, flush=True)
        held = model_bytes((users, items))
    if held != model_bytes(ROTATING.fit_alone(data, epochs=asked.epochs)):
        sys.exit("the model differs from that of one process alone")
    print("metric same_bytes_as_alone 1", flush=True)


if __name__ == "__main__":
    main()

"""Ridge regression in as many processes as you start; the result is that of one, byte for byte.

Start it several times, with RESILIENT_PS_ETCD and RESILIENT_PS_CLUSTER saying where the cluster is.
Processes may be killed, and others started, while it runs.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import resilient_ps as ps
from resilient_ps.models.wavefront import BlockRidge

ROWS, FEATURES = 2_000, 120


def data() -> tuple[np.ndarray, np.ndarray]:
    """Planted: the same in every process."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, FEATURES)) / np.sqrt(FEATURES)
    return x, x @ rng.normal(size=FEATURES) + 0.1 * rng.normal(size=ROWS)


def main() -> int:
    """Do tasks until all are done; then compare with what one process computes alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    model = BlockRidge(ROWS, FEATURES, blocks=4, data_shards=8, epochs=epochs, l2=0.001, lr=0.5)
    x, y = data()
    with ps.connect() as client:
        with client.tasks(model.schedule.graph) as tasks:
            done = model.train(tasks, x, y)
        weights = model.weights(client.table("ridge/weights"))
    same = weights.tobytes() == model.fit_alone(x, y).tobytes()
    print(f"{done} tasks done here, objective {model.objective(x, y, weights):.6f}")
    print("identical to the serial order" if same else "NOT identical to the serial order")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

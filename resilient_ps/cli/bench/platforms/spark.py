"""Spark: gradient descent on RDDs, as the paper did it, with numpy in Spark's Python workers.

Each batch is an RDD that is cached in memory, with a partition for each worker; a step broadcasts
the weights, each partition computes its gradient, and the driver adds them up and steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from resilient_ps.cli.bench.platforms.gradients import gradients
from resilient_ps.cli.bench.platforms.order import Order, Said

HEAP = "4g"


def main(order: Order) -> None:
    """Train until the time is over."""
    import pyspark

    problem = order.problem
    with _session(order) as session:
        context = session.sparkContext
        batches = _batches(context, order)
        weights = problem.initial(order.seed)
        samples = steps = 0
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < order.seconds:
            held = context.broadcast(weights)
            found = (
                batches[steps % len(batches)]
                .map(lambda part, held=held: gradients(held.value, *part))
                .reduce(lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
            )
            held.destroy()
            for layer, gradient in zip(weights, found, strict=True):
                layer -= np.float32(problem.lr / problem.batch_size) * gradient
            steps, samples = steps + 1, samples + order.batch_size * order.workers
        seconds = time.monotonic() - begun_s
    order.save(weights)
    Said(samples, seconds, pyspark.__version__).say()


def _batches(context: Any, order: Order) -> list[Any]:
    """An RDD for each batch, cached, and read once."""
    dataset = order.problem.load(Path(order.folder))
    size, workers = order.batch_size, order.workers
    found = []
    for at in range(0, len(dataset) - size * workers + 1, size * workers):
        parts = [slice(at + r * size, at + (r + 1) * size) for r in range(workers)]
        blocks = [
            (np.array(dataset.features[part]), np.array(dataset.labels[part])) for part in parts
        ]
        batch = context.parallelize(blocks, workers).cache()
        batch.count()
        found.append(batch)
    return found


def _session(order: Order) -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": HEAP,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": order.folder,
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.OMP_NUM_THREADS": "1",
    }
    builder = SparkSession.builder.master(f"local[{order.workers}]").appName(order.run)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main(Order.from_argument())

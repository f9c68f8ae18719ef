"""The loop of all models: batch after batch of the worker's, each a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from resilient_ps.data.batch import Batch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import RolledBack
from resilient_ps.models.api import Progress, Worker

OnBatch: TypeAlias = Callable[[Progress], None]


def train_batches(
    worker: Worker,
    dataset: Dataset,
    step: Callable[[Batch], float],
    *,
    batch_size: int,
    epochs: int,
    schedule: Schedule,
    data_shards: int | None,
    on_batch: OnBatch | None,
) -> None:
    """`step` pulls, computes and pushes, and returns the loss of a batch, summed over its rows.

    `on_batch` is told of each batch after its step; the rest is as in `Worker.batches`.
    """
    samples = 0
    for batch in worker.batches(
        dataset,
        batch_size=batch_size,
        epochs=epochs,
        schedule=schedule,
        data_shards=data_shards,
    ):
        try:
            loss = step(batch)
        except RolledBack:  # the next batch is one behind the checkpoint's cursor
            continue
        samples += len(batch)
        if on_batch is not None:
            mean = loss / len(batch)
            on_batch(Progress(worker.rank, worker.clock, len(batch), samples, mean))

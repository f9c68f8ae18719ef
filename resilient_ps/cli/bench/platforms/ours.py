"""Ours: one rank, on the public API. Its parent reads the weights from the cluster."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from resilient_ps import __version__
from resilient_ps.cli.bench.platforms.order import Order, Said
from resilient_ps.cli.bench.platforms.problems import Problem
from resilient_ps.client.batches import ahead_at_most
from resilient_ps.client.connection import connect
from resilient_ps.client.worker import Worker
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.data import ArrayDataset
from resilient_ps.models import MLP, DenseLogisticRegression, Progress
from resilient_ps.tables.optimisers import SGD
from resilient_ps.tables.warm_up import warm_up_client

EPOCHS = 1_000_000  # the time ends it
LOOK_S = 0.1


class _Over(Exception):
    """The time is over."""


def model_of(problem: Problem, run: str, lr: float) -> DenseLogisticRegression | MLP:
    """The model, with tables named after the run."""
    if problem.classes == 2:
        return DenseLogisticRegression(problem.width, f"{run}/0", SGD(lr=lr))
    return MLP(problem.width, problem.classes, problem.hidden, run, SGD(lr=lr))


def main(order: Order) -> None:
    """Train until the time is over."""
    training = _Training(order)
    with suppress(_Over):
        training.run()
    Said(training.samples, time.monotonic() - training.begun_s, __version__).say()


class _Training:
    def __init__(self, order: Order) -> None:
        problem = order.problem
        # Under BSP a clock is a step of the mean of all ranks; else each rank's batch is a step
        is_bsp = isinstance(parse_consistency(order.consistency), BSP)
        rate = problem.lr if is_bsp else problem.lr / order.workers
        self._order = order
        self._model = model_of(problem, order.run, rate)
        self.samples = 0
        self.begun_s = 0.0

    def run(self) -> None:
        """Ends with `_Over`."""
        order = self._order
        dataset = order.problem.load(Path(order.folder))
        warm_up_client()
        with (
            connect(order.etcd, order.cluster) as client,
            client.worker(order.run, order.rank, order.workers, order.consistency) as worker,
        ):
            self._model.open(worker)
            _meet(worker)
            signal.signal(signal.SIGALRM, _on_alarm)
            signal.setitimer(signal.ITIMER_REAL, order.seconds)
            self.begun_s = time.monotonic()
            self._train(worker, dataset)

    def _train(self, worker: Worker, dataset: ArrayDataset) -> None:
        def on_batch(progress: Progress) -> None:
            self.samples = progress.samples

        self._model.train(
            worker,
            dataset,
            batch_size=self._order.batch_size,
            epochs=EPOCHS,
            on_batch=on_batch,
        )


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise _Over


def _meet(worker: Worker) -> None:
    """Wait until all ranks are here: end so many empty clocks that none may be further ahead."""
    for _ in range(ahead_at_most(worker.consistency) or 0):
        worker.tick()
    while not worker.wait_for_others(lambda: False, LOOK_S):
        pass


if __name__ == "__main__":
    main(Order.from_argument())

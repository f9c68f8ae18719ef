"""The worker program: one rank of a job trains its part of a data set.

Started by a person it shows its progress; started by `WorkerGroup` it tells it, one JSON object a
line on standard output, says when it is ready, and begins when it gets `GO`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Protocol

from resilient_ps.cli import algorithms
from resilient_ps.cli.algorithms import Rows
from resilient_ps.cli.plan import TrainPlan
from resilient_ps.client.connection import Client
from resilient_ps.client.resuming import resume_loudly
from resilient_ps.errors import DeadlineExceeded, RolledBack
from resilient_ps.models import Progress
from resilient_ps.tables.warm_up import warm_up_client

GO = signal.SIGUSR1
GO_DEADLINE_S = 120.0
GO_POLL_S = 0.01
TELL_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker tells of itself: `state` is ready, training or done.

    `samples` of this process and `clock` so far; `earlier` are those that the rank had trained on
    before this process; `loss` is the mean over the last `rows` rows, `longest_s` the longest time
    from the end of one of their batches to the next. Times are monotonic seconds, which all
    processes of a machine share.
    """

    rank: int
    state: str
    samples: int = 0
    earlier: int = 0
    clock: int = 0
    rows: int = 0
    loss: float = 0.0
    longest_s: float = 0.0
    begun_s: float = 0.0
    at_s: float = 0.0


class Listener(Protocol):
    """Who is told."""

    def ready(self, told: Told) -> None:
        """All is loaded and opened; the training begins when this returns."""

    def tell(self, told: Told) -> None:
        """Progress, and at last `done`."""


class Pipe:
    """Tells the process that started this one; see the module."""

    def __init__(self) -> None:
        self._gone = False
        # A handler, and no mask: libraries have started threads, which would still be hit
        signal.signal(GO, self._on_go)

    def _on_go(self, number: int, frame: FrameType | None) -> None:
        self._gone = True

    def ready(self, told: Told) -> None:
        self.tell(told)
        until_s = time.monotonic() + GO_DEADLINE_S
        while not self._gone:
            if time.monotonic() > until_s:
                raise DeadlineExceeded(f"nobody said go within {GO_DEADLINE_S:g} s")
            time.sleep(GO_POLL_S)

    def tell(self, told: Told) -> None:
        sys.stdout.write(json.dumps(asdict(told)) + "\n")
        sys.stdout.flush()


class _Teller:
    """Sums batches up, so that not every one is told."""

    def __init__(self, rank: int, listener: Listener) -> None:
        self._rank = rank
        self._listener = listener
        self._begun_s = self._told_s = self._batch_s = time.monotonic()
        self._samples = self._earlier = self._rows = 0
        self._loss_sum = self._longest_s = 0.0
        self._loss = (0, 0.0)  # rows, and their mean, as they were told last

    def begin(self, clock: int, earlier: int) -> None:
        self._earlier = earlier
        self._listener.ready(Told(self._rank, "ready", earlier=earlier, clock=clock))
        self._begun_s = self._told_s = self._batch_s = time.monotonic()

    def on_batch(self, progress: Progress) -> None:
        now_s = time.monotonic()
        self._longest_s, self._batch_s = max(self._longest_s, now_s - self._batch_s), now_s
        self._samples = progress.samples
        self._rows += progress.rows
        self._loss_sum += progress.loss * progress.rows
        if now_s - self._told_s >= TELL_EVERY_S:
            self._listener.tell(self._take("training", progress.clock))

    def end(self, clock: int) -> Told:
        told = self._take("done", clock)
        self._listener.tell(told)
        return told

    def _take(self, state: str, clock: int) -> Told:
        if self._rows:  # else: of those that were told last
            self._loss = (self._rows, self._loss_sum / self._rows)
        (rows, loss), longest_s = self._loss, self._longest_s
        self._rows, self._loss_sum, self._longest_s = 0, 0.0, 0.0
        self._told_s = time.monotonic()
        return Told(
            self._rank,
            state,
            self._samples,
            self._earlier,
            clock,
            rows,
            loss,
            longest_s,
            self._begun_s,
            self._told_s,
        )


def run_rank(
    client: Client,
    plan: TrainPlan,
    dataset: Rows,
    rank: int,
    of: int,
    listener: Listener,
    *,
    retire: bool = False,
) -> Told:
    """Train; what it told last. Continues where the rank stood, if it was run before.

    The job is done when all of its ranks have come to the end. `retire`: end what the rank has in
    hand, and leave the job. Where the schedule is one of tasks, this process takes tasks, and
    `rank` is its number.
    """
    if plan.by_tasks:
        return _run_holder(client, plan, dataset, rank, listener)
    model = plan.build_model(dataset)
    warm_up_client()  # before the time is taken
    teller = _Teller(rank, listener)
    with client.worker(
        plan.job, rank, of, plan.consistency, evict_after_s=plan.evict_after
    ) as worker:
        model.open(worker)
        teller.begin(worker.clock, int((worker.cursor or {}).get("rows", 0)))
        if retire:
            worker.retire()
        while True:
            algorithms.train(plan, model, worker, dataset, teller.on_batch)
            try:
                client.finish_rank(plan.job, rank, worker.incarnation)
                break
            except RolledBack as error:  # what was done last is undone
                resume_loudly(worker, error)
        clock = worker.clock
    return teller.end(clock)


def _run_holder(
    client: Client, plan: TrainPlan, dataset: Rows, number: int, listener: Listener
) -> Told:
    """Take tasks until the graph is done."""
    model = plan.build_model(dataset)
    warm_up_client()
    teller = _Teller(number, listener)
    schedule = model.schedule(epochs=plan.epochs, name=plan.job)
    teller.begin(0, 0)
    last = 0

    def on_task(progress: Progress) -> None:
        nonlocal last
        last = progress.clock
        teller.on_batch(progress)

    with client.tasks(schedule.graph) as tasks:
        model.train(tasks, dataset, epochs=plan.epochs, on_task=on_task)
    return teller.end(last)

"""The process of one rank: it says when it is ready, begins at `GO`, and tells every clock.

One JSON object a line on standard output, as `Told` has it.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from resilient_ps.cli.bench.stragglers.computing import SlowLogisticRegression
from resilient_ps.cli.bench.stragglers.slowness import Pattern, Slowness
from resilient_ps.client.connection import connect
from resilient_ps.data import open_dataset
from resilient_ps.errors import DeadlineExceeded
from resilient_ps.models import Progress
from resilient_ps.tables.optimisers import Adagrad, Optimiser
from resilient_ps.tables.warm_up import warm_up_client

GO = signal.SIGUSR1
GO_DEADLINE_S = 120.0
GO_POLL_S = 0.002
CALL_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a rank is to do, as all ranks of a run are told."""

    etcd: str
    cluster: str
    job: str
    consistency: str
    dataset: str
    batch_size: int
    epochs: int
    clocks: int
    table: str
    lr: float
    slowness: Slowness

    def to_json(self) -> str:
        """As an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The inverse."""
        fields = json.loads(text)
        slowness = fields.pop("slowness")
        pattern = Pattern(slowness.pop("pattern"))
        return cls(**fields, slowness=Slowness(pattern=pattern, **slowness))


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank tells after each clock; `clock` 0: it is ready. `at_s`: monotonic seconds, which
    all processes of a machine share. The others are as in `Read`."""

    clock: int = 0
    at_s: float = 0.0
    samples: int = 0
    loss: float = 0.0
    staleness: int = 0
    pull_s: float = 0.0
    compute_s: float = 0.0


def optimiser(lr: float) -> Optimiser:
    """The same for all consistencies."""
    return Adagrad(lr=lr)


def main(order: Order, rank: int) -> None:
    """Train to the end."""
    gone = _Gone()
    model = SlowLogisticRegression(
        order.table, optimiser(order.lr), "mean", order.slowness.seconds(rank, order.clocks)
    )
    dataset = open_dataset(Path(order.dataset))
    warm_up_client()

    def on_batch(progress: Progress) -> None:
        read = model.reads[-1]
        lasts_s = float(model.seconds[progress.clock - 1])
        _tell(
            Told(progress.clock, time.monotonic(), progress.samples, progress.loss,
                 read.staleness, read.pull_s, lasts_s)
        )  # fmt: skip

    with connect(order.etcd, order.cluster, deadline_s=CALL_DEADLINE_S) as client:
        ranks = order.slowness.ranks
        with client.worker(order.job, rank, ranks, order.consistency) as worker:
            model.open(worker)
            _tell(Told())
            gone.wait()
            model.train(
                worker,
                dataset,
                batch_size=order.batch_size,
                epochs=order.epochs,
                on_batch=on_batch,
            )


class _Gone:
    """Has `GO` come?"""

    def __init__(self) -> None:
        self._gone = False
        signal.signal(GO, self._on_go)

    def _on_go(self, number: int, frame: FrameType | None) -> None:
        self._gone = True

    def wait(self) -> None:
        """Until it has."""
        until_s = time.monotonic() + GO_DEADLINE_S
        while not self._gone:
            if time.monotonic() > until_s:
                raise DeadlineExceeded(f"nobody said go within {GO_DEADLINE_S:g} s")
            time.sleep(GO_POLL_S)


def _tell(told: Told) -> None:
    sys.stdout.write(json.dumps(dataclasses.astuple(told)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Order.from_json(sys.argv[1]), int(sys.argv[2]))

"""The loss over time: the model is looked at from outside again and again, on held-out rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from resilient_ps.cli.bench.stragglers.worker import Told
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.data import Dataset
from resilient_ps.errors import ResilientPsError
from resilient_ps.models import LogisticRegression

LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Look:
    """The held-out loss, and when: seconds and samples since the beginning."""

    at_s: float
    samples: int
    loss: float


@dataclass(slots=True)
class Curve:
    """(monotonic seconds, loss), as looked at."""

    points: list[tuple[float, float]] = field(default_factory=list)


class Watch:
    """Reads the table of a run beside the workers, as any client can."""

    def __init__(self, client: Client, table: str, held_out: Dataset) -> None:
        weights = client.table(table)
        assert isinstance(weights, SparseTable)
        self._weights = weights
        self._model = LogisticRegression(table)
        self._held_out = held_out
        self._failed: ResilientPsError | None = None
        self.curve = Curve()

    def run(self, over: threading.Event) -> None:
        """Look until `over` is set, and once more then."""
        try:
            while True:
                last = over.is_set()
                at_s = time.monotonic()
                loss = self._model.evaluate(self._weights, self._held_out).logloss
                self.curve.points.append((at_s, loss))
                if last:
                    return
                over.wait(LOOK_EVERY_S)
        except ResilientPsError as error:
            self._failed = error

    def check(self) -> None:
        """Raise what a look failed with."""
        if self._failed is not None:
            raise self._failed


def by_samples(
    curve: Curve, begun_s: float, ended_s: float, told: list[list[Told]]
) -> Iterator[Look]:
    """Each look between begin and end (and the first after it), with the samples seen by then."""
    times = sorted((each.at_s, _fresh(of_rank, i)) for of_rank in told for i, each in
                   enumerate(of_rank))  # fmt: skip
    samples = at = 0
    for at_s, loss in curve.points:
        if at_s < begun_s:
            continue
        while at < len(times) and times[at][0] <= at_s:
            samples, at = samples + times[at][1], at + 1
        yield Look(at_s - begun_s, samples, loss)
        if at_s > ended_s:
            return


def _fresh(of_rank: list[Told], number: int) -> int:
    """Samples of one clock: `Told.samples` are those of all clocks so far."""
    before = of_rank[number - 1].samples if number else 0
    return of_rank[number].samples - before

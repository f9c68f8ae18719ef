"""A fit: all ranks of a job as threads of this process, and what is left of it in the end.

Numpy lets go of the interpreter while it computes, and so do we while we wait; but what workers do
in Python they do one after the other. Where that is too little, train with processes
(`resilient-ps train`), on the same models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from resilient_ps.client.connection import Client, connect
from resilient_ps.client.resuming import resume_loudly
from resilient_ps.data import Dataset
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, RolledBack
from resilient_ps.estimators.clusters import Place, place_of
from resilient_ps.models import Progress

T = TypeVar("T")
DEADLINE_S = 30.0


class Model(Protocol):
    """What can be trained by a worker; see `resilient_ps.models`."""

    def train(
        self,
        worker: Any,
        dataset: Dataset,
        *,
        batch_size: int,
        epochs: int,
        on_batch: Callable[[Progress], None],
    ) -> Any:
        """Train on the worker's part."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How to train. `tables`: the names of the model's tables, below the fit's name."""

    cluster: str | None
    name: str | None
    workers: int
    consistency: str
    batch_size: int
    epochs: int

    def run(
        self,
        make: Callable[[str], Model],
        names: Callable[[Any], Sequence[str]],
        dataset: Dataset,
        read: Callable[[Client, Sequence[str]], T],
    ) -> tuple[T, float]:
        """Train the model that `make` makes, with tables below the name that it is given.

        Returns what `read` makes of the tables `names(model)`, and the mean loss of the last epoch.
        Nothing of the fit stays in the cluster.
        """
        with place_of(self.cluster, self.name) as place:
            model = make(place.name)
            with connect(place.etcd, place.cluster, deadline_s=DEADLINE_S) as client:
                _check_free(client, place.name, names(model))
                try:
                    losses = self._train(place, client, model, dataset)
                    return read(client, names(model)), losses.mean(len_of(dataset))
                finally:
                    _clear(client, place.name, names(model))

    def _train(self, place: Place, client: Client, model: Model, dataset: Dataset) -> _Losses:
        losses = _Losses()
        if self.workers == 1:
            self._rank(client, place, 0, model, dataset, losses)
            return losses
        ranks = [
            threading.Thread(
                target=self._in_thread,
                args=(place, client, rank, model, dataset, losses),
                name=f"{place.name}-{rank}",
                daemon=True,
            )
            for rank in range(self.workers)
        ]
        for rank in ranks:
            rank.start()
        try:
            for rank in ranks:
                rank.join()
        except BaseException:  # Ctrl-C: the ranks are refused, and end
            client.end_job(place.name, "stopped")
            raise
        if losses.failed is not None:
            raise losses.failed
        return losses

    def _in_thread(
        self,
        place: Place,
        starter: Client,
        rank: int,
        model: Model,
        dataset: Dataset,
        losses: _Losses,
    ) -> None:
        """What one rank fails with ends the others too; the first error counts."""
        try:
            with connect(place.etcd, place.cluster, deadline_s=DEADLINE_S) as client:
                self._rank(client, place, rank, model, dataset, losses)
        except Exception as error:
            if losses.fail(error):
                with suppress(ResilientPsError):
                    starter.end_job(place.name, "stopped")

    def _rank(
        self,
        client: Client,
        place: Place,
        rank: int,
        model: Model,
        dataset: Dataset,
        losses: _Losses,
    ) -> None:
        with client.worker(place.name, rank, self.workers, self.consistency) as worker:
            while True:
                model.train(
                    worker,
                    dataset,
                    batch_size=self.batch_size,
                    epochs=self.epochs,
                    on_batch=losses.note,
                )
                try:
                    client.finish_rank(place.name, rank, worker.incarnation)
                    return
                except RolledBack as error:  # what was done last is undone
                    resume_loudly(worker, error)


class _Losses:
    """What the ranks' threads tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: list[tuple[int, float]] = []  # rows and mean loss of each batch
        self.failed: Exception | None = None

    def note(self, progress: Progress) -> None:
        """A batch was trained on."""
        with self._lock:
            self._last.append((progress.rows, progress.loss))

    def fail(self, error: Exception) -> bool:
        """True for the first one."""
        with self._lock:
            first, self.failed = self.failed is None, self.failed or error
            return first

    def mean(self, rows: int) -> float:
        """Over the last so many rows."""
        counted, total = 0, 0.0
        for of_batch, loss in reversed(self._last):
            counted, total = counted + of_batch, total + of_batch * loss
            if counted >= rows:
                break
        return total / max(counted, 1)


def len_of(dataset: Any) -> int:
    """Rows of a data set in memory."""
    return len(dataset)


def _check_free(client: Client, name: str, tables: Sequence[str]) -> None:
    """What is there already is somebody else's. Raises `BadInput`."""
    if name in [job.name for job in client.catalogue.jobs()]:
        raise BadInput(f"name={name!r}: the cluster has a job of this name: give another one")
    for table in sorted(set(tables) & set(client.catalogue.tables())):
        raise BadInput(f"name={name!r}: the cluster has a table {table!r}: give another name")


def _clear(client: Client, name: str, tables: Sequence[str]) -> None:
    with suppress(NotFound):
        client.end_job(name, "done")
    with suppress(NotFound):
        client.remove_job(name)
    for table in tables:
        with suppress(NotFound):
            client.drop_table(table)

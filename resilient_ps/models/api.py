"""What the models need of workers and tables: the shape of the public API, as protocols.

Models are programs on these protocols and on nothing else of the product, so a test or
a notebook can run them on tables that live in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.tables.initialisers import Initialiser
from resilient_ps.tables.optimisers import Optimiser
from resilient_ps.tables.spec import Dtype

Array = NDArray[Any]


class Future(Protocol):
    """An operation that goes on."""

    def result(self) -> Any:
        """Wait for it; raises what it raised."""


class TableReader(Protocol):
    """A sparse table that can be read."""

    def pull(self, keys: NDArray[np.uint64]) -> Array:
        """The rows of `keys` (n,), as (n, dim); unknown keys have their initial values."""


class Table(TableReader, Protocol):
    """A sparse table that can be trained."""

    def push(self, keys: NDArray[np.uint64], grads: Array) -> None:
        """Give gradients (n, dim) of the rows `keys` (n,) to the table's optimiser."""

    def pull_async(self, keys: NDArray[np.uint64]) -> Future:
        """As `pull`, without waiting."""

    def push_async(self, keys: NDArray[np.uint64], grads: Array) -> Future:
        """As `push`, without waiting."""


class DenseTableReader(Protocol):
    """A dense table that can be read."""

    def pull(self) -> Array:
        """The whole array."""


class DenseTable(DenseTableReader, Protocol):
    """A dense table that can be trained."""

    def push(self, grad: Array) -> None:
        """Give a gradient of the table's shape to its optimiser."""


class SparseOpener(Protocol):
    """Opens sparse tables."""

    def sparse_table(
        self,
        name: str,
        *,
        dim: int,
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser = ...,
    ) -> Table:
        """Create the table, or open it when it exists with the same specification."""


class TableOpener(SparseOpener, Protocol):
    """A worker, or the holder of a graph's tasks."""

    def dense_table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser = ...,
    ) -> DenseTable:
        """Likewise for a dense table."""


class Worker(TableOpener, Protocol):
    """One rank of a job."""

    @property
    def rank(self) -> int:
        """0 .. of - 1."""

    @property
    def of(self) -> int:
        """How many ranks the job has."""

    @property
    def clock(self) -> int:
        """The clock that runs now."""

    def batches(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        epochs: int = 1,
        schedule: Schedule = "static",
        data_shards: int | None = None,
    ) -> Iterator[Batch]:
        """The rank's batches; when the next one is asked for, the clock of the last is ticked."""


class Task(Protocol):
    """What a holder does at a time: `step` (from 1) of lane `rank` of a graph."""

    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...


class Tasks(TableOpener, Protocol):
    """The holder of a graph's tasks."""

    def run(self, work: Callable[[Any], None]) -> int:
        """Do one `Task` after the other with `work`, until all of the graph are done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker tells after each batch: `loss` is the batch's mean loss before its update."""

    rank: int
    clock: int
    rows: int
    samples: int
    loss: float

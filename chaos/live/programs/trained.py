"""What the workloads `train` and `train-..` train: a planted problem, and the model for it.

Data are drawn from a known model, so that there is something to be learnt, and rows that no rank
sees tell how much has been.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.models.api import TableOpener, Worker


class Trained(Protocol):
    """One problem with its model; made of a seed. Everything is the same on every machine."""

    measure: str
    """The number of `quality` that is compared with that of an undisturbed run."""

    def open(self, opener: TableOpener) -> None:
        """Create the model's tables, or find them."""

    def one_clock(self, worker: Worker) -> None:
        """The model's own loop over what (seed, rank, clock) determine; it is ticked afterwards.

        `batches` of the worker gives out one batch: that of `batch`.
        """

    def batch(self, rank: int, clock: int) -> Any:
        """That of a clock."""

    def digests(self, client: Client) -> dict[str, str]:
        """Of all parameters, by table."""

    def quality(self, client: Client) -> dict[str, float]:
        """Numbers by name, from the rows that no rank sees."""

    def contradictions(self, client: Client) -> list[str]:
        """What tables say of one another that cannot be true, whatever was learnt."""


def rows_of(client: Client, table: str, keys: NDArray[np.uint64]) -> NDArray[Any]:
    """The rows of a sparse table."""
    found = client.table(table)
    assert isinstance(found, SparseTable)
    return found.pull(keys)


def digest(array: NDArray[Any]) -> str:
    """Of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()

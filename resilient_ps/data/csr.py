"""Sparse data sets as scipy matrices, to give other libraries the same features."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.arrays import SparseArrayDataset
from resilient_ps.errors import BadInput


def to_csr(
    dataset: SparseArrayDataset, columns: NDArray[np.uint64] | None = None
) -> tuple[Any, NDArray[np.uint64]]:
    """(matrix, columns): float32 `scipy.sparse.csr_matrix`; its column j is the key `columns[j]`.

    Without `columns`, all keys of the data set become columns, sorted. With the columns of
    a training set, entries of other keys are left out, as a model without weights for them would.
    Raises `BadInput` when scipy is missing.
    """
    try:
        sparse = import_module("scipy.sparse")
    except ImportError as error:
        raise BadInput("to_csr needs scipy: pip install 'resilient-ps[demo]'") from error
    if columns is None:
        columns = np.unique(dataset.keys)
    at = np.searchsorted(columns, dataset.keys)
    known = columns[np.minimum(at, len(columns) - 1)] == dataset.keys
    rows = np.repeat(np.arange(len(dataset)), np.diff(dataset.row_offsets))
    shape = (len(dataset), len(columns))
    entries = (dataset.values[known], (rows[known], at[known]))
    return sparse.csr_matrix(entries, shape=shape, dtype=np.float32), columns

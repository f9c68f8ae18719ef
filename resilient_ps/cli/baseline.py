"""scikit-learn's logistic regression on the same rows, in a process of its own.

`python -m resilient_ps.cli.baseline train.npz test.npz C` prints one JSON object. The solver runs
until it has converged; C weighs the rows against the L2 penalty as FTRL's `l2` = 1/C does.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data import SparseArrayDataset, open_npz
from resilient_ps.errors import BadInput
from resilient_ps.models.losses import binary_targets
from resilient_ps.models.metrics import evaluate_margins

MAX_ITERATIONS = 2000


def is_installed() -> bool:
    """Is scikit-learn there?"""
    return find_spec("sklearn") is not None


def main(train_path: str, test_path: str, c_text: str) -> None:
    """Fit, evaluate, print."""
    from sklearn.linear_model import LogisticRegression  # takes seconds, and is optional

    train, test = _sparse(train_path), _sparse(test_path)
    columns = np.unique(train.keys)
    model = LogisticRegression(C=float(c_text), max_iter=MAX_ITERATIONS)
    model.fit(_matrix(train, columns), binary_targets(train.labels))
    margins = model.decision_function(_matrix(test, columns))
    found = evaluate_margins(binary_targets(test.labels), margins)
    iterations = int(model.n_iter_[0])
    result = {
        "auc": found.auc,
        "logloss": found.logloss,
        "iterations": iterations,
        "converged": iterations < MAX_ITERATIONS,
    }
    print(json.dumps(result), flush=True)


def _sparse(path: str) -> SparseArrayDataset:
    dataset = open_npz(path)
    if not isinstance(dataset, SparseArrayDataset):
        raise BadInput(f"{path} has dense rows; sparse ones are needed here")
    return dataset


def _matrix(rows: SparseArrayDataset, columns: NDArray[np.uint64]) -> Any:
    """CSR of the features that are in `columns`; others have no weight, so they are left out."""
    from scipy.sparse import csr_matrix

    at = np.minimum(np.searchsorted(columns, rows.keys), len(columns) - 1)
    known = columns[at] == rows.keys
    values = np.where(known, rows.values, np.float32(0)).astype(np.float64)
    return csr_matrix((values, at, rows.row_offsets), shape=(len(rows), len(columns)))


if __name__ == "__main__":
    main(*sys.argv[1:])

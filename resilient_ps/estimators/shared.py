"""What all estimators have in common: how they train, and how arrays become data sets."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from resilient_ps.consistency import parse_consistency
from resilient_ps.data import ArrayDataset, SparseArrayDataset
from resilient_ps.errors import BadInput
from resilient_ps.estimators.fitting import Fit

MAX_WORKERS = 64


class PSEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters that all have.

    `cluster`: None: a cluster of this process's own, which the first fit starts; or
    "HOST:PORT[,HOST:PORT...]/NAME": endpoints of etcd, and the cluster's name. `name`: of the
    job and of the tables' namespace for the time of a fit; None: one that nobody else has.
    `workers`: ranks, each a thread. `consistency`: "bsp", "bsp:mean", "ssp:3", "asp". `epochs`:
    passes over the data. `batch_size`: rows of a worker's clock. `learning_rate`: of Adagrad, or
    of what the estimator says. `seed`: of the order of rows. With "bsp" the same fit gives the same
    numbers again; with a `name`, or on the own cluster, also for models with random beginnings.
    """

    def _fit_plan(self) -> Fit:
        for name, least in (("workers", 1), ("epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < least:
                raise BadInput(f"{name}={value!r}: a whole number of at least {least} is needed")
        if self.workers > MAX_WORKERS:
            raise BadInput(f"workers={self.workers}: at most {MAX_WORKERS}")
        parse_consistency(self.consistency)
        return Fit(
            self.cluster,
            self.name,
            int(self.workers),
            self.consistency,
            int(self.batch_size),
            int(self.epochs),
        )

    def _rows(self, x: Any) -> Any:
        """`x` to be predicted, checked: a float32 array, or CSR where the estimator takes it."""
        takes_sparse = self.__sklearn_tags__().input_tags.sparse
        return validate_data(
            self, x, reset=False, dtype=np.float32, accept_sparse="csr" if takes_sparse else False
        )

    def _rows_and_targets(self, x: Any, y: Any, *, numeric: bool = False) -> tuple[Any, Any]:
        """The same of what is fitted to."""
        takes_sparse = self.__sklearn_tags__().input_tags.sparse
        return validate_data(  # type: ignore[no-any-return]
            self, x, y, dtype=np.float32, y_numeric=numeric,
            accept_sparse="csr" if takes_sparse else False,
        )  # fmt: skip

    def _encoded(self, y: Any) -> NDArray[np.int64]:
        """Class numbers; sets `classes_`."""
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least 2 classes; there is 1 class: "
                f"{self.classes_[0]!r}"
            )
        return np.asarray(codes, np.int64)


def dense_rows(x: NDArray[np.float32], y: NDArray[Any] | None, seed: int | None) -> ArrayDataset:
    """As a data set; the labels do not matter where they are not given."""
    labels = np.zeros(len(x), np.float32) if y is None else np.asarray(y, np.float32)
    return ArrayDataset(x, labels, shuffle_seed=seed)


def sparse_rows(x: Any, y: NDArray[Any] | None, seed: int | None) -> SparseArrayDataset:
    """CSR, or an array whose zeros are left out; a feature's key is the number of its column."""
    matrix = sparse.csr_matrix(x)
    labels = np.zeros(matrix.shape[0], np.float32) if y is None else np.asarray(y, np.float32)
    return SparseArrayDataset(
        labels,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.uint64),
        matrix.data.astype(np.float32),
        shuffle_seed=seed,
    )


def column_keys(count: int, *more: int) -> NDArray[np.uint64]:
    """The keys of so many columns, and others; in ascending order."""
    return np.sort(np.append(np.arange(count, dtype=np.uint64), np.array(more, np.uint64)))

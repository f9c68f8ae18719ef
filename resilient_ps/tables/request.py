"""Checks of what a push or a pull brings, before a kernel that checks nothing sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.tables.spec import TableSpec

UINT64 = np.dtype(np.uint64)


def check_array(
    spec: TableSpec, noun: str, array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """`array` as kernels want it (C order, aligned, writable: else a copy); BadInput if it differs.

    A length of -1 in `shape` stands for any.
    """
    if not isinstance(array, np.ndarray):
        raise BadInput(f"{spec.describe()}: {noun} must be a numpy array, not {type(array)}")
    if array.dtype != dtype:
        raise BadInput(f"{spec.describe()}: {noun} must be {dtype}, not {array.dtype}")
    if (
        array.ndim != len(shape)
        or (shape[0] >= 0 and array.shape[0] != shape[0])
        or (array.shape[1:] != shape[1:])
    ):
        wanted = str(shape).replace("-1", "any")
        raise BadInput(f"{spec.describe()}: {noun} must have shape {wanted}, not {array.shape}")
    return array if array.flags.carray else np.array(array, order="C")


def is_plain(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Is it such an array, in C order, though perhaps not aligned?"""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        return False
    return array.shape == shape and array.flags.c_contiguous

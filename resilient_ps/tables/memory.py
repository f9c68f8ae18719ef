"""Aligned memory for tables, in huge pages where it is large.

Rows are found at random, so that with pages of 4 KiB nearly every access needs an address
translation that no cache holds. Large arrays therefore have a mapping of their own, which begins at
a multiple of 2 MiB and asks the kernel for huge pages. Small ones begin at a cache line (numpy's
begin 16 bytes past one, and a row of 64 bytes would lie in two). All memory comes zeroed, and costs
nothing before it is touched.
"""

from __future__ import annotations

import contextlib
import mmap
from ctypes import addressof, c_char
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE_BYTES = 64
HUGE_PAGE_BYTES = 2 << 20
_MIN_MAPPED_BYTES = 2 * HUGE_PAGE_BYTES


def aligned_zeros(elements: int, dtype: Any) -> NDArray[Any]:
    """A 1-D array of zeros that begins at a multiple of 64 bytes, a large one of 2 MiB."""
    wanted = np.dtype(dtype)
    nbytes = elements * wanted.itemsize
    if nbytes >= _MIN_MAPPED_BYTES:
        raw, alignment = _mapped(nbytes + HUGE_PAGE_BYTES), HUGE_PAGE_BYTES
    else:
        raw, alignment = np.zeros(nbytes + CACHE_LINE_BYTES, np.uint8), CACHE_LINE_BYTES
    skip = (
        -addressof(c_char.from_buffer(raw.data)) % alignment
    )  # `raw.ctypes` takes six times as long
    return raw[skip : skip + nbytes].view(wanted)


def grown(array: NDArray[Any], elements: int) -> NDArray[Any]:
    """A copy of `array` (1-D) with room for `elements` (at least as many); the rest is zero."""
    larger = aligned_zeros(elements, array.dtype)
    larger[: array.size] = array
    return larger


def _mapped(nbytes: int) -> NDArray[np.uint8]:
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)

"""Aligned memory for tables, which grows without copying where the system can move pages.

numpy's arrays begin 16 bytes past a page, so that a 64-byte row straddles two cache lines; the
arrays here begin at a cache line. Pages come zeroed and cost nothing before they are touched.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE_BYTES = 64
# Below this, a mapping of its own (whole pages) would waste memory, and moving saves nothing.
_MIN_MAPPED_BYTES = 1 << 16


def aligned_zeros(elements: int, dtype: Any) -> NDArray[Any]:
    """A 1-D array of zeros that begins at a multiple of 64 bytes."""
    wanted = np.dtype(dtype)
    raw = np.zeros(elements * wanted.itemsize + CACHE_LINE_BYTES, np.uint8)
    skip = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[skip : skip + elements * wanted.itemsize].view(wanted)


class GrowingArray:
    """A 1-D array that keeps its contents when it grows; the new part is zero.

    `array` is valid until the next `grow`; nobody may keep it, or a view of it, beyond.
    """

    def __init__(self, elements: int, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._mapping: mmap.mmap | None = None
        self.array: NDArray[Any] = aligned_zeros(0, dtype)
        self.grow(elements)

    @property
    def bytes_held(self) -> int:
        """Bytes of address space; pages that were never written take no memory."""
        return int(self.array.nbytes)

    def grow(self, elements: int) -> None:
        """Make `array` hold `elements` elements, at least as many as before."""
        bytes_wanted = elements * self._dtype.itemsize
        if bytes_wanted < _MIN_MAPPED_BYTES:
            self._copy_to(aligned_zeros(elements, self._dtype))
        elif self._mapping is None or not self._move(bytes_wanted):
            mapping = mmap.mmap(-1, bytes_wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._ask_for_huge_pages(mapping)
            self._copy_to(np.frombuffer(mapping, self._dtype, elements))
            self._mapping = mapping

    def _move(self, bytes_wanted: int) -> bool:
        assert self._mapping is not None
        elements_before = self.array.size
        self.array = np.empty(0, self._dtype)  # mmap refuses to move under a live view
        try:
            self._mapping.resize(bytes_wanted)
        except (SystemError, BufferError, OSError):  # no mremap here, or a view is alive
            self.array = np.frombuffer(self._mapping, self._dtype, elements_before)
            return False
        self._ask_for_huge_pages(self._mapping)
        self.array = np.frombuffer(self._mapping, self._dtype, bytes_wanted // self._dtype.itemsize)
        return True

    def _copy_to(self, larger: NDArray[Any]) -> None:
        larger[: self.array.size] = self.array
        self.array = larger

    @staticmethod
    def _ask_for_huge_pages(mapping: mmap.mmap) -> None:
        if hasattr(mmap, "MADV_HUGEPAGE"):  # random rows: fewer address translations
            try:
                mapping.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without them
                return

"""Memory that begins at cache lines, or at huge pages, and grows with its contents."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.tables.memory import HUGE_PAGE_BYTES, aligned_zeros, grown


@pytest.mark.parametrize("elements", [1, 7, 1000, 100_000, 2_000_000])
@pytest.mark.parametrize("dtype", ["float32", "uint64"])
def test_arrays_are_zero_and_begin_at_a_cache_line(elements: int, dtype: str) -> None:
    array = aligned_zeros(elements, dtype)
    assert (array.size, array.dtype) == (elements, np.dtype(dtype))
    assert array.ctypes.data % 64 == 0
    assert array.flags.writeable
    assert not array.any()


def test_large_arrays_begin_at_a_huge_page() -> None:
    for elements in (1_000_001, 3_000_000):
        assert aligned_zeros(elements, np.float64).ctypes.data % HUGE_PAGE_BYTES == 0


def test_contents_stay_and_new_elements_are_zero_at_every_size() -> None:
    array = aligned_zeros(3, np.float64)
    array[:] = np.arange(3)
    for _ in range(19):
        size = array.size
        array = grown(array, 2 * size)
        np.testing.assert_array_equal(array[:size], np.arange(size))
        assert not array[size:].any()
        array[:] = np.arange(2 * size)


def test_a_view_of_what_was_before_stays() -> None:
    array = aligned_zeros(1_000_000, np.float64)
    view = array[:5]
    larger = grown(array, 2_000_000)
    larger[:] = 2
    assert view.tolist() == [0] * 5

"""Memory that begins at cache lines and grows with its contents."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.tables.memory import GrowingArray, aligned_zeros


@pytest.mark.parametrize("elements", [1, 7, 1000, 100_000])
@pytest.mark.parametrize("dtype", ["float32", "uint64"])
def test_arrays_are_zero_and_begin_at_a_cache_line(elements: int, dtype: str) -> None:
    array = aligned_zeros(elements, dtype)
    assert (array.size, array.dtype) == (elements, np.dtype(dtype))
    assert array.ctypes.data % 64 == 0
    assert not array.any()


def test_contents_stay_and_new_elements_are_zero_at_every_size() -> None:
    growing = GrowingArray(3, np.float64)
    size = 3
    growing.array[:] = np.arange(3)
    for _ in range(20):
        growing.grow(2 * size)
        assert growing.array.ctypes.data % 64 == 0
        np.testing.assert_array_equal(growing.array[:size], np.arange(size))
        assert not growing.array[size:].any()
        size *= 2
        growing.array[:] = np.arange(size)
    assert growing.bytes_held == 8 * size


def test_it_grows_also_while_a_view_is_alive() -> None:
    """Then by copying: the view keeps the old pages."""
    growing = GrowingArray(100_000, np.float64)
    growing.array[:] = 1
    view = growing.array[:5]
    growing.grow(400_000)
    growing.array[:] = 2
    assert view.tolist() == [1] * 5
    view = growing.array[:5]
    growing.grow(800_000)
    assert growing.array[399_999] == 2
    assert growing.array[400_000] == 0

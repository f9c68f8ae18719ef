"""Runs of consecutive blocks of a dense table: how most requests name them, and the quick way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.engine import native
from resilient_ps.tables import passes


def _run_of(blocks: NDArray[np.uint64]) -> tuple[int, int] | None:
    if blocks.dtype != np.uint64 or blocks.ndim != 1 or not blocks.size:
        return None
    first = int(blocks[0])
    if first > 1 << 62 or not np.array_equal(blocks - blocks[0], np.arange(blocks.size)):
        return None
    return first, first + blocks.size


def _push_run(
    values: NDArray[Any],
    state: NDArray[Any],
    grads: NDArray[Any],
    first_block: int,
    block_elements: int,
    *known: NDArray[Any],
) -> None:
    end = first_block + -(-grads.size // block_elements)
    blocks = np.arange(first_block, end, dtype=np.int64)
    passes.push_blocks(values, state, grads, blocks, block_elements, *known)


run_of = _run_of if native is None else native.run_of
"""`run_of(blocks)`: the first of the blocks (uint64, 1-D), and one more than the last, if they
follow one another; else None."""

push_run = _push_run if native is None else native.push_run
"""`push_run(values, state, grads, first block, ...)`: as `push_blocks`, for blocks (numbers within
the shard) that follow one another; the native one works on all cores where there is much to do."""

"""Compile or load all kernels before they are needed, so that no request waits for a compiler.

With the native module nothing is left to do. A numba kernel is compiled once per dtype for a
machine, which takes seconds, and then lies in numba's cache; loading it takes milliseconds. Servers
call `warm_up` before they listen, clients `warm_up_client` when they connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient_ps.engine import ENGINE
from resilient_ps.tables import partition, passes
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DTYPES, DenseSpec, Dtype, SparseSpec

Progress = Callable[[str], None]

NOTHING_TO_DO = ENGINE == "native"


def server_kernels() -> tuple[Any, ...]:
    """numba's kernels of servers."""
    from resilient_ps.tables import kernels

    return (
        kernels.push_rows,
        kernels.load_rows,
        kernels.pull_rows,
        kernels.rehash,
        kernels.forget_stamps,
        kernels.row_numbers,
        kernels.claim_rows,
        kernels.survey_rows,
        kernels.push_blocks,
        kernels.fill_rows,
    )


def client_kernels() -> tuple[Any, ...]:
    """numba's kernels of clients."""
    from resilient_ps.tables import grouping

    return (grouping.group_keys, grouping.gather_words, grouping.scatter_words)


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up did: `kernels` are ready, of which `compiled` were compiled now and `loaded`
    came from the cache; the others were ready before.
    """

    kernels: int
    compiled: int
    loaded: int


def warm_up(dtypes: Iterable[Dtype] = DTYPES, progress: Progress | None = None) -> WarmUp:
    """Make all kernels of servers ready for tables of `dtypes`.

    `progress` is called with a line of text before each part.
    """
    if NOTHING_TO_DO:
        return WarmUp(0, 0, 0)
    parts = [(f"kernels for {dtype} tables", _table_run(dtype)) for dtype in dtypes]
    return _measured(server_kernels(), parts, progress)


def warm_up_client(progress: Progress | None = None) -> WarmUp:
    """Make the kernels ready that group keys by shard and move rows."""
    if NOTHING_TO_DO:
        return WarmUp(0, 0, 0)
    return _measured(client_kernels(), [("kernels of the client", _run_client)], progress)


def _measured(
    dispatchers: tuple[Any, ...],
    parts: list[tuple[str, Callable[[], None]]],
    progress: Progress | None,
) -> WarmUp:
    compiled, loaded = _counts(dispatchers)
    for text, run in parts:
        if progress is not None:
            progress(text)
        run()
    compiled_after, loaded_after = _counts(dispatchers)
    return WarmUp(
        kernels=sum(len(dispatcher.signatures) for dispatcher in dispatchers),
        compiled=compiled_after - compiled,
        loaded=loaded_after - loaded,
    )


def _counts(dispatchers: tuple[Any, ...]) -> tuple[int, int]:
    """Signatures compiled, and loaded from the cache, since the process began."""
    loaded = sum(sum(dispatcher.stats.cache_hits.values()) for dispatcher in dispatchers)
    ready = sum(len(dispatcher.signatures) for dispatcher in dispatchers)
    return ready - loaded, loaded


def _table_run(dtype: Dtype) -> Callable[[], None]:
    def run() -> None:
        sparse = SparseShard(SparseSpec("warm-up", 1, dtype))
        keys = np.arange(1024, dtype=np.uint64)  # enough to make the index grow
        sparse.push(keys, np.ones((keys.size, 1), dtype))
        sparse.pull(keys)
        sparse.load(*sparse.capture(0, 1))
        sparse.row_numbers(keys)
        sparse.claim(keys, np.zeros(len(sparse), np.uint8), 0, len(sparse))
        sparse.survey(sparse.mark(), 0, 1, np.zeros(len(sparse), np.bool_))
        passes.forget_stamps(np.zeros(2, np.uint64))
        spec = DenseSpec("warm-up", (1,), dtype)
        dense = DenseShard(spec, DenseLayout(spec, 1), 0)
        dense.push(dense.blocks, np.ones(1, dtype))

    return run


def _run_client() -> None:
    order, _, _ = partition.partition(np.arange(2, dtype=np.uint64), 2)
    for dtype in (np.float32, np.float64):
        rows = np.ones((2, 1), dtype)
        partition.scatter_rows(rows, order, partition.gather_rows(rows, order, np.empty_like(rows)))

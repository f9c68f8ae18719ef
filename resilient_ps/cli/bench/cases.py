"""What is measured: each case does one kind of request again and again.

A case's `run` performs its requests and gives the seconds that they took; `amount` says how many
rows, bytes or requests that was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.tables.optimisers import SGD, Adagrad

Unit: TypeAlias = Literal["rows", "bytes"]
Action: TypeAlias = Literal["push", "pull"]

ROW_BYTES = 72  # what a row of 16 float32 and its key take on the wire
KEY_SETS = 8
FILL_KEYS = 200_000
WINDOW = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. `bar`: the least ratio to the raw limit that is promised, if any."""

    name: str
    action: Action
    unit: Unit
    table: str
    keys: int  # per request; 0: dense
    amount: int  # rows, bytes or 1 per request
    wire_bytes: int  # keys and values of one request
    times: int  # requests per round
    window: int = 1
    bar: float | None = None
    bar_round_trips: float | None = None


@dataclass(frozen=True, slots=True)
class SparseShape:
    """A sparse table to be filled before it is measured."""

    rows: int
    dim: int

    @property
    def name(self) -> str:
        """Of the table."""
        return f"bench/sparse-{self.rows}-{self.dim}"


SPARSE_BARS = {(10_000, "push"): 0.21, (10_000, "pull"): 0.22, (200_000, "push"): 0.24}
SPARSE_BARS[200_000, "pull"] = 0.25
DENSE_BARS = {"push": 0.6, "pull": 0.75}
BAR_ROUND_TRIPS = 4.0


def dense_cases(sizes_mib: tuple[int, ...]) -> Iterator[Case]:
    """Push and pull of whole arrays of so many MiB."""
    for mib in sizes_mib:
        size = mib << 20
        for action in ("push", "pull"):
            bar = DENSE_BARS[action] if mib in (4, 16) else None
            times = max(2, 64 // mib)
            name = f"dense {mib} MiB"
            yield Case(name, action, "bytes", dense_name(mib), 0, size, size, times, bar=bar)


def dense_name(mib: int) -> str:
    """Of the table of so many MiB."""
    return f"bench/dense-{mib}"


def sparse_cases(shape: SparseShape, counts: tuple[int, ...]) -> Iterator[Case]:
    """Push and pull of so many keys, one by one and with several under way."""
    row_bytes = 8 + 4 * shape.dim
    for count in counts:
        times = max(3, min(200, 400_000 // count))
        for window in (1, WINDOW):
            for action in ("push", "pull"):
                barred = shape == SparseShape(1_000_000, 16) and window == 1
                yield Case(
                    f"{count:,} x {shape.dim} / {shape.rows:.0e}".replace("e+0", "e"),
                    action,
                    "rows",
                    shape.name,
                    count,
                    count,
                    count * row_bytes,
                    times,
                    window,
                    SPARSE_BARS.get((count, action)) if barred else None,
                    BAR_ROUND_TRIPS if barred and count == 256 and action == "pull" else None,
                )


def open_dense(worker: Worker, mib: int) -> DenseTable:
    """A dense float32 table of so many MiB, under SGD."""
    shape = ((mib << 20) // 4 // 256, 256)
    return worker.dense_table(dense_name(mib), shape=shape, optimiser=SGD(lr=1e-6))


def open_sparse(worker: Worker, shape: SparseShape) -> SparseTable:
    """A sparse float32 table under Adagrad."""
    return worker.sparse_table(shape.name, dim=shape.dim, optimiser=Adagrad(lr=1e-3))


def fill(table: SparseTable, shape: SparseShape) -> None:
    """Create all rows."""
    for start in range(0, shape.rows, FILL_KEYS):
        keys = row_keys(np.arange(start, min(start + FILL_KEYS, shape.rows), dtype=np.uint64))
        table.push(keys, np.full((len(keys), shape.dim), 1e-3, np.float32))


def row_keys(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys that look random: an odd multiple of the number, modulo 2**64."""
    return numbers * np.uint64(0x9E3779B97F4A7C15)


class Load:
    """A case, ready to be run by one worker: its table and several sets of arrays."""

    def __init__(self, case: Case, table: SparseTable | DenseTable, rows: int, seed: int) -> None:
        self._case = case
        self._table = table
        rng = np.random.Generator(np.random.PCG64(seed))
        self._turn = 0
        if isinstance(table, SparseTable):
            numbers = [rng.choice(rows, case.keys, replace=False) for _ in range(KEY_SETS)]
            self._keys = [row_keys(chosen.astype(np.uint64)) for chosen in numbers]
            self._array = rng.standard_normal((case.keys, table.spec.dim), np.float32) * 1e-3
        else:
            self._array = np.full(table.spec.shape, 1e-3, np.float32)
        self._array = self._array.astype(np.float32)
        self._out = np.empty_like(self._array)

    def run(self) -> float:
        """Seconds for `case.times` requests."""
        start = time.perf_counter()
        if self._case.window == 1:
            for _ in range(self._case.times):
                self._start_one().result()
        else:
            self._run_window()
        return time.perf_counter() - start

    def _run_window(self) -> None:
        under_way: deque[Any] = deque()
        for _ in range(self._case.times):
            if len(under_way) == self._case.window:
                under_way.popleft().result()
            under_way.append(self._start_one())
        while under_way:
            under_way.popleft().result()

    def _start_one(self) -> Any:
        pull = self._case.action == "pull"
        if isinstance(self._table, DenseTable):
            if pull:
                return self._table.pull_async(self._out)
            return self._table.push_async(self._array, copy=False)
        self._turn = (self._turn + 1) % KEY_SETS
        keys = self._keys[self._turn]
        out = self._out if self._case.window == 1 else None
        return (
            self._table.pull_async(keys, out) if pull else self._table.push_async(keys, self._array)
        )

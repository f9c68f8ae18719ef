"""A tiny training problem for BSP: a dense and a sparse table, and the same in plain numpy."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.worker import (
    Operation,
    Pull,
    Push,
    SimWorker,
    Tick,
    Together,
    Wait,
)
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.tables.optimisers import SGD
from resilient_ps.tables.spec import DenseSpec, SparseSpec

CLOCKS = 4
SHAPE = (6, 3)
KEYS = 40
DIM = 2
DENSE_LR, SPARSE_LR = 0.1, 0.3


def dense_gradient(rank: int, clock: int, weights: Any) -> Any:
    offsets = np.arange(weights.size, dtype=np.float32).reshape(weights.shape)
    return np.sin(weights * np.float32(rank + 1) + offsets + np.float32(clock))


def sparse_keys(rank: int, clock: int) -> Any:
    """Some keys are those of other ranks, some are named twice."""
    return np.array([(7 * clock + 3 * rank * i) % KEYS for i in range(6)], np.uint64)


def sparse_gradient(rank: int, clock: int, rows: Any) -> Any:
    offsets = np.arange(rows.size, dtype=np.float32).reshape(rows.shape)
    return np.cos(rows + offsets + np.float32(rank) / np.float32(clock))


@dataclass
class BspProblem:
    """The problem on a simulated cluster."""

    seed: int
    ranks: int = 4
    mode: BSP = field(default_factory=BSP)

    def __post_init__(self) -> None:
        self.cluster = SimCluster(self.seed)
        self.world = self.cluster.world
        self.dense = self.cluster.create_table(
            1, DenseSpec("dense", SHAPE, "float32", SGD(DENSE_LR))
        )
        self.sparse = self.cluster.create_table(
            2, SparseSpec("sparse", DIM, "float32", SGD(SPARSE_LR))
        )
        self.job = JobSpec(1, "train", self.ranks, self.mode)
        self.workers: list[SimWorker] = []
        self.incarnations = dict.fromkeys(range(self.ranks), 0)

    def spawn(self, rank: int) -> SimWorker:
        self.incarnations[rank] += 1
        worker = self.cluster.spawn(self.job, rank, self.incarnations[rank], self.program)
        self.workers.append(worker)
        return worker

    def program(self, worker: SimWorker) -> Generator[Operation, Any, None]:
        rank, rng = worker.rank, worker.world.rng
        while worker.clock <= CLOCKS:
            clock = worker.clock
            weights = yield Pull(self.dense)
            keys = sparse_keys(rank, clock)
            rows = yield Pull(self.sparse, keys)
            yield Wait(int(rng.exponential(300_000)))
            first, second = sparse_gradient(rank, clock, rows), sparse_gradient(rank, -clock, rows)
            yield Together(
                (
                    Push(self.sparse, keys, first),
                    Push(self.dense, None, dense_gradient(rank, clock, weights)),
                    Push(self.sparse, keys[:3], second[:3]),
                )
            )
            yield Tick(b"%d" % clock)

    def run(self) -> tuple[bytes, bytes]:
        """Until all ranks are done: the tables' bytes."""
        for rank in range(self.ranks):
            if self.incarnations[rank] == 0:
                self.spawn(rank)
        assert self.cluster.run(self.workers), "the run is stuck"
        assert [w.error for w in self.workers if w.error is not None] == []
        return self.model()

    def model(self) -> tuple[bytes, bytes]:
        dense = self.cluster.read(self.dense)
        sparse = self.cluster.read(self.sparse, np.arange(KEYS, dtype=np.uint64))
        return dense.tobytes(), sparse.tobytes()


def loop(ranks: int, mode: BSP) -> tuple[bytes, bytes]:
    """The same in one process: the ranks one after the other, in every clock."""
    dense = np.zeros(SHAPE, np.float32)
    sparse = np.zeros((KEYS, DIM), np.float32)
    factor = np.float32(1 / ranks) if mode.reduce == "mean" else np.float32(1)
    for clock in range(1, CLOCKS + 1):
        dense_sum = np.zeros(SHAPE, np.float32)
        sums: dict[int, Any] = {}
        for rank in range(ranks):
            dense_sum += dense_gradient(rank, clock, dense) * factor
            keys = sparse_keys(rank, clock)
            rows = sparse[keys.astype(int)]
            first, second = sparse_gradient(rank, clock, rows), sparse_gradient(rank, -clock, rows)
            pairs = [*zip(keys, first, strict=True), *zip(keys[:3], second[:3], strict=True)]
            for key, gradient in pairs:
                scaled = gradient * factor
                sums[int(key)] = sums[int(key)] + scaled if int(key) in sums else scaled
        dense = dense - np.float32(DENSE_LR) * dense_sum
        for key, total in sums.items():
            sparse[key] = sparse[key] - np.float32(SPARSE_LR) * total
    return dense.tobytes(), sparse.tobytes()

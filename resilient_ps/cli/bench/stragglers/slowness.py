"""Who is slow when: a rule that every process computes for itself, from the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Pattern(StrEnum):
    """`RANDOM`: in every clock one worker, drawn anew; `FIXED`: rank 0, in every clock."""

    RANDOM = "random"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Slowness:
    """A clock's computation lasts `compute_s`, and `factor` times that where a rank is slow."""

    pattern: Pattern
    ranks: int
    compute_s: float
    factor: float
    seed: int

    def slow_ranks(self, clocks: int) -> NDArray[np.int64]:
        """The slow rank of each clock, from the first on."""
        if self.pattern is Pattern.FIXED:
            return np.zeros(clocks, np.int64)
        return np.random.Generator(np.random.PCG64(self.seed)).integers(0, self.ranks, clocks)

    def seconds(self, rank: int, clocks: int) -> NDArray[np.float64]:
        """How long each of the rank's computations lasts."""
        slow = self.slow_ranks(clocks) == rank
        return np.where(slow, self.compute_s * self.factor, self.compute_s)

    def rounds_per_s(self, clocks: int, staleness: int | None) -> float:
        """Clocks of all ranks per second if computing were all there is; None: without a bound.

        The least that can be waited: a rank begins clock c when it has ended c-1, and all ranks
        have ended c-1-staleness. The rate is that until the first rank is through, as measured.
        """
        ends = np.zeros((clocks + 1, self.ranks))
        lasts = np.stack([self.seconds(rank, clocks) for rank in range(self.ranks)], axis=1)
        for clock in range(1, clocks + 1):
            begins = ends[clock - 1]
            if staleness is not None and clock - 1 - staleness > 0:
                begins = np.maximum(begins, ends[clock - 1 - staleness].max())
            ends[clock] = begins + lasts[clock - 1]
        until_s = ends[-1].min()
        return float((ends[1:] <= until_s).sum() / self.ranks / until_s)

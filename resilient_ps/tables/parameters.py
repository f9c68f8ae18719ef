"""What both engines know of a table: the numbers in `meta` and `hyper`, and their places.

See `kernels` for the layout of entries and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.tables.memory import CACHE_LINE_BYTES, aligned_zeros
from resilient_ps.tables.optimisers import HYPERPARAMETERS
from resilient_ps.tables.spec import TableSpec

Int: TypeAlias = int | np.int64  # in compiled code, both are the same

MAX_ROWS = (1 << 31) - 2
RING = 63  # positions share scratch modulo 64: more than are ever under way

# Where numbers stand in `meta`; a ring of scratch for slots follows at SLOTS.
ROWS, CREATED, INDEXABLE, ROOM, BASE, LOCATED = range(6)
DIM, STRIDE, LINE, FORMULA, INIT_KIND, SEED, SLOTS = range(6, 13)
# Where they stand in `hyper`, after the optimiser's own.
INIT_A, INIT_B, INITIAL_STATE = range(HYPERPARAMETERS, HYPERPARAMETERS + 3)

DONE, INDEX_FULL, ROOM_FULL, REPEATED = 0, 1, 2, 3
"""What `push_rows` and `load_rows` answer: done, or what must grow before it is called again to go
on. `REPEATED`: a key is to be loaded twice, and nothing was written."""

FORMULA_NAMES = ("sum", "sgd", "momentum", "nesterov", "adagrad", "adam", "ftrl")
NUMBERS = {name: number for number, name in enumerate(FORMULA_NAMES)}
ADAM = NUMBERS["adam"]


@dataclass(frozen=True)
class Parameters:
    """What the kernels need to know of a table: see the module's docstring.

    `work` begins with the hyperparameters in the table's dtype; a row of scratch follows.
    """

    meta: NDArray[np.int64]
    hyper: NDArray[np.float64]
    work: NDArray[Any]

    @staticmethod
    def of(spec: TableSpec, dim: int) -> Parameters:
        """New arrays for a table whose rows have `dim` values."""
        meta = aligned_zeros(SLOTS + RING + 1, np.int64)
        meta[FORMULA] = NUMBERS[spec.optimiser.formula]
        meta[INIT_KIND] = spec.initialiser.kind
        meta[SEED : SEED + 1].view(np.uint64)[0] = spec.seed
        meta[DIM] = dim
        meta[LINE] = CACHE_LINE_BYTES // np.dtype(spec.dtype).itemsize
        hyper = np.zeros(HYPERPARAMETERS + 3)
        hyper[[INIT_A, INIT_B]] = spec.initialiser.parameters()
        hyper[INITIAL_STATE] = spec.optimiser.initial_state()
        parameters = Parameters(meta, hyper, aligned_zeros(HYPERPARAMETERS + dim, spec.dtype))
        parameters.set_optimiser(spec)
        return parameters

    def set_optimiser(self, spec: TableSpec) -> None:
        """Take over the hyperparameters of `spec.optimiser`."""
        self.hyper[:HYPERPARAMETERS] = spec.optimiser.hyperparameters()
        if spec.dtype != "int64":
            self.work[:HYPERPARAMETERS] = self.hyper[:HYPERPARAMETERS]

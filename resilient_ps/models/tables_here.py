"""Tables in this process, for one who trains alone: the same bytes as those of a cluster.

A table is what a server has for one shard, so initial values and steps of optimisers are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.tables.initialisers import Initialiser, Zeros
from resilient_ps.tables.optimisers import Optimiser
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import Dtype, SparseSpec


class SparseTableHere(SparseShard):
    """A sparse table; a push takes effect at once."""

    def pull_async(self, keys: NDArray[np.uint64]) -> Done:
        """As `pull`."""
        return Done(self.pull(keys))

    def push_async(self, keys: NDArray[np.uint64], grads: NDArray[Any]) -> Done:
        """As `push`."""
        self.push(keys, grads)
        return Done(None)


class Done:
    """What is over already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        """At once."""
        return self._value


class TablesHere:
    """Opens sparse tables."""

    def __init__(self) -> None:
        self._tables: dict[str, SparseTableHere] = {}

    def sparse_table(
        self,
        name: str,
        *,
        dim: int,
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser | None = None,
    ) -> SparseTableHere:
        """The table of this name."""
        if name not in self._tables:
            spec = SparseSpec(name, dim, dtype, optimiser, initialiser or Zeros())
            self._tables[name] = SparseTableHere(spec)
        return self._tables[name]

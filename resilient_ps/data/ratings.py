"""Ratings of items by users, in memory: what recommenders are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.arrays import SparseArrayDataset
from resilient_ps.data.categories import Category
from resilient_ps.errors import BadInput


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """`n` ratings: who (int64 (n,)), what (int64 (n,)), how much (float32 (n,)), and when.

    `users` and `items` are any whole numbers; `times` int64 (n,) are seconds since 1970.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    ratings: NDArray[np.float32]
    times: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ratings)

    def split(self, held_out: float = 0.2, seed: int = 0) -> tuple[Ratings, Ratings]:
        """(train, test): `held_out` in (0, 1) is the share of the ratings that are the test set.

        They are drawn at random; the same for a seed (>= 0) on every machine.
        """
        if not 0 < held_out < 1 or seed < 0:
            raise BadInput(f"held_out={held_out}, seed={seed}: between 0 and 1, and at least 0")
        # Sorting raw generator output: unlike `permutation`, numpy guarantees that it never changes
        order = np.argsort(np.random.PCG64(seed).random_raw(len(self)), kind="stable")
        cut = round(len(self) * held_out)
        if not 0 < cut < len(self):
            raise BadInput(f"held_out={held_out} of {len(self)} ratings: one part would be empty")
        return self._at(np.sort(order[cut:])), self._at(np.sort(order[:cut]))

    def _at(self, rows: NDArray[np.intp]) -> Ratings:
        return Ratings(self.users[rows], self.items[rows], self.ratings[rows], self.times[rows])

    def dataset(self, *, shuffle_seed: int | None = None) -> SparseArrayDataset:
        """As rows of two features, the user and then the item; the label is the rating.

        Their keys are those of the categories "user=U" and "item=I" in a table with columns.
        """
        keys = np.empty((len(self), 2), np.uint64)
        keys[:, 0] = _category("user", self.users).keys()
        keys[:, 1] = _category("item", self.items).keys()
        offsets = np.arange(len(self) + 1, dtype=np.int64) * 2
        return SparseArrayDataset(self.ratings, offsets, keys.ravel(), shuffle_seed=shuffle_seed)


def _category(name: str, numbers: NDArray[np.int64]) -> Category:
    distinct, codes = np.unique(numbers, return_inverse=True)
    return Category(name, [str(number) for number in distinct.tolist()], codes)

"""What all platforms train: data, model, batch size and learning rate, and how the loss is told.

The sizes are those of Zhang et al., "A comparison of distributed machine learning platforms"
(ICCCN 2017): logistic regression on 10,000 samples of 10,000 features; softmax regression and
networks with one and two hidden layers on 60,000 pictures of 784 pixels. The data are planted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resilient_ps.cli.bench.planted import dense_classes, dense_two_classes
from resilient_ps.data import ArrayDataset
from resilient_ps.models.losses import cross_entropies, log_losses

Weights = list[NDArray[np.float32]]

CHUNK_ROWS = 5_000
LOGISTIC = "logistic"
PICTURES, PIXELS, DIGITS = 60_000, 784, 10
LR_ROWS, LR_WIDTH = 10_000, 10_000
HIDDEN = 256


@dataclass(frozen=True, slots=True)
class Problem:
    """`batch_size`: rows of a step of all workers together. `hidden`: widths of hidden layers.

    With two classes the model is logistic regression, with one column of weights; else softmax.
    """

    name: str
    rows: int
    width: int
    classes: int
    hidden: tuple[int, ...]
    batch_size: int
    lr: float

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the layers' weights, the biases as the last row."""
        outputs = 1 if self.classes == 2 else self.classes
        return [(i + 1, o) for i, o in pairwise((self.width, *self.hidden, outputs))]

    def to_json(self) -> str:
        """For the command line of a program."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The inverse."""
        fields = json.loads(text)
        return cls(**{**fields, "hidden": tuple(fields["hidden"])})

    # -- data

    def save(self, folder: Path, seed: int) -> None:
        """Plant the rows, and write them where `load` finds them; problems may share them."""
        if self._path(folder, "labels").exists():
            return
        if self.classes == 2:
            dataset = dense_two_classes(self.rows, self.width, seed)
        else:
            dataset = dense_classes(self.rows, self.width, self.classes, seed)
        np.save(self._path(folder, "features"), dataset.features)
        np.save(self._path(folder, "labels"), dataset.labels)

    def load(self, folder: Path) -> ArrayDataset:
        """All rows: memory that processes share, as long as nobody writes."""
        features = np.load(self._path(folder, "features"), mmap_mode="r")
        return ArrayDataset(features, np.load(self._path(folder, "labels")))

    def _path(self, folder: Path, what: str) -> Path:
        return folder / f"{self.rows}-{self.width}-{self.classes}-{what}.npy"

    # -- model

    def initial(self, seed: int) -> Weights:
        """Where training begins: the last layer with zeros, the others uniform (He et al. 2015)."""
        rng = np.random.Generator(np.random.PCG64(seed))
        weights = [np.zeros(shape, np.float32) for shape in self.shapes]
        for layer in weights[:-1]:
            bound = np.float32(np.sqrt(6.0 / (len(layer) - 1)))
            layer[:] = (2 * rng.random(layer.shape, np.float32) - 1) * bound
        return weights

    def loss(self, weights: Sequence[NDArray[np.floating]], dataset: ArrayDataset) -> float:
        """Mean log loss over all rows."""
        layers = [np.asarray(layer, np.float32) for layer in weights]
        total = 0.0
        for at in range(0, len(dataset), CHUNK_ROWS):
            x = dataset.features[at : at + CHUNK_ROWS]
            for number, layer in enumerate(layers):
                x = x @ layer[:-1] + layer[-1]
                if number < len(layers) - 1:
                    x = np.maximum(x, np.float32(0))
            labels, scores = dataset.labels[at : at + CHUNK_ROWS], x.astype(np.float64)
            if self.classes == 2:
                total += log_losses(scores[:, 0], labels.astype(np.float64)).sum()
            else:
                total += cross_entropies(scores, labels.astype(np.int64)).sum()
        return total / len(dataset)


def problems(scale: float = 1.0) -> tuple[Problem, ...]:
    """All four; `scale` < 1: of fewer rows and features, for trying the bench out."""
    rows, width = round(LR_ROWS * scale), round(LR_WIDTH * scale)
    pictures, hidden = round(PICTURES * scale), max(8, round(HIDDEN * scale))
    common = {"rows": pictures, "width": PIXELS, "classes": DIGITS}
    batch, lr_batch = max(20, round(500 * scale)), max(20, round(1000 * scale))
    return (
        Problem(LOGISTIC, rows, width, 2, (), lr_batch, 0.1),
        Problem("softmax", **common, hidden=(), batch_size=batch, lr=0.02),
        Problem("1 hidden", **common, hidden=(hidden,), batch_size=batch, lr=0.02),
        Problem("2 hidden", **common, hidden=(hidden, hidden), batch_size=batch, lr=0.02),
    )

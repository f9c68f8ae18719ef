"""What a worker trains: the flags of `train`, and the model and data set that they describe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from resilient_ps.data import Dataset, DenseBatch, open_dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.models import (
    MLP,
    DenseLogisticRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from resilient_ps.tables.optimisers import OPTIMISERS, Optimiser

Trained: TypeAlias = LogisticRegression | DenseLogisticRegression | MLP

DEFAULT_BATCH_SIZE = 1024
USUAL_RATE = 0.1
TEXT_TABLES = ("csv", "tsv", "parquet")  # formats with columns, which can be read as plain numbers
_OF_FTRL_ONLY = ("beta", "l1")


class Model(StrEnum):
    """The models that `train` knows."""

    LOGISTIC = "logistic"
    SOFTMAX = "softmax"
    MLP = "mlp"


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """Each field is the flag of that name; None and "" mean that the flag was not given."""

    model: Model
    dataset: str
    job: str
    consistency: str = "ssp:3"
    format: str = "auto"
    batch_size: int = DEFAULT_BATCH_SIZE
    epochs: int = 1
    schedule: Schedule = "static"
    data_shards: int | None = None
    evict_after: float | None = None
    table: str | None = None
    optimiser: str | None = None
    lr: float | None = None
    beta: float | None = None
    l1: float | None = None
    l2: float | None = None
    momentum: float | None = None
    reduction: str | None = None
    classes: int | None = None
    hidden: str | None = None
    label: str | None = None
    on_bad: str | None = None
    dense: bool = False
    seed: int | None = None

    def flags(self) -> list[str]:
        """The command line that gives this plan."""
        words = [self.model.value]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "model" or value is None or value is False:
                continue
            words.append("--" + field.name.replace("_", "-"))
            words += [] if value is True else [str(value)]
        return words

    # -- data

    def open_dataset(self) -> Dataset:
        """The data set. Raises `BadInput` and `NotFound` naming the file."""
        options: dict[str, Any] = {}
        if self.label is not None:
            options["label"] = int(self.label) if self.label.isdigit() else self.label
        if self.on_bad is not None:
            options["on_bad"] = self.on_bad
        if self.seed is not None:
            options["shuffle_seed"] = self.seed
        if self.dense or (self.model is not Model.LOGISTIC and self._has_columns()):
            options["dense"] = True
        return open_dataset(self.dataset, self.format, **options)

    def _has_columns(self) -> bool:
        name = self.dataset.lower().removesuffix(".gz").removesuffix(".zip")
        return self.format in TEXT_TABLES or (
            self.format == "auto" and name.endswith((*[f".{kind}" for kind in TEXT_TABLES], ".pq"))
        )

    # -- model

    def build_model(self, dataset: Dataset) -> Trained:
        """The model, as wide as the rows of the data set."""
        width = _width(dataset)
        if self.model is Model.LOGISTIC:
            self._refuse("classes", "hidden")
            return self._sparse() if width is None else self._dense_logistic(width)
        if width is None:
            raise BadInput(
                f"{self.dataset} has sparse rows; {self.model.value} takes rows of numbers: use "
                "csv, tsv or parquet with numeric columns, or an .npz with a matrix X"
            )
        return self._network(width)

    def _sparse(self) -> LogisticRegression:
        model = LogisticRegression(**self._given(table=self.table, reduction=self.reduction))
        return dataclasses.replace(model, optimiser=self._optimiser(model.optimiser, l2=self.l2))

    def _dense_logistic(self, width: int) -> DenseLogisticRegression:
        given = self._given(table=self.table, reduction=self.reduction, l2=self.l2)
        model = DenseLogisticRegression(width, **given)
        return dataclasses.replace(model, optimiser=self._optimiser(model.optimiser))

    def _network(self, width: int) -> MLP:
        if self.classes is None:
            raise BadInput(f"{self.model.value} needs --classes: labels are 0 .. classes - 1")
        given = self._given(table=self.table, reduction=self.reduction)
        if self.model is Model.MLP:
            if self.hidden is not None:
                given["hidden"] = _widths(self.hidden)
            model = MLP(width, self.classes, **given)
        else:
            self._refuse("hidden")
            model = SoftmaxRegression(width, self.classes, **given)
        return dataclasses.replace(model, optimiser=self._optimiser(model.optimiser, l2=self.l2))

    def _refuse(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise BadInput(f"--{name} is not an option of {self.model.value}")

    def _given(self, **values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    def _optimiser(self, usual: Optimiser, *, l2: float | None = None) -> Optimiser:
        """The optimiser asked for; the model's usual one, or changes to it, where none was."""
        start = usual
        if self.optimiser is not None and self.optimiser != usual.name:
            start = _new_optimiser(self.optimiser)
        rate = "alpha" if start.name == "ftrl" else "lr"
        given = {rate: self.lr, "beta": self.beta, "l1": self.l1, "l2": l2}
        given["momentum"] = self.momentum
        known = {field.name for field in dataclasses.fields(start)}
        for name, value in given.items():
            if value is not None and name not in known:
                flag = "lr" if name == rate else name
                raise BadInput(f"--{flag} is not an option of the optimiser {start.name}")
        return dataclasses.replace(start, **self._given(**given))


def optimiser_of(name: str | None, lr: float | None) -> Optimiser:
    """The optimiser of this name (default: sum), with this learning rate. Raises `BadInput`."""
    start = _new_optimiser(name or "sum")
    return start if lr is None else start.with_lr(lr)


def _new_optimiser(name: str) -> Optimiser:
    kind = OPTIMISERS.get(name)
    if kind is None:
        raise BadInput(f"optimiser {name!r} is none of: {', '.join(OPTIMISERS)}")
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    return kind(**dict.fromkeys(required, USUAL_RATE))


def _width(dataset: Dataset) -> int | None:
    """How many numbers a row has; None for sparse rows."""
    first = next(dataset.batches(0, 1, 1), None)
    return int(first.features.shape[1]) if isinstance(first, DenseBatch) else None


def _widths(text: str) -> tuple[int, ...]:
    words = text.split(",") if text else []
    if not all(word.strip().isdigit() for word in words):
        raise BadInput(f"--hidden {text!r}: give widths such as 64 or 128,64")
    return tuple(int(word) for word in words)

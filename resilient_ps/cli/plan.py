"""What a worker trains: the flags of `train`, and the model and data set that they describe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilient_ps.cli import algorithms
from resilient_ps.cli.algorithms import Rows, Trainable
from resilient_ps.errors import BadInput
from resilient_ps.tables.optimisers import OPTIMISERS, Optimiser

DEFAULT_BATCH_SIZE = 1024
USUAL_RATE = 0.1
BY_TASKS = ("rotation", "pipeline")  # schedules whose processes take tasks instead of ranks


class Model(StrEnum):
    """The models that `train` knows; `lr` is another name of `logistic`."""

    LR = "lr"
    LOGISTIC = "logistic"
    SOFTMAX = "softmax"
    MLP = "mlp"
    FM = "fm"
    MF = "mf"
    LDA = "lda"
    EMBEDDING_MLP = "embedding-mlp"


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
    schedule: str = "static"
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
    task: str | None = None
    factors: int | None = None
    dim: int | None = None
    fields: int | None = None
    topics: int | None = None
    alpha: float | None = None
    eta: float | None = None
    vocabulary: str | None = None
    parts: int | None = None
    micro_batches: int | None = None
    in_flight: int | None = None
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

    @property
    def by_tasks(self) -> bool:
        """Do processes take tasks of a graph, and not ranks of a job?"""
        return self.schedule in BY_TASKS

    def open_dataset(self) -> Rows:
        """The data set. Raises `BadInput` and `NotFound` naming the file."""
        return algorithms.open_rows(self)

    def build_model(self, dataset: Rows) -> Trainable:
        """The model, as wide as the rows of the data set."""
        return algorithms.build(self, dataset)

    def optimiser_like(self, usual: Optimiser, *, l2: float | None = None) -> Optimiser:
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
        values = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(start, **values)


def optimiser_of(name: str | None, lr: float | None) -> Optimiser:
    """The optimiser of this name (default: sum), with this learning rate. Raises `BadInput`."""
    start = _new_optimiser(name or "sum")
    return start if lr is None else start.with_lr(lr)


def _new_optimiser(name: str) -> Optimiser:
    kind: Any = OPTIMISERS.get(name)
    if kind is None:
        raise BadInput(f"optimiser {name!r} is none of: {', '.join(OPTIMISERS)}")
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    optimiser: Optimiser = kind(**dict.fromkeys(required, USUAL_RATE))
    return optimiser

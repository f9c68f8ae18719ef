"""What `train` knows of each algorithm: its data, its options, its model, and how it is judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from resilient_ps.cli.samples import in_memory
from resilient_ps.client.connection import Client
from resilient_ps.data import Dataset, DenseBatch, SparseArrayDataset, SparseBatch, open_dataset
from resilient_ps.data.corpus import Corpus, open_corpus, reuters
from resilient_ps.data.movielens import movielens_100k
from resilient_ps.errors import BadInput
from resilient_ps.models import (
    MLP,
    DenseLogisticRegression,
    EmbeddingMLP,
    FactorisationMachineClassifier,
    FactorisationMachineRegressor,
    LogisticRegression,
    MatrixFactorisation,
    PipelinedMLP,
    Progress,
    RotatingFactorisation,
    SoftmaxRegression,
)
from resilient_ps.models.embedding_mlp import EmbeddingTables

if TYPE_CHECKING:
    from resilient_ps.cli.plan import TrainPlan

Rows: TypeAlias = Dataset | Corpus
Trainable: TypeAlias = Any
"""One of the models of `resilient_ps.models`."""

MOVIELENS, REUTERS = "movielens-100k", "reuters"
TEXT_TABLES = ("csv", "tsv", "parquet")  # formats with columns, which can be read as plain numbers
HELD_OUT, SPLIT_SEED = 0.2, 0  # of ratings that come without a test set
_CLASSIFICATION, _REGRESSION = "classification", "regression"

# Options that belong to some models only.
_OWN = {
    "classes": ("softmax", "mlp"),
    "hidden": ("mlp", "embedding-mlp"),
    "task": ("fm",),
    "factors": ("fm", "mf"),
    "dim": ("embedding-mlp",),
    "fields": ("embedding-mlp",),
    "topics": ("lda",),
    "alpha": ("lda",),
    "eta": ("lda",),
    "vocabulary": ("lda",),
    "parts": ("mf", "lda"),
    "micro_batches": ("mlp",),
    "in_flight": ("mlp",),
}
_SCHEDULES = {"rotation": ("mf", "lda"), "pipeline": ("mlp",)}
_OF_SCHEDULE = {"parts": "rotation", "micro_batches": "pipeline", "in_flight": "pipeline"}
_NOT_OF = {
    "lda": ("optimiser", "lr", "beta", "l1", "l2", "momentum", "reduction", "label", "dense"),
    "mf": ("optimiser", "beta", "l1", "momentum", "reduction"),
}


# --- data


def open_rows(plan: TrainPlan) -> Rows:
    """The data set of a plan. Raises `BadInput` and `NotFound` naming the file."""
    _check_options(plan)
    if plan.model == "lda":
        if plan.dataset == REUTERS:
            return reuters()
        return open_corpus(plan.dataset, plan.vocabulary)
    if plan.dataset == MOVIELENS:
        train, _ = movielens_100k().split(HELD_OUT, SPLIT_SEED)
        return train.dataset(shuffle_seed=plan.seed)
    rows = open_dataset(plan.dataset, plan.format, **_reader_options(plan))
    if plan.schedule == "rotation" and not isinstance(rows, SparseArrayDataset):
        return in_memory(rows, plan.dataset)
    return rows


def test_rows(plan: TrainPlan, trained_on: Rows, test: str | None) -> tuple[Rows, str]:
    """What a trained model is judged by, and what that is, for people.

    A file of such rows; the held-out part of a data set that is known by name; or else the rows
    that were trained on.
    """
    if test is not None:
        if plan.model == "lda":
            raise BadInput("--test: lda is judged by the corpus that it was trained on")
        return open_rows(dataclasses.replace(plan, dataset=test, seed=None)), test
    if plan.dataset == MOVIELENS and plan.model != "lda":
        _, held_out = movielens_100k().split(HELD_OUT, SPLIT_SEED)
        return held_out.dataset(), "held-out rows"
    return trained_on, "training rows"


def _reader_options(plan: TrainPlan) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if plan.label is not None:
        options["label"] = int(plan.label) if plan.label.isdigit() else plan.label
    if plan.on_bad is not None:
        options["on_bad"] = plan.on_bad
    if plan.seed is not None:
        options["shuffle_seed"] = plan.seed
    if plan.dense or (plan.model in ("softmax", "mlp") and _has_columns(plan)):
        options["dense"] = True
    return options


def _has_columns(plan: TrainPlan) -> bool:
    name = plan.dataset.lower().removesuffix(".gz").removesuffix(".zip")
    return plan.format in TEXT_TABLES or (
        plan.format == "auto" and name.endswith((*[f".{kind}" for kind in TEXT_TABLES], ".pq"))
    )


def samples_total(plan: TrainPlan, dataset: Rows, of: int) -> int | None:
    """How many samples all ranks will train on; None where that is not known beforehand."""
    if isinstance(dataset, Corpus):
        return len(dataset) * (plan.epochs + 1)  # in a first round words get topics at random
    if plan.by_tasks:
        counts = dataset.batches_per_rank(1, 1, plan.epochs)
        return None if counts is None else sum(counts)
    counts = dataset.batches_per_rank(of, plan.batch_size, plan.epochs)
    return None if counts is None else sum(counts) * plan.batch_size


# --- models


def build(plan: TrainPlan, dataset: Rows) -> Trainable:
    """The model of a plan, as wide as the rows of its data set."""
    _check_options(plan)
    if isinstance(dataset, Corpus):
        return _lda(plan)
    if plan.model in ("softmax", "mlp"):
        return _network(plan, dataset)
    width = _width(dataset)
    if plan.model in ("lr", "logistic"):
        return _sparse_logistic(plan) if width is None else _dense_logistic(plan, width)
    if width is not None:
        raise BadInput(
            f"{plan.dataset} has dense rows; {plan.model.value} takes sparse ones: leave --dense "
            "out, or use libsvm, or an .npz with 'keys' and 'row_offsets'"
        )
    if plan.model == "fm":
        return _machine(plan, dataset)
    return _matrix(plan, dataset) if plan.model == "mf" else _embedding(plan, dataset)


def _sparse_logistic(plan: TrainPlan) -> LogisticRegression:
    model = LogisticRegression(**_given(table=plan.table, reduction=plan.reduction))
    optimiser = plan.optimiser_like(model.optimiser, l2=plan.l2)
    return dataclasses.replace(model, optimiser=optimiser)


def _dense_logistic(plan: TrainPlan, width: int) -> DenseLogisticRegression:
    given = _given(table=plan.table, reduction=plan.reduction, l2=plan.l2)
    model = DenseLogisticRegression(width, **given)
    return dataclasses.replace(model, optimiser=plan.optimiser_like(model.optimiser))


def _network(plan: TrainPlan, dataset: Dataset) -> MLP | PipelinedMLP:
    width = _width(dataset)
    if width is None:
        raise BadInput(
            f"{plan.dataset} has sparse rows; {plan.model.value} takes rows of numbers: use "
            "csv, tsv or parquet with numeric columns, or an .npz with a matrix X"
        )
    if plan.classes is None:
        raise BadInput(f"{plan.model.value} needs --classes: labels are 0 .. classes - 1")
    given = _given(table=plan.table, reduction=plan.reduction)
    if plan.model == "softmax":
        model: MLP = SoftmaxRegression(width, plan.classes, **given)
    else:
        model = MLP(width, plan.classes, **given, **_hidden(plan))
    optimiser = plan.optimiser_like(model.optimiser, l2=plan.l2)
    model = dataclasses.replace(model, optimiser=optimiser)
    if plan.schedule != "pipeline":
        return model
    return PipelinedMLP(model, **_given(micro_batches=plan.micro_batches, in_flight=plan.in_flight))


def _machine(
    plan: TrainPlan, dataset: Dataset
) -> FactorisationMachineClassifier | FactorisationMachineRegressor:
    given = _given(
        table=plan.table, factors=plan.factors, reduction=plan.reduction,
        l2_weights=plan.l2, l2_factors=plan.l2,
    )  # fmt: skip
    task = plan.task or (_REGRESSION if plan.dataset == MOVIELENS else _CLASSIFICATION)
    if task == _CLASSIFICATION:
        model: Any = FactorisationMachineClassifier(**given)
    elif task == _REGRESSION:
        model = FactorisationMachineRegressor(**given, mean=_mean_label(dataset))
    else:
        raise BadInput(f"--task {task!r} is none of: {_CLASSIFICATION}, {_REGRESSION}")
    return dataclasses.replace(  # type: ignore[no-any-return]
        model,
        weight_optimiser=plan.optimiser_like(model.weight_optimiser),
        factor_optimiser=plan.optimiser_like(model.factor_optimiser),
    )


def _matrix(plan: TrainPlan, dataset: Dataset) -> MatrixFactorisation | RotatingFactorisation:
    given = _given(table=plan.table, factors=plan.factors, lr=plan.lr, l2=plan.l2)
    model = MatrixFactorisation(**given, mean=_mean_label(dataset))
    if plan.schedule != "rotation":
        return model
    return RotatingFactorisation(model, **_given(parts=plan.parts, seed=plan.seed))


def _lda(plan: TrainPlan) -> Any:
    from resilient_ps.models import LDA, RotatingLDA  # with a compiler, which others need not load

    model = LDA(
        **_given(
            topics=plan.topics, alpha=plan.alpha, eta=plan.eta, table=plan.table, seed=plan.seed
        )
    )
    return RotatingLDA(model, **_given(parts=plan.parts)) if plan.by_tasks else model


def _embedding(plan: TrainPlan, dataset: Dataset) -> EmbeddingMLP:
    fields = plan.fields
    if fields is None:
        first = next(dataset.batches(0, 1, 1), None)
        fields = len(first.keys) if isinstance(first, SparseBatch) else 1
    given = _given(table=plan.table, dim=plan.dim, reduction=plan.reduction)
    model = EmbeddingMLP(fields, **given, **_hidden(plan))
    optimiser = plan.optimiser_like(model.optimiser, l2=plan.l2)
    return dataclasses.replace(model, optimiser=optimiser)


def _check_options(plan: TrainPlan) -> None:
    """Options of other models, and of other schedules. Raises `BadInput`."""
    name = plan.model.value
    for option, models in _OWN.items():
        if getattr(plan, option) is not None and name not in models:
            raise BadInput(f"--{option.replace('_', '-')} is not an option of {name}")
    for option in _NOT_OF.get(name, ()):
        if getattr(plan, option) not in (None, False):
            raise BadInput(f"--{option} is not an option of {name}")
    if plan.by_tasks and name not in _SCHEDULES[plan.schedule]:
        can = ", ".join(_SCHEDULES[plan.schedule])
        raise BadInput(f"--schedule {plan.schedule} is for {can}, and not for {name}")
    for option, schedule in _OF_SCHEDULE.items():
        if getattr(plan, option) is not None and plan.schedule != schedule:
            raise BadInput(f"--{option.replace('_', '-')} needs --schedule {schedule}")
    if name == "lda" and plan.schedule == "dynamic":
        raise BadInput("--schedule dynamic is not for lda: use static or rotation")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _hidden(plan: TrainPlan) -> dict[str, Any]:
    if plan.hidden is None:
        return {}
    words = plan.hidden.split(",") if plan.hidden else []
    if not all(word.strip().isdigit() for word in words):
        raise BadInput(f"--hidden {plan.hidden!r}: give widths such as 64 or 128,64")
    return {"hidden": tuple(int(word) for word in words)}


def _width(dataset: Dataset) -> int | None:
    """How many numbers a row has; None for sparse rows."""
    first = next(dataset.batches(0, 1, 1), None)
    return int(first.features.shape[1]) if isinstance(first, DenseBatch) else None


def _mean_label(dataset: Dataset) -> float:
    """Of all rows: all ranks have to begin with the same number."""
    total, rows = 0.0, 0
    for batch in dataset.batches(0, 1, 65_536):
        total, rows = total + float(np.sum(batch.labels, dtype=np.float64)), rows + len(batch)
    return total / max(rows, 1)


# --- training and judging


def train(
    plan: TrainPlan,
    model: Trainable,
    worker: Any,
    dataset: Rows,
    on_batch: Callable[[Progress], None],
) -> None:
    """One rank's training."""
    if isinstance(dataset, Corpus):
        model.train(worker, dataset, epochs=plan.epochs, on_batch=on_batch)
        return
    model.train(
        worker,
        dataset,
        batch_size=plan.batch_size,
        epochs=plan.epochs,
        schedule=plan.schedule,
        data_shards=plan.data_shards,
        on_batch=on_batch,
    )


def evaluate(client: Client, model: Trainable, rows: Rows) -> dict[str, Any]:
    """What the model's own evaluation says of these rows, as JSON values."""
    inner: Any = getattr(model, "model", model)  # of what is trained by tasks
    names = getattr(inner, "table_names", None) or (inner.table,)
    tables: Any = [client.table(name) for name in names]
    if isinstance(rows, Corpus):
        from resilient_ps.models.lda import LDATables

        found = inner.evaluate(LDATables(*tables), rows)
        per_word = found.log_likelihood_per_word
        return {**asdict(found), "log_likelihood_per_word": per_word,
                "perplexity": found.perplexity}  # fmt: skip
    if isinstance(inner, EmbeddingMLP):
        tables = EmbeddingTables(tables[0], tables[1:])
    elif isinstance(inner, LogisticRegression | DenseLogisticRegression):
        tables = tables[0]
    return asdict(cast(Any, inner.evaluate(tables, rows)))


def evaluation_line(found: dict[str, Any], what: str) -> str:
    """For people: `held-out rows: rmse 0.9123, mae 0.7200 (20,000 samples)`."""
    shown = [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in found.items()
        if isinstance(value, float) and name != "log_likelihood"
    ]
    size = next(iter(islice(found.items(), 1)))
    return f"{what}: {', '.join(shown)} ({size[1]:,} {size[0]})"

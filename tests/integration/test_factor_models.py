"""Factor models on real data are within 1 % of independent implementations, two ranks each.

Ratings are those of MovieLens 100k, a fifth held out. References: for factorisation machines the
package `modern-fm`; for matrix factorisation a serial descent that is written here once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.csr import to_csr
from resilient_ps.data.flights import validation_flights
from resilient_ps.data.movielens import movielens_100k
from resilient_ps.data.ratings import Ratings
from resilient_ps.errors import NotFound
from resilient_ps.models import (
    FactorisationMachineClassifier,
    FactorisationMachineRegressor,
    MatrixFactorisation,
    RotatingFactorisation,
)
from resilient_ps.models.metrics import Evaluation, evaluate_margins
from resilient_ps.tables.optimisers import Adagrad

RANKS = 2
FACTORS = 16
L2 = 0.1
LR = 0.02
EPOCHS = 10
NUMBERS = itertools.count()

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(2, replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def ratings() -> tuple[Ratings, Ratings]:
    try:
        return movielens_100k().split(0.2)
    except NotFound as offline:
        pytest.skip(str(offline))


def together(cluster: RunningCluster, mode: str, train: Callable[[ps.Worker], Any]) -> None:
    """Each rank in a thread, with a connection of its own."""
    job = f"job{next(NUMBERS)}"

    def run(rank: int) -> None:
        with cluster.connect() as client, client.worker(job, rank, RANKS, mode) as worker:
            train(worker)

    with ThreadPoolExecutor(RANKS) as threads:
        list(threads.map(run, range(RANKS)))


def tables_of(client: ps.Client, names: tuple[str, str]) -> Any:
    return tuple(client.table(name) for name in names)


def within_1_percent(found: float, reference: float) -> bool:
    print(f"{found:.4f}, reference {reference:.4f}")
    return abs(found / reference - 1) <= 0.01


# -- matrix factorisation


@numba.njit
def serial_epoch(
    users: Any, items: Any, ratings: Any, p: Any, q: Any, b: Any, c: Any, mean: Any
) -> None:
    for n in range(len(ratings)):
        u, i = users[n], items[n]
        e = ratings[n] - (mean + b[u] + c[i] + np.sum(p[u] * q[i]))
        p[u], q[i] = p[u] + LR * (e * q[i] - L2 * p[u]), q[i] + LR * (e * p[u] - L2 * q[i])
        b[u] += LR * (e - L2 * b[u])
        c[i] += LR * (e - L2 * c[i])


@pytest.fixture(scope="module")
def serial_rmse(ratings: tuple[Ratings, Ratings]) -> float:
    """One process, all ratings in a new order in each epoch; float64."""
    train, test = ratings
    rng = np.random.default_rng(5)
    mean = float(train.ratings.mean())
    p, q = (rng.normal(0, 0.1, (count, FACTORS)) for count in (944, 1683))
    b, c = np.zeros(944), np.zeros(1683)
    for _ in range(EPOCHS):
        order = rng.permutation(len(train))
        each = train.users[order], train.items[order], train.ratings[order].astype(np.float64)
        serial_epoch(*each, p, q, b, c, mean)
    u, i = test.users, test.items
    errors = mean + b[u] + c[i] + (p[u] * q[i]).sum(axis=1) - test.ratings
    return float(np.sqrt(np.mean(errors**2)))


def factorisation(ratings: tuple[Ratings, Ratings]) -> MatrixFactorisation:
    mean = float(ratings[0].ratings.mean())
    return MatrixFactorisation(f"mf{next(NUMBERS)}", FACTORS, lr=LR, l2=L2, mean=mean)


@pytest.mark.parametrize(
    "mode",
    [
        "ssp:2",
        pytest.param("bsp", marks=pytest.mark.soak),
        pytest.param("asp", marks=pytest.mark.soak),
    ],
)
def test_matrix_factorisation_by_batches_reaches_the_serial_descent(
    cluster: RunningCluster, ratings: tuple[Ratings, Ratings], serial_rmse: float, mode: str
) -> None:
    model, data = factorisation(ratings), ratings[0].dataset(shuffle_seed=1)
    together(cluster, mode, lambda worker: model.train(worker, data, epochs=EPOCHS))
    with cluster.connect() as client:
        found = model.evaluate(tables_of(client, model.table_names), ratings[1].dataset())
    assert within_1_percent(found.rmse, serial_rmse)


def test_matrix_factorisation_by_rotation_reaches_the_serial_descent(
    cluster: RunningCluster, ratings: tuple[Ratings, Ratings], serial_rmse: float
) -> None:
    """And ends with the bytes of one process that does all tasks in the serial order, alone."""
    rotating = RotatingFactorisation(factorisation(ratings), parts=4)
    name, data = rotating.model.table, ratings[0].dataset()

    def hold(holder: int) -> int:
        with (
            cluster.connect() as client,
            client.tasks(rotating.schedule(epochs=EPOCHS, name=name).graph) as tasks,
        ):
            done: list[int] = []
            rotating.train(tasks, data, epochs=EPOCHS, on_task=lambda p: done.append(p.rows))
            return sum(done)

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(hold, range(3))) == len(data) * EPOCHS
    with cluster.connect() as client:
        tables = tables_of(client, rotating.table_names)
        found = rotating.evaluate(tables, ratings[1].dataset())
        alone = rotating.fit_alone(data, epochs=EPOCHS)
        keys = [np.unique(data.keys[n::2]) for n in (0, 1)]
        held, due = (
            [t.pull(k).tobytes() for t, k in zip(each, keys, strict=True)]
            for each in (tables, alone)
        )
    assert within_1_percent(found.rmse, serial_rmse)
    assert held == due


# -- factorisation machines


def peer(kind: str, **settings: Any) -> Any:
    modern_fm = pytest.importorskip("modern_fm", reason="pip install modern-fm")
    return getattr(modern_fm, kind)(random_state=0, n_jobs=1, **settings)


@pytest.mark.soak  # late flights, below, are the short case
@pytest.mark.parametrize("mode", ["bsp", "ssp:2", "asp"])
def test_a_factorisation_machine_predicts_ratings_as_the_reference_does(
    cluster: RunningCluster, ratings: tuple[Ratings, Ratings], mode: str
) -> None:
    train, test = (part.dataset() for part in ratings)
    mean = float(train.labels.mean())
    x, columns = to_csr(train)
    other = peer(
        "FMRegressor", n_factors=FACTORS, optimizer="adagrad", learning_rate=0.05, max_iter=20,
        batch_size=1, l2_linear=L2, l2_factors=L2, init_scale=0.1,
    ).fit(x, train.labels - mean)  # fmt: skip
    errors = other.predict(to_csr(test, columns)[0]) + mean - test.labels
    model = FactorisationMachineRegressor(
        f"fm{next(NUMBERS)}", FACTORS, Adagrad(lr=0.1), Adagrad(lr=0.1),
        initial_stddev=0.1, l2_weights=L2, l2_factors=L2, reduction="sum", mean=mean,
    )  # fmt: skip
    shuffled = train.shuffled(1)
    together(cluster, mode, lambda worker: model.train(worker, shuffled, batch_size=512, epochs=8))
    with cluster.connect() as client:
        found = model.evaluate(tables_of(client, model.table_names), test)
    assert within_1_percent(found.rmse, float(np.sqrt(np.mean(errors**2))))


def flights_of(data: SparseArrayDataset, start: int, stop: int) -> SparseArrayDataset:
    offsets = data.row_offsets[start : stop + 1]
    keys = data.keys[offsets[0] : offsets[-1]]
    return SparseArrayDataset(data.labels[start:stop], offsets - offsets[0], keys)


def test_a_factorisation_machine_tells_late_flights_as_the_reference_does(
    cluster: RunningCluster,
) -> None:
    before, after = validation_flights()
    train = flights_of(before, len(before) - 30_000, len(before))
    test = flights_of(after, 0, 15_000)
    x, columns = to_csr(train)
    other = peer(
        "FMClassifier", n_factors=8, optimizer="sgd", learning_rate=0.001, max_iter=6,
        batch_size=1, l2_linear=0.003, l2_factors=0.003, init_scale=0.01,
    ).fit(x, train.labels > 0)  # fmt: skip
    reference = measured(other.predict_proba(to_csr(test, columns)[0])[:, 1], test.labels)
    model = FactorisationMachineClassifier(
        f"fm{next(NUMBERS)}", 8, Adagrad(lr=0.01), Adagrad(lr=0.01),
        l2_weights=0.01, l2_factors=0.01, reduction="sum",
    )  # fmt: skip
    shuffled = train.shuffled(1)
    together(cluster, "bsp", lambda worker: model.train(worker, shuffled, batch_size=512, epochs=3))
    with cluster.connect() as client:
        found = model.evaluate(tables_of(client, model.table_names), test)
    assert found.auc is not None
    assert reference.auc is not None
    assert within_1_percent(found.auc, reference.auc)
    assert within_1_percent(found.logloss, reference.logloss)


def measured(probabilities: Floats, labels: NDArray[np.float32]) -> Evaluation:
    margins = np.log(probabilities / (1 - probabilities))
    return evaluate_margins((labels > 0).astype(np.float64), np.asarray(margins, np.float64))

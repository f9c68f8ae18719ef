"""Estimators: scikit-learn's own checks, quality beside scikit-learn, and where they train."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.estimators.clusters import stop_own_cluster
from resilient_ps.estimators.fitting import Fit

SUFFICIENT = 0.01  # what we may be behind scikit-learn


@pytest.fixture(scope="module", autouse=True)
def _own_cluster_ends() -> Iterator[None]:
    yield
    stop_own_cluster()


# No check is expected to fail. PSMatrixFactorisation is not here: its X are two columns of ids, and
# scikit-learn's checks give other matrices.
@parametrize_with_checks([ps.PSLogisticRegression(epochs=6)])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak  # about fifty fits each
@parametrize_with_checks(
    [
        ps.PSFactorisationMachine(epochs=12),
        ps.PSFactorisationMachineRegressor(epochs=12),
        ps.PSMLPClassifier((16,), epochs=12),
    ]
)
def test_scikit_learns_checks_of_the_other_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


def cancer() -> tuple[Any, Any, Any, Any]:
    x, y = load_breast_cancer(return_X_y=True)
    split: tuple[Any, Any, Any, Any] = train_test_split(x, y, random_state=0, stratify=y)
    scaler = StandardScaler().fit(split[0])
    return scaler.transform(split[0]), scaler.transform(split[1]), split[2], split[3]


def digits() -> tuple[Any, Any, Any, Any]:
    x, y = load_digits(return_X_y=True)
    split: tuple[Any, Any, Any, Any] = train_test_split(x / 16, y, random_state=0, stratify=y)
    return split


@pytest.mark.parametrize("as_rows", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_logistic_regression_is_as_good_as_scikit_learns(as_rows: Any) -> None:
    x, x_test, y, y_test = cancer()
    ours = ps.PSLogisticRegression(epochs=20).fit(as_rows(x), y)
    theirs = LogisticRegression(max_iter=1000).fit(x, y).score(x_test, y_test)
    assert ours.score(as_rows(x_test), y_test) >= theirs - SUFFICIENT


def test_machine_and_network_are_as_good_as_scikit_learns_network() -> None:
    x, x_test, y, y_test = cancer()
    theirs = MLPClassifier(random_state=0, max_iter=1000).fit(x, y).score(x_test, y_test)
    machine = ps.PSFactorisationMachine(4, epochs=20, l2_factors=0.1).fit(x, y)
    assert machine.score(x_test, y_test) >= theirs - 2 * SUFFICIENT
    x, x_test, y, y_test = digits()
    theirs = MLPClassifier((64,), random_state=0, max_iter=1000).fit(x, y).score(x_test, y_test)
    network = ps.PSMLPClassifier((64,), epochs=40).fit(x, y)
    assert network.score(x_test, y_test) >= theirs - 2 * SUFFICIENT


def test_one_class_against_the_others_and_softmax_learn_many_classes() -> None:
    x, x_test, y, y_test = digits()
    for as_rows in (np.asarray, sparse.csr_matrix):
        ours = ps.PSLogisticRegression(epochs=10).fit(as_rows(x), y)
        assert ours.score(as_rows(x_test), y_test) > 0.93
        assert np.allclose(ours.predict_proba(as_rows(x_test)).sum(axis=1), 1)


def test_matrix_factorisation_recovers_a_planted_matrix() -> None:
    rng = np.random.default_rng(0)
    users, items = 7 * rng.integers(0, 40, 2500), 1_000_000 + rng.integers(0, 30, 2500)
    left, right = rng.normal(size=(280, 3)), rng.normal(size=(30, 3))
    ratings = 3 + (left[users] * right[items - 1_000_000]).sum(axis=1)
    x = np.stack([users, items], axis=1)
    model = ps.PSMatrixFactorisation(4, epochs=40, learning_rate=0.05, l2=0.01)
    model.fit(x[:2000], ratings[:2000])
    assert model.score(x[2000:], ratings[2000:]) > 0.9
    unknown = model.predict([[5, 7], [9, 11]])  # nobody has rated anything there
    assert np.allclose(unknown, model.mean_)


def test_a_fit_is_repeatable_and_the_seed_counts() -> None:
    x, _, y, _ = cancer()
    first, again, other = (
        ps.PSMLPClassifier((8,), epochs=2, workers=2, seed=seed).fit(x, y) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first.coefs_, again.coefs_, strict=True))
    assert not np.array_equal(first.coefs_[0], other.coefs_[0])


def test_a_search_over_parameters_works() -> None:
    x, _, y, _ = cancer()
    search = GridSearchCV(ps.PSLogisticRegression(epochs=3), {"batch_size": [32, 128]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.9
    assert clone(search.best_estimator_).get_params()["epochs"] == 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(2, coordination="embedded", name="shared") as running:
        yield running


def test_a_fit_on_another_cluster_leaves_nothing_there(cluster: RunningCluster) -> None:
    x, _, y, _ = cancer()
    place = f"{cluster.etcd}/{cluster.name}"
    fitted = ps.PSLogisticRegression(cluster=place, workers=3, consistency="ssp:2", epochs=5).fit(
        x, y
    )
    assert fitted.score(x, y) > 0.95
    with cluster.connect() as client:
        assert client.catalogue.tables() == {}
        assert client.catalogue.jobs() == []


def test_jobs_and_tables_of_others_are_left_alone(cluster: RunningCluster) -> None:
    x, _, y, _ = cancer()
    place = f"{cluster.etcd}/{cluster.name}"
    with cluster.connect() as client:
        with client.worker("mine", 0, 1, "asp") as worker:
            worker.sparse_table("other/weights", dim=1, optimiser=ps.Sum()).push(
                [1], np.ones((1, 1), np.float32)
            )
        for name, what in (("mine", "job of this name"), ("other", "table 'other/weights'")):
            with pytest.raises(BadInput, match=what):
                ps.PSLogisticRegression(cluster=place, name=name).fit(x, y)
        assert client.catalogue.job("mine").state == "running"
        assert client.table("other/weights").pull(np.ones(1, np.uint64)) == 1


class OneFails:
    """A model whose rank 1 fails in its first clock, while rank 0 goes on for ever."""

    def train(self, worker: ps.Worker, dataset: Any, **settings: Any) -> None:
        table = worker.sparse_table("fails/weights", dim=1, optimiser=ps.Sum())
        if worker.rank == 1:
            raise ZeroDivisionError("rank 1 has a fault")
        while True:
            table.pull(np.ones(1, np.uint64))
            worker.tick()


def test_what_one_worker_fails_with_ends_the_fit(cluster: RunningCluster) -> None:
    fit = Fit(f"{cluster.etcd}/{cluster.name}", "fails", 2, "bsp", 8, 1)
    with pytest.raises(ZeroDivisionError, match="rank 1 has a fault"):
        fit.run(
            lambda name: OneFails(), lambda model: ["fails/weights"], [], lambda client, names: None
        )
    with cluster.connect() as client:
        assert "fails" not in [job.name for job in client.catalogue.jobs()]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": 0}, "workers=0: a whole number of at least 1"),
        ({"workers": 65}, "workers=65: at most 64"),
        ({"epochs": 1.5}, "epochs=1.5: a whole number"),
        ({"consistency": "nearly"}, "consistency 'nearly' is none of"),
        ({"cluster": "/x"}, "give 'HOST:PORT/NAME'"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        ps.PSLogisticRegression(**given).fit([[0.0], [1.0]], [0, 1])
    assert says in str(caught.value)


@pytest.mark.soak  # it tries until its deadline of half a minute
def test_an_unreachable_cluster_is_told() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        ps.PSLogisticRegression(cluster="127.0.0.1:1/none").fit([[0.0], [1.0]], [0, 1])


def test_ids_are_checked() -> None:
    model = ps.PSMatrixFactorisation()
    with pytest.raises(ValueError, match="X has 3 columns: give two"):
        model.fit(np.ones((4, 3), int), np.ones(4))
    with pytest.raises(ValueError, match="Negative values"):
        model.fit([[0, -1], [1, 1]], [1.0, 2.0])


def test_without_scikit_learn_the_remedy_is_named() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import resilient_ps as ps\n"
        "try: ps.PSLogisticRegression\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 'pip install "resilient-ps[sklearn]"' in done.stdout, done.stderr


def test_the_own_cluster_ends_with_the_process() -> None:
    program = (
        "import json, resilient_ps as ps\n"
        "from resilient_ps.estimators import clusters\n"
        "ps.PSLogisticRegression(epochs=1).fit([[0.], [1.]], [0, 1])\n"
        "own = clusters._OWN_CLUSTER._processes\n"
        "print(json.dumps([s.pid for s in own.servers] + list(own.coordination.pids)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for pid in json.loads(done.stdout):
        assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"

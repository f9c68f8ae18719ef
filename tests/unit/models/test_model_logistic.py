"""Logistic regression on a worker with local tables, against scikit-learn's converged solution."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Converged
from sklearn.metrics import log_loss, roc_auc_score

from resilient_ps.data import ArrayDataset, DenseBatch, SparseArrayDataset, SparseBatch
from resilient_ps.data.csr import to_csr
from resilient_ps.errors import BadInput
from resilient_ps.models.logistic import (
    BIAS_KEY,
    DenseLogisticRegression,
    LogisticRegression,
    _Design,
)
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad


def hashed_rows(rows, seed, features=60, per_row=6):
    """Sparse rows whose labels follow a logistic model with a bias."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=features)
    columns = np.stack([rng.choice(features, per_row, replace=False) for _ in range(rows)])
    values = rng.uniform(0.5, 1.5, columns.shape).astype(np.float32)
    margins = (truth[columns] * values).sum(axis=1) - 0.7
    labels = rng.random(rows) < 1 / (1 + np.exp(-margins))
    keys = np.random.default_rng(5).integers(0, 2**64, features, dtype=np.uint64)[columns]
    offsets = np.arange(rows + 1) * per_row
    return SparseArrayDataset(labels, offsets, keys.ravel(), values.ravel(), shuffle_seed=1)


def scikit_learns(train, test, c):
    x, columns = to_csr(train)
    fitted = Converged(C=c, max_iter=2000, tol=1e-8).fit(x, train.labels)
    return fitted.predict_proba(to_csr(test, columns)[0])[:, 1]


@pytest.mark.parametrize("optimiser", [FTRL(alpha=0.3, l2=1.0), Adagrad(lr=0.2)])
def test_sparse_training_comes_close_to_the_converged_solution(worker, optimiser):
    train, test = hashed_rows(3000, seed=1), hashed_rows(1500, seed=2)
    model = LogisticRegression(optimiser=optimiser)
    table = model.train(worker, train, batch_size=100, epochs=5)
    converged = scikit_learns(train, test, c=1.0)
    found = model.evaluate(table, test)
    assert found.auc >= roc_auc_score(test.labels, converged) - 0.005
    assert found.logloss <= log_loss(test.labels, converged) + 0.01


def test_predictions_are_in_the_order_of_the_data_and_match_the_evaluation(worker):
    rows = hashed_rows(400, seed=1)
    ordered = SparseArrayDataset(rows.labels, rows.row_offsets, rows.keys, rows.values)
    model = LogisticRegression()
    table = model.train(worker, rows, batch_size=50)
    found = model.evaluate(table, ordered)
    assert found.auc == pytest.approx(roc_auc_score(ordered.labels, model.predict(table, ordered)))


def test_progress_is_told_after_every_batch_and_each_batch_is_one_clock(worker):
    told = []
    LogisticRegression().train(
        worker, hashed_rows(250, seed=1), batch_size=100, on_batch=told.append
    )
    assert [(p.rank, p.clock, p.rows, p.samples) for p in told] == [
        (0, 0, 100, 100),
        (0, 1, 100, 200),
        (0, 2, 50, 250),
    ]
    assert told[0].loss == pytest.approx(np.log(2), abs=1e-6)
    assert len(worker.cursors) == worker.clock == 3


def test_each_push_names_the_distinct_keys_of_the_batch_and_the_bias(worker):
    data = SparseArrayDataset([1, 0], [0, 3, 5], np.array([7, 9, 7, 9, 11], np.uint64))
    table = LogisticRegression().train(worker, data, batch_size=2)
    assert [sorted(k.tolist()) for k in table.keys_pushed] == [sorted([7, 9, 11, BIAS_KEY])]


def test_rows_without_features_train_the_bias_alone(worker):
    data = SparseArrayDataset([1, 1, 0, 1], [0, 0, 0, 0, 0], np.zeros(0, np.uint64))
    model = LogisticRegression(optimiser=SGD(lr=1.0), reduction="mean")
    table = model.train(worker, data, batch_size=4, epochs=60)
    assert model.predict(table, data) == pytest.approx([0.75] * 4, abs=1e-3)


def test_the_sparse_gradient_equals_finite_differences():
    batch = next(hashed_rows(20, seed=3).batches(0, 1, 20))
    design = _Design.of(batch)
    targets = batch.labels.astype(np.float64)
    weights = np.random.default_rng(0).normal(size=len(design.keys))
    _, gradient = design.loss_and_gradient(weights, targets)
    for i in range(len(weights)):
        up, down = weights.copy(), weights.copy()
        up[i] += 1e-5
        down[i] -= 1e-5
        slope = (
            design.loss_and_gradient(up, targets)[0] - design.loss_and_gradient(down, targets)[0]
        )
        assert gradient[i] == pytest.approx(slope / 2e-5, abs=1e-5)


def test_a_mean_gradient_does_not_depend_on_the_size_of_the_batch(worker):
    once = SparseArrayDataset([1], [0, 1], np.array([3], np.uint64))
    thrice = SparseArrayDataset([1] * 3, [0, 1, 2, 3], np.array([3] * 3, np.uint64))
    steps = []
    for name, data in (("a", once), ("b", thrice)):
        model = LogisticRegression(table=name, optimiser=SGD(lr=1.0), reduction="mean")
        steps.append(model.train(worker, data, batch_size=3).pull(np.array([3], np.uint64)))
    assert steps[0] == steps[1] == 0.5


def test_dense_training_comes_close_to_the_converged_solution(worker):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3000, 8))
    y = (rng.random(3000) < 1 / (1 + np.exp(-(x @ rng.normal(size=8) + 0.5)))).astype(float)
    train, test = ArrayDataset(x[:2000], y[:2000], shuffle_seed=2), ArrayDataset(x[2000:], y[2000:])
    model = DenseLogisticRegression(features=8, optimiser=Adagrad(lr=0.3))
    table = model.train(worker, train, batch_size=50, epochs=5)
    converged = Converged(C=1e6, tol=1e-8).fit(x[:2000], y[:2000]).predict_proba(x[2000:])[:, 1]
    found = model.evaluate(table, test)
    assert found.auc >= roc_auc_score(y[2000:], converged) - 0.005
    assert found.logloss <= log_loss(y[2000:], converged) + 0.01
    assert model.predict(table, test)[0] == pytest.approx(converged[0], abs=0.05)


def test_l2_makes_dense_weights_those_of_scikit_learns_penalty(worker):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(400, 3))
    y = (x[:, 0] > 0).astype(float)
    model = DenseLogisticRegression(features=3, optimiser=SGD(lr=1.0), l2=1 / (0.1 * 400))
    table = model.train(worker, ArrayDataset(x, y), batch_size=400, epochs=300)
    expected = Converged(C=0.1, tol=1e-10).fit(x, y)
    assert table.pull()[:-1] == pytest.approx(expected.coef_[0], abs=1e-3)
    assert table.pull()[-1] == pytest.approx(expected.intercept_[0], abs=1e-3)


def test_the_dense_gradient_with_l2_equals_finite_differences():
    rng = np.random.default_rng(7)
    batch = DenseBatch(
        (rng.random(15) < 0.5).astype(np.float32), rng.normal(size=(15, 4)).astype(np.float32)
    )
    model = DenseLogisticRegression(features=4, l2=0.3)
    weights = rng.normal(size=5)

    def penalised(w):
        return model.loss_and_gradient(w, batch)[0] + 0.5 * 0.3 * 15 * (w[:-1] ** 2).sum()

    gradient = model.loss_and_gradient(weights, batch)[1]
    for i in range(5):
        nudge = 1e-5 * np.eye(5)[i]
        slope = (penalised(weights + nudge) - penalised(weights - nudge)) / 2e-5
        assert gradient[i] == pytest.approx(slope, abs=1e-5)


def test_data_of_the_other_kind_are_refused(worker):
    sparse, dense = hashed_rows(10, seed=1), ArrayDataset(np.ones((3, 2)), [0, 1, 1])
    with pytest.raises(BadInput, match="sparse rows"):
        LogisticRegression().train(worker, dense)
    with pytest.raises(BadInput, match="dense rows of 2"):
        DenseLogisticRegression(features=2).train(worker, sparse)
    with pytest.raises(BadInput, match="dense rows of 3"):
        DenseLogisticRegression(features=3, table="three").train(worker, dense)


def test_training_rows_without_labels_is_refused(worker):
    data = SparseArrayDataset([np.nan], [0, 1], np.array([1], np.uint64))
    with pytest.raises(BadInput, match="no label"):
        LogisticRegression().train(worker, data)


def test_rows_without_labels_can_be_predicted(worker):
    model = LogisticRegression()
    table = model.open(worker)
    data = SparseArrayDataset([np.nan], [0, 1], np.array([1], np.uint64))
    assert model.predict(table, data).tolist() == [0.5]


def test_repeated_keys_in_a_row_count_with_the_sum_of_their_values():
    once = SparseBatch(*_row([5], [3.0]))
    twice = SparseBatch(*_row([5, 5], [1.0, 2.0]))
    weights = np.full(2, 0.25)
    assert _Design.of(once).margins(weights) == _Design.of(twice).margins(weights)


def _row(keys, values):
    return (
        np.ones(1, np.float32),
        np.array([0, len(keys)]),
        np.array(keys, np.uint64),
        np.array(values, np.float32),
    )

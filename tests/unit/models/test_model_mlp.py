"""Softmax regression and MLP on a worker with local tables, on scikit-learn's digits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from resilient_ps.data import ArrayDataset, DenseBatch, SparseArrayDataset
from resilient_ps.errors import BadInput
from resilient_ps.models.mlp import MLP, SoftmaxRegression
from resilient_ps.tables.optimisers import Adagrad


def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16.0, y[order]
    return ArrayDataset(x[:1400], y[:1400], shuffle_seed=3), ArrayDataset(x[1400:], y[1400:])


def test_softmax_regression_learns_the_digits(worker):
    train, test = digits()
    model = SoftmaxRegression(features=64, classes=10, optimiser=Adagrad(lr=0.1))
    found = model.evaluate(model.train(worker, train, batch_size=64, epochs=10), test)
    assert found.accuracy > 0.94


def test_an_mlp_learns_the_digits_better_than_a_linear_model(worker):
    train, test = digits()
    linear = SoftmaxRegression(features=64, classes=10)
    deep = MLP(features=64, classes=10, hidden=(64, 32))
    linear_loss = linear.evaluate(linear.train(worker, train, epochs=15), test).logloss
    found = deep.evaluate(deep.train(worker, train, epochs=15), test)
    assert found.accuracy > 0.96
    assert found.logloss < linear_loss


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_the_gradients_equal_finite_differences(hidden):
    rng = np.random.default_rng(len(hidden))
    model = MLP(features=3, classes=4, hidden=hidden)
    batch = DenseBatch(
        rng.integers(0, 4, 12).astype(np.float32), rng.normal(size=(12, 3)).astype(np.float32)
    )
    weights = [rng.normal(size=shape) for shape in model.shapes]
    _, gradients = model.loss_and_gradients(weights, batch)
    for layer, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            losses = []
            for nudge in (1e-6, -1e-6):
                moved = [w.copy() for w in weights]
                moved[layer][place] += nudge
                losses.append(model.loss_and_gradients(moved, batch)[0])
            assert gradient[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-4)


def test_predictions_are_probabilities_that_match_the_evaluation(worker):
    train, test = digits()
    model = SoftmaxRegression(features=64, classes=10)
    tables = model.train(worker, train)
    predicted = model.predict(tables, test)
    assert predicted.sum(axis=1) == pytest.approx(np.ones(len(test)))
    assert model.evaluate(tables, test).logloss == pytest.approx(log_loss(test.labels, predicted))


def test_every_layer_is_a_table_with_its_biases_in_the_last_row(worker):
    MLP(features=6, classes=3, hidden=(5,), table="net").open(worker)
    shapes = {name: table.pull().shape for name, table in worker.tables.items()}
    assert shapes == {"net/0": (7, 5), "net/1": (6, 3)}


def test_a_fresh_model_predicts_all_classes_alike(worker):
    _, test = digits()
    model = MLP(features=64, classes=10)
    assert model.evaluate(model.open(worker), test).logloss == pytest.approx(np.log(10))


def test_progress_counts_samples(worker):
    told = []
    train, _ = digits()
    SoftmaxRegression(features=64, classes=10).train(
        worker, train, batch_size=500, on_batch=told.append
    )
    assert [(p.clock, p.samples) for p in told] == [(0, 500), (1, 1000), (2, 1400)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": 0, "classes": 3},
        {"features": 4, "classes": 1},
        {"features": 4, "classes": 3, "hidden": (0,)},
        {"features": 4, "classes": 3, "hidden": (2,) * 40},
    ],
)
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(BadInput):
        MLP(**wrong)


def test_softmax_regression_refuses_hidden_layers():
    with pytest.raises(BadInput, match="use MLP"):
        SoftmaxRegression(features=4, classes=3, hidden=(5,))


def test_data_of_another_shape_are_refused(worker):
    model = SoftmaxRegression(features=4, classes=3)
    with pytest.raises(BadInput, match="dense rows of 4"):
        model.train(worker, ArrayDataset(np.ones((2, 3)), [0, 1]))
    with pytest.raises(BadInput, match="dense rows of 4"):
        model.train(worker, SparseArrayDataset([0.0], [0, 1], np.array([1], np.uint64)))


def test_a_label_that_is_no_class_is_refused(worker):
    model = SoftmaxRegression(features=1, classes=3)
    with pytest.raises(BadInput, match="class number"):
        model.train(worker, ArrayDataset([[1.0]], [7]))

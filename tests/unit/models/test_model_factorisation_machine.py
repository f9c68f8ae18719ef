"""Factorisation machines: the formula, its gradient, and that pairs are learnt."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resilient_ps.data import ArrayDataset, SparseArrayDataset, SparseBatch
from resilient_ps.errors import BadInput
from resilient_ps.models import (
    FactorisationMachineClassifier,
    FactorisationMachineRegressor,
    LogisticRegression,
)
from resilient_ps.models.factorisation_machine import Design
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.tables.optimisers import SGD, Adagrad

FACTORS = 3


def rows_of(*rows, labels=None):
    """Each row is a list of (key, value)."""
    labels = np.zeros(len(rows)) if labels is None else labels
    keys = np.array([key for row in rows for key, _ in row], np.uint64)
    values = np.array([value for row in rows for _, value in row], np.float32)
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    return SparseBatch(np.asarray(labels, np.float32), offsets, keys, values)


ROWS = rows_of(
    [(7, 1.0), (3, 0.5), (9, 2.0)],
    [],
    [(3, 1.5)],
    [(9, 1.0), (7, -1.0), (9, 0.5), (3, 1.0)],  # 9 twice
    [(3, 2.0), (9, 1.0)],
    labels=[1, 0, 0, 1, 1],
)


def parameters(keys):
    rng = np.random.default_rng(1)
    return rng.normal(size=keys + 1), rng.normal(size=(keys, FACTORS))


def pair_by_pair(batch, keys, weights, factors):
    """Rendle's equation 1, as it is written."""
    found = []
    column = {int(key): c for c, key in enumerate(keys)}
    for start, stop in itertools.pairwise(batch.row_offsets):
        x = np.zeros(len(keys))
        for key, value in zip(batch.keys[start:stop], batch.values[start:stop], strict=True):
            x[column[int(key)]] += value
        total = weights[-1] + x @ weights[:-1]
        for i, j in itertools.combinations(range(len(keys)), 2):
            total += factors[i] @ factors[j] * x[i] * x[j]
        found.append(total)
    return found


def test_a_prediction_is_the_sum_over_all_pairs_of_features():
    design = Design.of(ROWS)
    assert design.keys.tolist() == [3, 7, 9]
    weights, factors = parameters(3)
    margins = design.margins(weights, factors, design.row_sums(factors))
    assert margins == pytest.approx(pair_by_pair(ROWS, design.keys, weights, factors))


def test_a_key_that_repeats_in_a_row_counts_with_the_sum_of_its_values():
    weights, factors = parameters(2)
    margins = [
        design.margins(weights, factors, design.row_sums(factors))[0]
        for design in map(
            Design.of,
            (
                rows_of([(5, 1.0), (8, 1.0), (5, 2.0)]),
                rows_of([(5, 3.0), (8, 1.0)]),
            ),
        )
    ]
    assert margins[0] == pytest.approx(margins[1])


@pytest.mark.parametrize("kind", [FactorisationMachineClassifier, FactorisationMachineRegressor])
def test_the_gradient_equals_finite_differences(kind):
    model = kind(factors=FACTORS, l2_weights=0.3, l2_factors=0.2)
    design = Design.of(ROWS)
    weights, factors = parameters(3)
    rows_of_key = np.diff(design.key_starts)
    assert rows_of_key.tolist() == [4, 2, 3]

    def penalised(w, v):
        own = 0.3 * (rows_of_key * w[:-1] ** 2).sum() + 0.2 * (rows_of_key[:, None] * v**2).sum()
        return model.loss_and_gradients(design, w, v)[0] + own / 2

    _, by_weight, by_factor = model.loss_and_gradients(design, weights, factors)
    for gradient, given in ((by_weight, weights), (by_factor, factors)):
        assert gradient.shape == given.shape
        for place in np.ndindex(given.shape):
            slopes = []
            for sign in (1, -1):
                given[place] += sign * 1e-5
                slopes.append(sign * penalised(weights, factors))
                given[place] -= sign * 1e-5
            assert gradient[place] == pytest.approx(sum(slopes) / 2e-5, abs=1e-6)


def exclusive_or(rows, seed):
    """Labels that no single feature says anything about: do two of them agree?"""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2, (2, rows))
    keys = np.stack([first, 2 + second], axis=1).astype(np.uint64)
    return SparseArrayDataset(first ^ second, np.arange(rows + 1) * 2, keys.ravel())


def test_what_only_pairs_of_features_say_is_learnt(worker):
    train, test = exclusive_or(600, 1), exclusive_or(200, 2)
    model = FactorisationMachineClassifier(
        factors=2, weight_optimiser=Adagrad(lr=0.3), factor_optimiser=Adagrad(lr=0.3),
        initial_stddev=0.3,
    )  # fmt: skip
    found = model.evaluate(model.train(worker, train, batch_size=50, epochs=10), test)
    assert found.accuracy == 1.0
    assert found.logloss < 0.1
    linear = LogisticRegression(optimiser=Adagrad(lr=0.3))
    assert linear.evaluate(linear.train(worker, train, batch_size=50, epochs=10), test).auc < 0.6


def test_numbers_are_learnt_around_their_mean(worker):
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 5, (800, 2))
    effects = rng.normal(size=(5, 5))
    keys = (codes + np.array([0, 5])).astype(np.uint64)
    data = SparseArrayDataset(
        40 + effects[codes[:, 0], codes[:, 1]], np.arange(801) * 2, keys.ravel(), shuffle_seed=1
    )
    model = FactorisationMachineRegressor(
        factors=6, weight_optimiser=Adagrad(lr=0.2), factor_optimiser=Adagrad(lr=0.2),
        initial_stddev=0.3, mean=40.0,
    )  # fmt: skip
    untrained = model.evaluate(model.open(worker), data)
    assert untrained.rmse == pytest.approx(effects.std(), rel=0.25)
    found = model.evaluate(model.train(worker, data, batch_size=40, epochs=30), data)
    assert found.rmse < 0.05
    assert found.r2 > 0.99


def test_each_push_names_the_distinct_keys_of_the_batch_and_the_bias_among_the_weights(worker):
    data = SparseArrayDataset([1, 0], [0, 3, 5], np.array([7, 9, 7, 9, 11], np.uint64))
    model = FactorisationMachineClassifier(factors=2)
    weights, factors = model.train(worker, data, batch_size=2)
    assert [k.tolist() for k in weights.keys_pushed] == [[7, 9, 11, BIAS_KEY]]
    assert [k.tolist() for k in factors.keys_pushed] == [[7, 9, 11]]
    assert model.table_names == ("fm/weights", "fm/factors")


def test_rows_without_features_train_the_bias_alone(worker):
    data = SparseArrayDataset([1, 1, 0, 1], [0, 0, 0, 0, 0], np.zeros(0, np.uint64))
    model = FactorisationMachineClassifier(weight_optimiser=SGD(lr=1.0))
    tables = model.train(worker, data, batch_size=4, epochs=60)
    assert model.predict(tables, data) == pytest.approx([0.75] * 4, abs=1e-3)


def test_a_mean_gradient_does_not_depend_on_the_size_of_the_batch(worker):
    steps = []
    for name, rows in (("a", 1), ("b", 3)):
        data = SparseArrayDataset([1] * rows, np.arange(rows + 1), np.full(rows, 3, np.uint64))
        model = FactorisationMachineClassifier(table=name, weight_optimiser=SGD(lr=1.0))
        weights, _ = model.train(worker, data, batch_size=3)
        steps.append(weights.pull(np.array([3], np.uint64)))
    assert steps[0] == steps[1] == 0.5


@pytest.mark.parametrize(
    "wrong", [{"factors": 0}, {"factors": 1025}, {"l2_weights": -1.0}, {"l2_factors": -0.1}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        FactorisationMachineClassifier(**wrong)


def test_dense_rows_and_missing_labels_are_refused(worker):
    with pytest.raises(BadInput, match="sparse rows"):
        FactorisationMachineClassifier().train(worker, ArrayDataset(np.ones((3, 2)), [0, 1, 1]))
    unlabelled = SparseArrayDataset([np.nan], [0, 1], np.array([1], np.uint64))
    for model in (FactorisationMachineClassifier(), FactorisationMachineRegressor(table="r")):
        with pytest.raises(BadInput, match="no label"):
            model.train(worker, unlabelled)
        assert len(model.predict(model.open(worker), unlabelled)) == 1

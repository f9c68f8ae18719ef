"""Losses and metrics against scikit-learn, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from resilient_ps.errors import BadInput
from resilient_ps.models.losses import (
    binary_targets,
    class_targets,
    cross_entropies,
    log_losses,
    sigmoid,
    softmax,
)
from resilient_ps.models.metrics import auc, evaluate_margins, evaluate_scores


@pytest.mark.parametrize("distinct", [2, 7, 100_000])
def test_auc_with_and_without_ties_equals_scikit_learns(distinct):
    rng = np.random.default_rng(distinct)
    targets = rng.random(3000) < 0.3
    scores = rng.integers(0, distinct, 3000) + 0.3 * distinct * targets * rng.random(3000).round()
    assert auc(targets, scores) == pytest.approx(roc_auc_score(targets, scores), abs=1e-12)


def test_auc_of_a_perfect_a_reversed_and_a_constant_score():
    targets = np.array([False, False, True, True])
    assert auc(targets, np.array([1.0, 2.0, 3.0, 4.0])) == 1.0
    assert auc(targets, np.array([4.0, 3.0, 2.0, 1.0])) == 0.0
    assert auc(targets, np.zeros(4)) == 0.5


def test_auc_of_one_class_is_none():
    assert auc(np.ones(3, bool), np.arange(3.0)) is None
    assert auc(np.zeros(3, bool), np.arange(3.0)) is None


def test_evaluation_of_margins_equals_scikit_learns():
    rng = np.random.default_rng(1)
    targets = (rng.random(500) < 0.4).astype(float)
    margins = rng.normal(size=500) + targets
    found = evaluate_margins(targets, margins)
    assert found.samples == 500
    assert found.logloss == pytest.approx(log_loss(targets, sigmoid(margins)))
    assert found.accuracy == accuracy_score(targets, margins > 0)
    assert found.auc == pytest.approx(roc_auc_score(targets, margins))


def test_evaluation_of_scores_equals_scikit_learns():
    rng = np.random.default_rng(2)
    targets = rng.integers(0, 4, 300)
    scores = rng.normal(size=(300, 4))
    found = evaluate_scores(targets, scores)
    assert found.logloss == pytest.approx(log_loss(targets, softmax(scores)))
    assert found.accuracy == accuracy_score(targets, scores.argmax(1))
    assert found.auc is None


def test_an_evaluation_of_nothing_is_refused():
    with pytest.raises(BadInput, match="no rows"):
        evaluate_margins(np.zeros(0), np.zeros(0))


def test_huge_margins_neither_overflow_nor_give_infinite_losses():
    margins = np.array([-1e4, 1e4, 0.0])
    with np.errstate(all="raise", under="ignore"):
        assert sigmoid(margins).tolist() == [0.0, 1.0, 0.5]
        losses = log_losses(margins, np.array([1.0, 1.0, 1.0]))
        assert np.allclose(losses, [1e4, 0.0, np.log(2)])
        assert cross_entropies(np.array([[1e4, -1e4]]), np.array([1])).tolist() == [2e4]


def test_labels_of_both_conventions_give_the_same_targets():
    zero_one = binary_targets(np.array([0, 1, 1], np.float32))
    signed = binary_targets(np.array([-1, 1, 1], np.float32))
    assert zero_one.tolist() == signed.tolist() == [0.0, 1.0, 1.0]


def test_missing_labels_are_refused():
    with pytest.raises(BadInput, match="no label"):
        binary_targets(np.array([1, np.nan], np.float32))
    with pytest.raises(BadInput, match="class number"):
        class_targets(np.array([1, np.nan], np.float32), 3)


@pytest.mark.parametrize("label", [-1.0, 3.0, 0.5])
def test_labels_that_are_no_classes_are_refused(label):
    with pytest.raises(BadInput, match=r"not a class number in 0 \.\. 2"):
        class_targets(np.array([0, label], np.float32), 3)

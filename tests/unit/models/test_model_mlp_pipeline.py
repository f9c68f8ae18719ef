"""The MLP in a pipeline: exact whatever the order, and as good as scikit-learn's on its digits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from summing import SummingTables, TasksInOrder, some_order

from resilient_ps.data import ArrayDataset
from resilient_ps.errors import BadInput
from resilient_ps.models.mlp import MLP
from resilient_ps.models.mlp_pipeline import PipelinedMLP
from resilient_ps.tables.optimisers import SGD

HIDDEN = (64, 32)
MICRO_BATCHES = 43  # of 32 or 33 rows
EPOCHS, RATE = 25, 0.1
BAND = 0.01


def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16.0, y[order]
    return ArrayDataset(x[:1400], y[:1400], shuffle_seed=3), ArrayDataset(x[1400:], y[1400:])


def few(rows=90):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 5))
    return ArrayDataset(x, (x[:, 0] > 0) + (x[:, 1] > 0), shuffle_seed=1)


def small(hidden=(7, 6, 4)):
    return MLP(5, 3, hidden, optimiser=SGD(lr=0.05))


def train(pipelined, dataset, epochs, order_of=None, **how):
    graph = pipelined.schedule(epochs=epochs).graph
    tasks = TasksInOrder(graph.serial_order() if order_of is None else order_of(graph))
    layers = pipelined.train(tasks, dataset, epochs=epochs, **how)
    return layers, tasks


def layer_bytes(layers):
    return b"".join(layer.pull().tobytes() for layer in layers)


def in_one_process(model, dataset, per_epoch, epochs):
    """The same micro-batches, one after the other, without tasks."""
    tables = SummingTables()
    layers = model.open(tables)
    for epoch in range(epochs):
        for place in range(per_epoch):
            start = dataset.beginning(place, per_epoch, epoch)
            batch = next(dataset.batches(place, per_epoch, 1 << 16, epoch + 1, cursor=start))
            _, gradients = model.loss_and_gradients([layer.pull() for layer in layers], batch)
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.push((gradient * (1 / len(batch))).astype(np.float32))
    return layers


@pytest.mark.parametrize("in_flight", [1, 2, None, 9])
def test_every_order_of_tasks_ends_with_the_bytes_of_the_serial_one(in_flight):
    pipelined = PipelinedMLP(small(), micro_batches=6, in_flight=in_flight)
    ends = {layer_bytes(train(pipelined, few(), 3)[0])}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        layers, _ = train(pipelined, few(), 3, lambda graph, rng=rng: some_order(graph, rng))
        ends.add(layer_bytes(layers))
    assert len(ends) == 1


def test_with_one_micro_batch_in_flight_it_is_plain_gradient_descent():
    pipelined = PipelinedMLP(small(), micro_batches=6, in_flight=1)
    layers, _ = train(pipelined, few(), 3)
    assert layer_bytes(layers) == layer_bytes(in_one_process(small(), few(), 6, 3))


def test_more_in_flight_is_something_else():
    """So that the test above says something."""
    pipelined = PipelinedMLP(small(), micro_batches=6, in_flight=2)
    layers, _ = train(pipelined, few(), 3)
    assert layer_bytes(layers) != layer_bytes(in_one_process(small(), few(), 6, 3))


@pytest.mark.parametrize("in_flight", [1, None])
def test_nothing_is_left_of_what_was_handed_on(in_flight):
    pipelined = PipelinedMLP(small(), micro_batches=6, in_flight=in_flight)
    _, tasks = train(pipelined, few(), 2)
    handed = [name for name in tasks.tables if "ward/" in name]
    assert len(handed) == 7
    for name in handed:
        rows = tasks.tables[name]._rows
        assert not rows.any(), name


def test_the_digits_are_learnt_as_well_as_by_scikit_learn():
    learnt, held_out = digits()
    model = MLP(64, 10, HIDDEN, optimiser=SGD(lr=RATE))
    told = []
    pipelined = PipelinedMLP(model, MICRO_BATCHES)
    layers, _ = train(pipelined, learnt, EPOCHS, on_task=told.append)
    found = model.evaluate(layers, held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        due = [
            MLPClassifier(
                HIDDEN, solver="sgd", alpha=0.0, batch_size=32, learning_rate_init=RATE,
                momentum=0.0, max_iter=EPOCHS, random_state=seed,
            )
            .fit(learnt.features, learnt.labels)
            .score(held_out.features, held_out.labels)
            for seed in range(2)
        ]  # fmt: skip
    assert found.accuracy >= np.mean(due) - BAND
    assert told[-1].samples == EPOCHS * len(learnt)
    assert told[0].loss == pytest.approx(np.log(10))
    assert told[-1].loss < 0.2


def test_micro_batches_without_rows_are_passed_over():
    pipelined = PipelinedMLP(small(), micro_batches=8)
    told = []
    train(pipelined, few(rows=5), 2, on_task=told.append)
    assert [each.samples for each in told] == list(range(1, 11))


def test_a_rate_that_is_too_high_is_told_with_the_layer():
    pipelined = PipelinedMLP(MLP(5, 3, (4,), optimiser=SGD(lr=1e20)), micro_batches=4)
    with (
        np.errstate(all="ignore"),
        pytest.raises(BadInput, match=r"layer \d of 'mlp' .* use a lower learning rate"),
    ):
        train(pipelined, few(), 5)


@pytest.mark.parametrize(
    ("model", "wrong", "why"),
    [
        (MLP(5, 3, (5000,)), {}, "layer of 5000 outputs"),
        (MLP(5, 3), {"micro_batches": 0}, "micro_batches=0"),
        (MLP(5, 3), {"in_flight": 0}, "in_flight=0"),
    ],
)
def test_impossible_pipelines_are_refused(model, wrong, why):
    with pytest.raises(BadInput, match=why):
        PipelinedMLP(model, **wrong)

"""Embeddings with an MLP, beside the same model written once more with one-hot matrices."""

from __future__ import annotations

import numpy as np
import pytest
from summing import OneRank

from resilient_ps.data import ArrayDataset, SparseArrayDataset, SparseBatch
from resilient_ps.errors import BadInput
from resilient_ps.models.embedding_mlp import EmbeddingMLP, EmbeddingTables, Fields
from resilient_ps.tables.optimisers import SGD

VOCABULARY = (7, 4, 9)  # of each field
OFFSETS = np.r_[0, np.cumsum(VOCABULARY)]
KEYS = np.random.default_rng(9).integers(0, 2**64, OFFSETS[-1], dtype=np.uint64)


def planted(rows=600, seed=0):
    """Labels depend on pairs of features, which no linear model can tell."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, n, rows) for n in VOCABULARY], axis=1)
    labels = ((codes[:, 0] % 2) ^ (codes[:, 1] % 2)).astype(np.float32)
    keys = KEYS[codes + OFFSETS[:-1]]
    return SparseArrayDataset(labels, np.arange(rows + 1) * 3, keys.reshape(-1), shuffle_seed=2)


def model(**settings):
    usual = {"fields": 3, "dim": 2, "hidden": (6, 5), "optimiser": SGD(0.1)}
    return EmbeddingMLP(**{**usual, "embedding_optimiser": SGD(0.3), **settings})


def one_hot(batch):
    """(n, fields * words): which word each field has, times its value."""
    number = {int(key): at for at, key in enumerate(KEYS)}
    hot = np.zeros((len(batch), 3, len(KEYS)))
    for at, (key, value) in enumerate(zip(batch.keys.tolist(), batch.values, strict=True)):
        hot[at // 3, at % 3, number[key]] = value
    return hot


def with_one_hot_matrices(embeddings, layers, batch):
    """Mean log loss and all gradients in float64, as the chain rule gives them."""
    hot, x = one_hot(batch), []
    signal = np.einsum("nfk,kd->nfd", hot, embeddings).reshape(len(batch), -1)
    for weights in layers:
        x.append(np.c_[signal, np.ones(len(batch))])
        signal = x[-1] @ weights
        if weights is not layers[-1]:
            signal = signal * (signal > 0)
    chance = 1 / (1 + np.exp(-signal[:, 0]))
    loss = -np.log(np.where(batch.labels > 0, chance, 1 - chance)).mean()
    back = (chance - batch.labels)[:, None] / len(batch)
    gradients = []
    for number in reversed(range(len(layers))):
        gradients.insert(0, x[number].T @ back)
        back = back @ layers[number][:-1].T
        if number:
            back = back * (x[number][:, :-1] > 0)
    by_field = back.reshape(len(batch), 3, -1)
    return loss, np.einsum("nfk,nfd->kd", hot, by_field), gradients


def begin(rank, dim):
    """Embeddings of all words, at random."""
    table = rank.sparse_table("embedding-mlp/embeddings", dim=dim, optimiser=SGD(0.3))
    drawn = np.random.default_rng(1).normal(size=(len(KEYS), dim))
    table.push(KEYS, drawn.astype(np.float32))
    return table


def test_training_is_that_of_the_model_with_one_hot_matrices():
    data, net, rank = planted(), model(), OneRank()
    begun = begin(rank, 2)
    tables = net.open(rank)
    embeddings = begun.pull(KEYS).astype(np.float64)
    layers = [table.pull().astype(np.float64) for table in tables.layers]
    told = []
    net.train(rank, data, batch_size=60, epochs=3, on_batch=told.append)
    for batch, progress in zip(data.batches(0, 1, 60, 3), told, strict=True):
        loss, slope, gradients = with_one_hot_matrices(embeddings, layers, batch)
        assert progress.loss == pytest.approx(loss, abs=1e-4)
        embeddings = embeddings - 0.3 * slope
        layers = [w - 0.1 * g for w, g in zip(layers, gradients, strict=True)]
    assert begun.pull(KEYS) == pytest.approx(embeddings, abs=1e-4)
    for table, weights in zip(tables.layers, layers, strict=True):
        assert table.pull() == pytest.approx(weights, abs=1e-4)


def test_what_depends_on_pairs_of_features_is_learnt():
    net, rank = model(hidden=(16, 8), dim=4), OneRank()
    begin(rank, 4)
    tables = net.train(rank, planted(), batch_size=20, epochs=40)
    assert net.evaluate(tables, planted(seed=5)).auc > 0.99


def test_the_gradients_equal_finite_differences_also_where_keys_repeat_and_values_differ():
    rng, net = np.random.default_rng(3), model()
    keys = np.array([5, 5, 9, 9, 7, 5], np.uint64)
    values = rng.uniform(0.5, 2, 6).astype(np.float32)
    fields = Fields.of(SparseBatch(np.zeros(2), np.array([0, 3, 6]), keys, values), 3)
    assert fields.keys.tolist() == [5, 7, 9]
    given = [rng.normal(size=(3, 2)), *(rng.normal(size=shape) for shape in net.shapes)]
    targets = np.array([1.0, 0.0])
    _, gradients = net.loss_and_gradients(given[0], given[1:], fields, targets)
    for number, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            losses = []
            for nudge in (1e-6, -1e-6):
                moved = [each.copy() for each in given]
                moved[number][place] += nudge
                losses.append(net.loss_and_gradients(moved[0], moved[1:], fields, targets)[0])
            assert gradient[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-4)


def test_predictions_are_in_the_order_of_the_data_and_match_the_evaluation():
    net, rank = model(), OneRank()
    tables = net.train(rank, planted(), batch_size=50)
    data = planted()
    in_order = SparseArrayDataset(data.labels, data.row_offsets, data.keys)
    chances = net.predict(tables, in_order)
    found = net.evaluate(tables, in_order)
    assert chances.shape == (600,)
    assert found.accuracy == np.mean((chances > 0.5) == (data.labels > 0))


def test_a_fresh_model_predicts_one_half_and_its_tables_are_named():
    net, rank = model(table="net"), OneRank()
    tables = net.open(rank)
    assert isinstance(tables, EmbeddingTables)
    assert set(net.predict(tables, planted())) == {0.5}
    assert tuple(rank.tables) == net.table_names == ("net/embeddings", "net/0", "net/1", "net/2")
    assert [table.pull().shape for table in tables.layers] == net.shapes == [(7, 6), (7, 5), (6, 1)]


def test_data_of_another_kind_are_refused():
    net, rank = model(), OneRank()
    with pytest.raises(BadInput, match="sparse rows: use MLP"):
        net.train(rank, ArrayDataset(np.ones((3, 2)), [0, 1, 1]))
    uneven = SparseArrayDataset([1, 0], [0, 3, 5], np.arange(5, dtype=np.uint64))
    with pytest.raises(BadInput, match=r"rows of 3 features, one for each field, .* rows of 2, 3"):
        net.train(rank, uneven)


@pytest.mark.parametrize(
    "wrong", [{"fields": 0}, {"dim": 0}, {"dim": 5000}, {"hidden": (0,)}, {"hidden": (1,) * 40}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        model(**wrong)

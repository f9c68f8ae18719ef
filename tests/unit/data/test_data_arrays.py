"""Data sets in memory."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.data import ArrayDataset, SparseArrayDataset, open_dataset
from resilient_ps.errors import BadInput


def sparse(**options):
    """Rows of 2, 0 and 1 features."""
    return SparseArrayDataset(
        [1, 0, 1], [0, 2, 2, 3], np.array([5, 2**64 - 1, 7], np.uint64), [1.0, 2.0, 3.0], **options
    )


def test_a_sparse_batch_has_the_rows_as_they_are():
    batch = next(sparse().batches(0, 1, 3))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.row_offsets.tolist() == [0, 2, 2, 3]
    assert batch.keys.tolist() == [5, 2**64 - 1, 7]
    assert batch.values.tolist() == [1, 2, 3]
    assert batch.row_numbers().tolist() == [0, 0, 2]


def test_dtypes_are_those_of_the_batch_types():
    batch = next(sparse().batches(0, 1, 2))
    assert (batch.labels.dtype, batch.row_offsets.dtype) == (np.float32, np.int64)
    assert (batch.keys.dtype, batch.values.dtype) == (np.uint64, np.float32)
    dense = next(ArrayDataset(np.ones((2, 3)), [0, 1]).batches(0, 1, 2))
    assert (dense.labels.dtype, dense.features.dtype) == (np.float32, np.float32)
    assert len(dense) == 2


def test_ranks_take_turns_row_by_row():
    data = ArrayDataset(np.arange(5)[:, None], np.arange(5))
    assert next(data.batches(0, 2, 9)).labels.tolist() == [0, 2, 4]
    assert next(data.batches(1, 2, 9)).labels.tolist() == [1, 3]


def test_with_a_seed_each_epoch_has_its_own_repeatable_order():
    orders = [
        [b.labels.tolist() for b in ArrayDataset(
            np.arange(50)[:, None], np.arange(50), shuffle_seed=seed
        ).batches(0, 1, 50, epochs=2)]
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1] != list(range(50))
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == list(range(50))


def test_the_order_of_a_seed_never_changes():
    data = ArrayDataset(np.zeros((8, 1)), np.arange(8), shuffle_seed=7)
    assert next(data.batches(0, 1, 8)).labels.tolist() == [6, 3, 4, 0, 2, 7, 5, 1]


def test_shuffled_shares_the_rows():
    data = sparse()
    assert np.shares_memory(data.shuffled(3).keys, data.keys)


def test_values_that_are_not_given_are_ones():
    data = SparseArrayDataset([1], [0, 2], np.array([1, 2], np.uint64))
    assert next(data.batches(0, 1, 1)).values.tolist() == [1, 1]


@pytest.mark.parametrize("with_values", [True, False])
def test_a_saved_data_set_is_read_back(tmp_path, with_values):
    data = sparse() if with_values else SparseArrayDataset([1], [0, 1], np.array([3], np.uint64))
    data.save(tmp_path / "rows.npz")
    again = open_dataset(tmp_path / "rows.npz")
    for name in ("labels", "row_offsets", "keys", "values"):
        assert getattr(again, name).tolist() == getattr(data, name).tolist()


@pytest.mark.parametrize(
    ("offsets", "keys", "values", "reason"),
    [
        ([0, 1], [1, 2], None, "2 entries for 2 rows"),
        ([0, 1, 3], [1, 2], None, "grow from 0"),
        ([1, 1, 2], [1, 2], None, "grow from 0"),
        ([0, 2, 1], [1], None, "grow from 0"),
        ([0, 1, 2], [1, 2], [1.0], "1 values for 2 keys"),
        ([0, 1, 2], [1, 2], [1.0, np.nan], r"values\[1\] is not a finite"),
        ([0, 1, 2], [1, -2], None, "negative"),
        ([0, 1, 2], [1.5, 2.0], None, "integers"),
    ],
)
def test_sparse_parts_that_do_not_fit_are_refused(offsets, keys, values, reason):
    with pytest.raises(BadInput, match=reason):
        SparseArrayDataset([0, 1], offsets, np.array(keys), values)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([[1.0]], [0, 1], "1 rows of features but 2 labels"),
        ([1.0, 2.0], [0, 1], "2 dimension"),
        ([[1.0], [np.inf]], [0, 1], r"features\[1, 0\] is not a finite"),
        ([[1.0], [1e39]], [0, 1], r"features\[1, 0\] is not a finite"),
        ([[1.0], [2.0]], [0, np.nan], r"labels\[1\] is not a finite"),
        ([["a"], ["b"]], [0, 1], "numbers are needed"),
        (np.zeros((0, 2)), [], "at least one row"),
    ],
)
def test_dense_arrays_that_do_not_fit_are_refused(x, y, reason):
    with pytest.raises(BadInput, match=reason):
        ArrayDataset(x, y)


def test_a_negative_seed_is_refused():
    with pytest.raises(BadInput, match="negative"):
        sparse(shuffle_seed=-1)


def test_unshuffled_batches_are_views_that_cannot_be_written_to():
    features = np.arange(60, dtype=np.float32).reshape(20, 3)
    dataset = ArrayDataset(features, np.arange(20))
    batches = list(dataset.batches(1, 3, 4))
    assert all(np.shares_memory(batch.features, dataset.features) for batch in batches)
    assert np.concatenate([b.labels for b in batches]).tolist() == list(range(1, 20, 3))
    with pytest.raises(ValueError, match="read-only"):
        batches[0].features[0, 0] = 1
    dataset.features[0, 0] = 7  # the data set itself stays its owner's


def test_shuffled_batches_are_copies():
    dataset = ArrayDataset(np.ones((20, 3), np.float32), np.arange(20), shuffle_seed=1)
    (batch,) = dataset.batches(0, 1, 20)
    assert not np.shares_memory(batch.features, dataset.features)
    batch.features[0, 0] = 7

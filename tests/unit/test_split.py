"""Requests split into the shards' pieces: every key once, in the order of the shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routings import routing

from resilient_ps.errors import BadInput
from resilient_ps.hashing import shard_of
from resilient_ps.split import (
    CHUNK_BYTES,
    PULL_CHUNK_BYTES,
    check_gradients,
    check_keys,
    chunk_rows,
    cuts_of,
    split_dense,
    split_sparse_pull,
    split_sparse_push,
)
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.spec import DenseSpec, SparseSpec

SPEC = SparseSpec("s", 3)
ROUTING = routing("s2 s1 s2 s1 s1")
some_keys = st.lists(st.integers(0, 2**64 - 1), max_size=200)


@given(some_keys)
def test_a_push_reaches_each_keys_shard_with_its_gradient_in_order(numbers: list[int]) -> None:
    keys = np.array(numbers, np.uint64)
    grads = np.arange(len(keys) * 3, dtype=np.float32).reshape(-1, 3)
    split = split_sparse_push(ROUTING, keys, grads)
    assert list(split.pieces) == [shard for shard in ROUTING.order if shard in split.pieces]
    for shard, piece in split.pieces.items():
        mine = [i for i, key in enumerate(numbers) if shard_of(key, 5) == shard]
        assert split.keys[piece.first : piece.first + piece.count].tolist() == keys[mine].tolist()
        (values,) = piece.values
        assert values.reshape(-1, 3).tolist() == grads[mine].tolist()
        assert piece.elements == values.size
    assert sum(piece.count for piece in split.pieces.values()) == len(keys)


@given(some_keys)
def test_pulled_rows_end_up_where_their_keys_were(numbers: list[int]) -> None:
    keys = np.array(numbers, np.uint64)
    pull = split_sparse_pull(ROUTING, keys, SPEC)
    for piece in pull.split.pieces.values():  # each shard answers row = key as float
        rows = np.repeat(pull.split.keys[piece.first : piece.first + piece.count], 3)
        pull.split.out[piece.start : piece.stop] = rows.astype(np.float32).tobytes()
    out = np.empty((len(keys), 3), np.float32)
    pull.finish(out)
    assert out.tolist() == np.repeat(keys, 3).reshape(-1, 3).astype(np.float32).tolist()


@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (100_000, 5), (3, 1_000_000)])
def test_the_pieces_of_a_dense_table_cover_it_once(shape: tuple[int, ...]) -> None:
    spec = DenseSpec("d", shape)
    layout = DenseLayout(spec, 5)
    flat = np.arange(spec.elements, dtype=np.float32)
    received = np.zeros_like(flat)
    pushes = list(split_dense(ROUTING, layout, flat, pull=False))
    pulls = list(split_dense(ROUTING, layout, received, pull=True))
    block_bytes = 4 * layout.elements_per_block
    for splits, most in ((pushes, CHUNK_BYTES), (pulls, PULL_CHUNK_BYTES)):
        for split in splits:
            for shard, piece in split.pieces.items():
                blocks = split.keys[piece.first : piece.first + piece.count].tolist()
                assert set(blocks) <= set(layout.blocks_of(shard).tolist())
        assert all(split.nbytes <= max(most, block_bytes) for split in splits)
        assert len(splits) <= -(-flat.nbytes // max(1, most - block_bytes))
    for pull in pulls:
        for shard, target in pull.pieces.items():
            here = b"".join(
                p.pieces[shard].values[0].tobytes() for p in pushes if shard in p.pieces
            )
            pull.out[target.start : target.stop] = here
    assert np.array_equal(received, flat)


def test_neighbours_are_received_and_sent_as_one_run() -> None:
    layout = DenseLayout(DenseSpec("d", (100_000, 5)), 5)
    (cut,) = cuts_of(ROUTING.order, layout, pull=True)
    elements = [element for run in cut.runs for element in range(*run)]
    assert elements == [each for *_, at, to in cut.parts for each in range(at, to)]
    assert len(cut.runs) < len(cut.parts)


def test_rows_per_request_keep_it_near_the_chunk_size() -> None:
    assert chunk_rows(SparseSpec("s", 1)) == CHUNK_BYTES // 12
    assert chunk_rows(SparseSpec("s", 4096, "float64")) == CHUNK_BYTES // (8 + 8 * 4096)


@pytest.mark.parametrize("keys", [[1, 2], np.array([1, 2], np.int32), np.array([1, 2], np.uint64)])
def test_whole_numbers_are_keys(keys: Any) -> None:
    checked = check_keys(SPEC, keys)
    assert checked.dtype == np.uint64
    assert checked.tolist() == [1, 2]


def test_large_integers_in_a_list_keep_all_their_digits() -> None:
    large = 2**64 - 1  # beside a small one, numpy makes both floats
    assert check_keys(SPEC, [large, 5, np.uint8(7)]).tolist() == [large, 5, 7]
    assert check_keys(SPEC, (2**63, np.int64(1))).tolist() == [2**63, 1]


@pytest.mark.parametrize(
    "keys",
    [[-1], [0.5], ["a"], [[1]], 3, [None], [2**64], [-1, 2**63], [2.0**63, 1], [[1], [2, 3]]],
)
def test_other_things_are_no_keys(keys: Any) -> None:
    with pytest.raises(BadInput, match="keys must"):
        check_keys(SPEC, keys)


def test_no_keys_are_keys() -> None:
    assert check_keys(SPEC, []).tolist() == []


@pytest.mark.parametrize(
    "grads",
    [
        np.zeros((2, 2), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 3)),
        [[1, 2, 3]],
        [[1], [2, 3]],
    ],
)
def test_gradients_have_the_tables_dtype_and_a_row_for_each_key(grads: Any) -> None:
    with pytest.raises(BadInput, match="table 's'"):
        check_gradients(SPEC, np.arange(2, dtype=np.uint64), grads)


def test_one_column_may_be_given_flat() -> None:
    keys = np.arange(3, dtype=np.uint64)
    grads = check_gradients(SparseSpec("one", 1), keys, np.ones(3, np.float32))
    assert grads.shape == (3, 1)

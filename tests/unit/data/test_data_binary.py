"""The `.npz` and Parquet readers."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from resilient_ps.data import open_dataset, open_npz, open_parquet
from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text


def test_a_dense_archive(tmp_path):
    np.savez(tmp_path / "d.npz", X=[[1, 2], [3, 4]], y=[0, 1])
    batch = next(open_npz(tmp_path / "d.npz").batches(0, 1, 9))
    assert batch.features.tolist() == [[1, 2], [3, 4]]
    assert batch.labels.tolist() == [0, 1]


@pytest.mark.parametrize("label_name", ["y", "labels", "label"])
def test_an_archive_of_csr_parts_as_scipy_has_them(tmp_path, label_name):
    matrix = sparse.csr_matrix(np.array([[0, 5.0], [0, 0], [7, 8]]))
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    np.savez_compressed(tmp_path / "s.npz", **parts, **{label_name: [0, 1, 1]})
    batch = next(open_npz(tmp_path / "s.npz").batches(0, 1, 9))
    assert batch.row_offsets.tolist() == [0, 1, 1, 3]
    assert batch.keys.tolist() == [1, 0, 1]
    assert batch.values.tolist() == [5, 7, 8]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"X": [[1.0]]}, "has no labels: save them as 'y'; it has X"),
        ({"y": [1.0]}, "neither 'X'"),
        ({"X": [[1.0]], "y": [1.0, 2.0]}, "1 rows of features but 2 labels"),
        ({"X": np.array([[{}]], object), "y": [1.0]}, "without objects"),
        ({"data": [1.0], "indices": [-1], "indptr": [0, 1], "y": [1]}, "negative"),
    ],
)
def test_archives_that_cannot_be_used_are_refused_with_their_name(tmp_path, arrays, reason):
    np.savez(tmp_path / "bad.npz", **{n: np.asarray(a) for n, a in arrays.items()})
    with pytest.raises(BadInput, match=r"bad\.npz.*" + reason):
        open_npz(tmp_path / "bad.npz")


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, X=np.zeros((100, 10)), y=np.zeros(100))
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot be read as \.npz"):
        open_npz(path)


@pytest.fixture
def parquet_file(tmp_path):
    table = pa.table(
        {
            "y": [1, 0, 1],
            "n": [1.5, None, -3.0],
            "c": ["a", "b", None],
            "flag": [True, False, None],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_parquet_columns_are_numbers_or_categories_by_their_type(parquet_file):
    batch = next(open_dataset(parquet_file).batches(0, 1, 9))
    n, flag = hash_text(b"n"), hash_text(b"flag")
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.row_offsets.tolist() == [0, 3, 5, 7]
    assert batch.keys.tolist() == [
        *(n, flag, hash_text(b"c=a")),
        *(flag, hash_text(b"c=b")),
        *(n, hash_text(b"c=")),
    ]
    assert batch.values.tolist() == [1.5, 1, 1, 0, 1, -3, 1]


def test_parquet_columns_can_be_chosen_and_make_dense_rows(parquet_file):
    dataset = open_parquet(parquet_file, label="y", numeric=["n"], dense=True)
    assert next(dataset.batches(0, 1, 9)).features.tolist() == [[1.5], [0], [-3]]


def test_a_bad_parquet_row_is_an_error_or_skipped(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"y": [1.0, None, 0.0], "n": [1.0, 2.0, float("nan")]}), path)
    with pytest.raises(BadInput, match=r"t\.parquet, row 2: label '' is not a number"):
        list(open_parquet(path).batches(0, 1, 9))
    dataset = open_parquet(path, on_bad="skip")
    assert [len(b) for b in dataset.batches(0, 1, 9)] == [1]
    assert dataset.skipped == 2
    assert "row 3: column 'n': b'nan'" not in dataset.reasons[1]
    assert "row 3: column 'n': 'nan' is not finite" in dataset.reasons[1]
    assert dataset.batches_per_rank(1, 9) is None


def test_a_truncated_parquet_file_is_refused(parquet_file):
    parquet_file.write_bytes(parquet_file.read_bytes()[:-20])
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        open_dataset(parquet_file)


def test_a_damaged_parquet_page_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"y": range(1000), "c": [f"v{i}" for i in range(1000)]}), path)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(BadInput, match="truncated or damaged"):
        list(open_dataset(path).batches(0, 1, 100))


def test_without_pyarrow_the_remedy_is_named(parquet_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"pip install 'resilient-ps\[parquet\]'"):
        open_dataset(parquet_file)

"""What holds for every data set: ranks split it without loss or overlap, and cursors are exact."""

from __future__ import annotations

import gzip
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resilient_ps.data import ArrayDataset, SparseArrayDataset, open_dataset
from resilient_ps.errors import BadInput

ROWS = 23


def libsvm_text():
    """Rows numbered by their label, among comments, blank lines and Windows line ends."""
    lines = ["# a comment"]
    for row in range(ROWS):
        lines.append(f"{row} {row % 5}:1.5 {7 + row}:{row + 1}")
        if row % 4 == 0:
            lines.append("" if row % 8 else "  # another")
    return "\r\n".join(lines).encode()


def csv_text():
    return "y,a,b\n" + "\n".join(f"{row},{row / 2},c{row % 3}" for row in range(ROWS))


def plain_libsvm(folder):
    (folder / "a.svm").write_bytes(libsvm_text())
    return open_dataset(folder / "a.svm")


def gzip_libsvm(folder):
    (folder / "a.svm.gz").write_bytes(gzip.compress(libsvm_text()))
    return open_dataset(folder / "a.svm.gz")


def zip_csv(folder):
    with zipfile.ZipFile(folder / "a.csv.zip", "w") as archive:
        archive.writestr("a.csv", csv_text())
    return open_dataset(folder / "a.csv.zip")


def plain_csv(folder):
    (folder / "a.csv").write_text(csv_text())
    return open_dataset(folder / "a.csv")


def csv_without_bad_lines(folder):
    text = csv_text().replace("\n5,", "\nfive,").replace("\n22,", "\nx,")
    (folder / "a.csv").write_text(text.replace("\n0,", "\n5,0,z\n22,0,z\n0,"))
    return open_dataset(folder / "a.csv", on_bad="skip")


def dense_csv(folder):
    (folder / "a.csv").write_text(csv_text())
    return open_dataset(folder / "a.csv", label="y", numeric=["a"], dense=True)


def dense_npz(folder):
    np.savez(folder / "a.npz", X=np.arange(ROWS * 2).reshape(-1, 2), y=np.arange(ROWS))
    return open_dataset(folder / "a.npz", shuffle_seed=4)


def parquet(folder):
    table = pa.table({"y": range(ROWS), "a": [f"v{i % 4}" for i in range(ROWS)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=5)
    return open_dataset(folder / "a.parquet")


def dense_arrays(folder):
    return ArrayDataset(np.arange(ROWS)[:, None], np.arange(ROWS))


def shuffled_sparse_arrays(folder):
    keys = np.arange(2 * ROWS, dtype=np.uint64)
    return SparseArrayDataset(np.arange(ROWS), np.arange(ROWS + 1) * 2, keys, shuffle_seed=9)


BUILDERS = [
    plain_libsvm,
    gzip_libsvm,
    zip_csv,
    plain_csv,
    csv_without_bad_lines,
    dense_csv,
    dense_npz,
    parquet,
    dense_arrays,
    shuffled_sparse_arrays,
]


def arrays_of(batch):
    names = [name for name in type(batch).__dataclass_fields__ if name != "cursor"]
    return [np.asarray(getattr(batch, name)).tolist() for name in names]


@pytest.fixture(params=BUILDERS, ids=lambda builder: builder.__name__)
def dataset(request, tmp_path):
    return request.param(tmp_path)


@pytest.mark.parametrize("of", [1, 2, 3, 5, 40])
def test_every_row_belongs_to_exactly_one_rank(dataset, of):
    batches = [b for rank in range(of) for b in dataset.batches(rank, of, 4)]
    rows = sorted(int(label) for batch in batches for label in batch.labels)
    assert rows == list(range(ROWS))


@pytest.mark.parametrize("of", [1, 3])
def test_from_every_cursor_exactly_the_later_batches_follow(dataset, of):
    for rank in range(of):
        batches = list(dataset.batches(rank, of, 4, epochs=3))
        for number, batch in enumerate(batches):
            cursor = json.loads(json.dumps(batch.cursor))
            later = list(dataset.batches(rank, of, 4, epochs=3, cursor=cursor))
            assert [arrays_of(b) for b in later] == [arrays_of(b) for b in batches[number + 1 :]]
            assert [b.cursor for b in later] == [b.cursor for b in batches[number + 1 :]]


def test_the_cursor_of_the_last_epoch_can_be_continued_with_more_epochs(dataset):
    *_, last = dataset.batches(0, 2, 4, epochs=1)
    more = list(dataset.batches(0, 2, 4, epochs=2, cursor=last.cursor))
    whole = list(dataset.batches(0, 2, 4, epochs=2))
    assert [arrays_of(b) for b in more] == [arrays_of(b) for b in whole[len(whole) // 2 :]]


@pytest.mark.parametrize("of", [1, 3])
def test_an_epoch_can_be_read_from_its_beginning(dataset, of):
    for rank in range(of):
        whole = list(dataset.batches(rank, of, 4, epochs=3))
        for epoch in range(3):
            beginning = json.loads(json.dumps(dataset.beginning(rank, of, epoch)))
            read = list(dataset.batches(rank, of, 4, epochs=epoch + 1, cursor=beginning))
            expected = [batch for batch in whole if batch.cursor["epoch"] == epoch]
            assert [arrays_of(b) for b in read] == [arrays_of(b) for b in expected]


def test_batches_are_full_but_for_the_last_of_an_epoch(dataset):
    assert [len(b) for b in dataset.batches(0, 1, 10, epochs=2)] == [10, 10, 3] * 2


def test_announced_numbers_of_batches_are_right(dataset):
    announced = dataset.batches_per_rank(3, 4, epochs=2)
    if announced is not None:
        assert announced == [len(list(dataset.batches(r, 3, 4, epochs=2))) for r in range(3)]


def test_the_cursor_of_another_rank_or_another_number_of_ranks_is_refused(dataset):
    first = next(dataset.batches(0, 2, 4))
    with pytest.raises(BadInput, match="rank=0, but here rank=1"):
        dataset.batches(1, 2, 4, cursor=first.cursor)
    with pytest.raises(BadInput, match="of=2, but here of=3"):
        dataset.batches(0, 3, 4, cursor=first.cursor)


@pytest.mark.parametrize("change", [{"epoch": "x"}, {"epoch": -1}, {"row": None, "at": None}])
def test_a_malformed_cursor_is_refused(dataset, change):
    first = next(dataset.batches(0, 1, 4))
    with pytest.raises(BadInput, match="malformed cursor"):
        dataset.batches(0, 1, 4, cursor={**first.cursor, **change})


@pytest.mark.parametrize(("rank", "of"), [(-1, 2), (2, 2), (0, 0)])
def test_ranks_that_do_not_exist_are_refused(dataset, rank, of):
    with pytest.raises(BadInput, match="does not exist"):
        dataset.batches(rank, of, 4)


@pytest.mark.parametrize(("batch_size", "epochs"), [(0, 1), (1 << 30, 1), (4, 0)])
def test_impossible_batch_sizes_and_epochs_are_refused(dataset, batch_size, epochs):
    with pytest.raises(BadInput):
        dataset.batches(0, 1, batch_size, epochs)


def test_a_changed_file_refuses_old_cursors(tmp_path):
    cursor = next(plain_csv(tmp_path).batches(0, 1, 4)).cursor
    with (tmp_path / "a.csv").open("a") as file:
        file.write("\n99,1,c")
    with pytest.raises(BadInput, match="file_bytes"):
        open_dataset(tmp_path / "a.csv").batches(0, 1, 4, cursor=cursor)

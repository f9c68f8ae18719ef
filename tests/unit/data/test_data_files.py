"""Opening files: what is compressed, damaged, missing, endless or of no known format."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest

from resilient_ps.data import open_dataset
from resilient_ps.data.shards import ByteRange, LineStride
from resilient_ps.data.textfile import MAX_LINE_BYTES
from resilient_ps.errors import BadInput, NotFound

TEXT = b"".join(b"%d 1:%d\n" % (i % 2, i) for i in range(5000))


def count(dataset):
    return sum(len(batch) for batch in dataset.batches(0, 1, 512))


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_compression_is_told_from_the_content_not_from_the_name(tmp_path):
    path = tmp_path / "data.svm"
    for content in (TEXT, gzip.compress(TEXT)):
        path.write_bytes(content)
        assert count(open_dataset(path)) == 5000
    zipped(path, {"anything": TEXT})
    assert count(open_dataset(path)) == 5000


def test_gzip_members_one_after_another_are_one_file(tmp_path):
    path = tmp_path / "data.svm.gz"
    path.write_bytes(gzip.compress(TEXT) + gzip.compress(TEXT))
    assert count(open_dataset(path)) == 10_000


def test_plain_files_are_split_by_bytes_and_compressed_ones_by_lines(tmp_path):
    plain, packed = tmp_path / "a.svm", tmp_path / "b.svm"
    plain.write_bytes(TEXT)
    packed.write_bytes(gzip.compress(TEXT))
    half = len(TEXT) // 2
    assert open_dataset(plain).shards(1, 2) == ByteRange(half, len(TEXT))
    assert open_dataset(packed).shards(1, 2) == LineStride(1, 2)


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_gzip_file_is_an_error(tmp_path, kept):
    packed = gzip.compress(TEXT)
    path = tmp_path / "data.svm.gz"
    path.write_bytes(packed[: int(len(packed) * kept)])
    with pytest.raises(BadInput, match="truncated or damaged"):
        count(open_dataset(path))


def test_a_damaged_gzip_file_is_an_error(tmp_path):
    packed = bytearray(gzip.compress(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "data.svm.gz"
    path.write_bytes(packed)
    with pytest.raises(BadInput):
        count(open_dataset(path))


def test_a_truncated_zip_file_is_an_error(tmp_path):
    path = zipped(tmp_path / "data.svm.zip", {"data.svm": TEXT})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match="truncated or damaged"):
        count(open_dataset(path))


def test_a_damaged_zip_file_is_an_error(tmp_path):
    path = zipped(tmp_path / "data.svm.zip", {"data.svm": TEXT})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BadInput):
        count(open_dataset(path))


@pytest.mark.parametrize("members", [{}, {"a.svm": TEXT, "b.svm": TEXT}])
def test_a_zip_archive_of_none_or_several_files_is_refused(tmp_path, members):
    path = zipped(tmp_path / "data.svm.zip", members)
    with pytest.raises(BadInput, match="exactly one file"):
        count(open_dataset(path))


def test_folders_in_a_zip_archive_do_not_count(tmp_path):
    path = zipped(tmp_path / "data.zip", {"folder/": b"", "folder/data.svm": TEXT})
    assert count(open_dataset(path, format="libsvm")) == 5000


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_line_without_end_is_refused_without_holding_it(tmp_path, compress):
    path = tmp_path / "data.svm"
    path.write_bytes(compress(b"1 1:1\n" + b"7" * (MAX_LINE_BYTES + 5) + b"\n0 1:1\n"))
    with pytest.raises(BadInput, match=f"line 2: longer than {MAX_LINE_BYTES} bytes"):
        count(open_dataset(path))
    dataset = open_dataset(path, on_bad="skip")
    assert count(dataset) == 2
    assert dataset.skipped == 1


def test_ranks_agree_about_a_line_that_spans_several_shards(tmp_path):
    path = tmp_path / "data.svm"
    path.write_bytes(b"1 1:1\n0 " + b"2:1 " * 3000 + b"\n1 3:1\n")
    dataset = open_dataset(path)
    rows = [[len(b) for b in dataset.batches(rank, 7, 10)] for rank in range(7)]
    assert rows == [[2], [], [], [], [], [], [1]]


def test_a_missing_file_a_directory_and_an_empty_file_are_told_apart(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        open_dataset(tmp_path / "none.svm")
    with pytest.raises(BadInput, match="is a directory"):
        open_dataset(tmp_path)
    (tmp_path / "empty.svm").write_bytes(b"")
    with pytest.raises(BadInput, match="is empty"):
        open_dataset(tmp_path / "empty.svm")


def test_an_unknown_format_an_untold_format_and_an_unknown_option_are_refused(tmp_path):
    path = tmp_path / "data.xyz"
    path.write_bytes(TEXT)
    with pytest.raises(BadInput, match=r"unknown format 'arff': use one of auto, libsvm"):
        open_dataset(path, format="arff")
    with pytest.raises(BadInput, match="cannot be told from its name: say format="):
        open_dataset(path)
    with pytest.raises(BadInput, match=r"libsvm has no such option .*delimiter"):
        open_dataset(path, format="libsvm", delimiter=";")


@pytest.mark.parametrize("format", ["libsvm", "csv", "tsv", "criteo", "npz", "parquet"])
@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_refused_in_every_format(tmp_path, format, seed):
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(seed).bytes(5000))
    with pytest.raises(BadInput):
        count(open_dataset(path, format=format))


def test_a_file_of_comments_has_no_batches(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("# nothing\n\n")
    assert list(open_dataset(path).batches(0, 1, 4, epochs=3)) == []

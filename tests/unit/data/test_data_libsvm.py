"""The libsvm reader: its grammar, and what it says about bad lines."""

from __future__ import annotations

import math

import pytest

from resilient_ps.data import open_libsvm
from resilient_ps.errors import BadInput


@pytest.fixture
def rows_of(tmp_path):
    """The rows of a text, as (label, {key: value})."""

    def read(text, **options):
        path = tmp_path / "data.svm"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        found = []
        for batch in open_libsvm(path, **options).batches(0, 1, 2):
            for i in range(len(batch)):
                span = slice(batch.row_offsets[i], batch.row_offsets[i + 1])
                features = zip(batch.keys[span].tolist(), batch.values[span].tolist(), strict=True)
                found.append((float(batch.labels[i]), dict(features)))
        return found

    return read


def test_rows_have_labels_keys_and_values(rows_of):
    assert rows_of("1 3:0.5 10:-2e1\n-1 4:7\n") == [(1, {3: 0.5, 10: -20}), (-1, {4: 7})]


@pytest.mark.parametrize(
    "text",
    [
        "+1   3:1\t 4:2  ",
        "1 3:1 4:2 # 5:9",
        "# first\n\n   \n1 3:1 4:2\n#last",
        "1 qid:7 3:1 4:2\r\n",
        "1 4:2 3:1",
        b"\xef\xbb\xbf1 3:1 4:2",
        "1 3:0.25 4:2 3:0.75",
    ],
    ids=["spaces", "comment", "blank", "qid", "unsorted", "byte-order-mark", "duplicates"],
)
def test_spellings_of_the_same_row(rows_of, text):
    assert rows_of(text) == [(1, {3: 1, 4: 2})]


def test_a_label_alone_is_a_row(rows_of):
    assert rows_of("1\n0\n") == [(1, {}), (0, {})]


def test_comments_may_hold_any_bytes(rows_of):
    assert rows_of("1 3:1 # größe \u2603".encode("latin-1", "replace")) == [(1, {3: 1})]


@pytest.mark.parametrize(("first_index", "keys"), [("auto", {1, 5}), (0, {1, 5}), (1, {0, 4})])
def test_the_first_index_decides_whether_keys_are_shifted(rows_of, first_index, keys):
    assert set(rows_of("1 1:1 5:1", first_index=first_index)[0][1]) == keys


def test_index_0_is_a_key_unless_the_file_is_said_to_begin_at_1(rows_of):
    assert rows_of("1 0:1") == [(1, {0: 1})]
    with pytest.raises(BadInput, match=r"line 1: index 0 .*use first_index=0"):
        rows_of("1 0:1", first_index=1)


def test_missing_labels_are_nan_when_asked(rows_of):
    (label, features), other = rows_of("3:1\n1 4:1", missing_label="nan")
    assert math.isnan(label)
    assert features == {3: 1}
    assert other == (1, {4: 1})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("3:1", "no label before '3:1'"),
        ("x 3:1", "label 'x' is not a number"),
        ("nan 3:1", "label 'nan' is not finite"),
        ("1,2 3:1", "label '1,2' is not a number"),
        ("1 3", "'3' is not index:value"),
        ("1 3:", "value '' is not a number"),
        ("1 :3", "index '' is not a whole number"),
        ("1 -3:1", "index '-3' is not a whole number"),
        ("1 3.5:1", "index '3.5' is not a whole number"),
        ("1 3:inf", "value 'inf' is not finite"),
        ("1 3:nan", "value 'nan' is not finite"),
        ("1 3:1e39", "does not fit float32"),
        ("1 3:3e38 3:3e38", "do not fit float32 in sum"),
        ("1 3:1_0", "value '1_0' is not a number"),
        ("1 3:1:2", "value '1:2' is not a number"),
        ("1 99999999999999999999:1", "is above"),
        ("1 9223372036854775808:1", "is above"),
        ("1 \u0663:1", "is not a whole number"),
    ],
)
def test_a_bad_line_is_an_error_with_file_line_and_reason(rows_of, line, reason):
    with pytest.raises(BadInput) as caught:
        rows_of(f"1 1:1\n# fine\n{line}\n0 2:1\n")
    assert "data.svm, line 3: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_long_bad_field_is_cut_in_the_message(rows_of):
    with pytest.raises(BadInput) as caught:
        rows_of("1 " + "x" * 100_000)
    assert len(str(caught.value)) < 300


def test_skipped_lines_are_counted_and_the_first_reasons_kept(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("".join(f"{i} 1:1\nbad{i}\n" for i in range(50)))
    dataset = open_libsvm(path, on_bad="skip")
    assert sum(len(b) for b in dataset.batches(0, 1, 8)) == 50
    assert dataset.skipped == 50
    assert len(dataset.reasons) == 20
    assert dataset.reasons[1].endswith("data.svm, line 4: label 'bad1' is not a number")


def test_the_line_number_is_right_in_every_rank(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("".join(f"{i} 1:1\n" for i in range(90)) + "wrong\n" + "1 1:1\n" * 5)
    with pytest.raises(BadInput, match="line 91: label 'wrong'"):
        list(open_libsvm(path).batches(3, 4, 10))
    assert len(list(open_libsvm(path).batches(0, 4, 10))) > 0


@pytest.mark.parametrize(
    "options", [{"first_index": 2}, {"missing_label": "zero"}, {"on_bad": "ignore"}]
)
def test_unknown_choices_are_refused(tmp_path, options):
    path = tmp_path / "data.svm"
    path.write_text("1 1:1\n")
    with pytest.raises(BadInput, match=next(iter(options))):
        open_libsvm(path, **options)

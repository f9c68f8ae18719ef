"""The CSV, TSV and Criteo readers: columns, headers, hashing, quotes, bad lines."""

from __future__ import annotations

import math

import pytest
import xxhash

from resilient_ps.data import open_criteo, open_csv, open_dataset
from resilient_ps.data.columns import Columns, bucket_of
from resilient_ps.errors import BadInput


def key(text):
    return xxhash.xxh3_64_intdigest(text.encode())


@pytest.fixture
def write(tmp_path):
    def written(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def rows(dataset):
    """All rows as (label, {key: value})."""
    found = []
    for batch in dataset.batches(0, 1, 3):
        for i in range(len(batch)):
            span = slice(batch.row_offsets[i], batch.row_offsets[i + 1])
            features = zip(batch.keys[span].tolist(), batch.values[span].tolist(), strict=True)
            found.append((float(batch.labels[i]), dict(features)))
    return found


def test_numbers_are_values_and_categories_are_hashed(write):
    path = write("y,age,city\n1,33.5,Köln\n0,,\n")
    found = rows(open_csv(path, label="y", numeric=["age"], categorical=["city"]))
    assert found == [
        (1, {key("age"): 33.5, key("city=Köln"): 1}),
        (0, {key("city="): 1}),
    ]


def test_bucketised_numbers_are_categories(write):
    path = write("y,n\n1,100\n0,\n1,-1\n")
    found = rows(open_csv(path, label="y", numeric=["n"], numeric_as="bucket"))
    assert [features for _, features in found] == [
        {key("n=p21"): 1},
        {key("n="): 1},
        {key("n=-1"): 1},
    ]


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, "0"), (2, "2"), (-2, "-2"), (3, "p1"), (-3, "n1"), (1e9, "p429"), (0.7, "0")],
)
def test_buckets_of_numbers(value, bucket):
    assert bucket_of(value) == bucket


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("y,a\n1,x\n", {}),
        ("1,x\n", {"header": "no"}),
        ("1,x\n", {"header": "auto"}),
        ("y,a\n1,x", {"header": "yes"}),
        ("y,a\r\n1,x\r\n", {}),
        ('y,a\n1,"x"\n', {}),
        ("y;a\n1;x\n", {"delimiter": ";"}),
        ("y\ta\n1\tx\n", {"delimiter": "\t"}),
        (b"\xef\xbb\xbfy,a\n1,x\n", {"label": "y"}),
        ("y,a\n\n1,x\n\n", {}),
    ],
)
def test_headers_delimiters_quotes_and_line_ends(write, text, options):
    path = write(text)
    ((label, features),) = rows(open_csv(path, **{"categorical": [1], **options}))
    named = "y" in (text if isinstance(text, str) else text.decode())
    assert (label, features) == (1, {key("a=x" if named else "1=x"): 1})


def test_quoted_fields_may_hold_delimiters_and_quotes(write):
    path = write('y,a\n1,"x, ""y"""\n')
    assert rows(open_csv(path, categorical=["a"])) == [(1, {key('a=x, "y"'): 1})]


def test_a_line_break_inside_quotes_is_a_bad_line(write):
    path = write('y,a\n1,"x\ny"\n')
    with pytest.raises(BadInput, match=r"line 2: wrong quotes .* line break"):
        rows(open_csv(path, categorical=["a"]))


def test_without_a_selection_the_first_row_decides_what_is_numeric(write):
    path = write("a,y,b,c\n1.5,1,x,2\n2.5,0,7,3\n")
    assert rows(open_csv(path, label="y"))[1] == (0, {key("a"): 2.5, key("c"): 3, key("b=7"): 1})


def test_dense_rows_have_the_numeric_columns_in_the_order_given(write):
    path = write("y,a,b\n1,2,3\n0,,5\n")
    batch = next(open_csv(path, label="y", numeric=["b", "a"], dense=True).batches(0, 1, 9))
    assert batch.features.tolist() == [[3, 2], [5, 0]]


def test_data_without_labels_have_nan(write):
    path = write("a\n2\n")
    ((label, features),) = rows(open_csv(path, label=None, numeric=["a"]))
    assert math.isnan(label)
    assert features == {key("a"): 2}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "1 fields where 3 are expected"),
        ("1,2,3,4", "4 fields where 3 are expected"),
        (",2,x", "label '' is not a number"),
        ("yes,2,x", "label 'yes' is not a number"),
        ("1,two,x", "column 'a': 'two' is not a number"),
        ("1,inf,x", "column 'a': 'inf' is not finite"),
        ('1,2,"x', "wrong quotes"),
        ('1,2,"x"y', "wrong quotes"),
    ],
)
def test_a_bad_line_is_an_error_with_file_line_and_reason(write, line, reason):
    path = write(f"y,a,b\n1,2,x\n{line}\n")
    with pytest.raises(BadInput) as caught:
        rows(open_csv(path, label="y", numeric=["a"], categorical=["b"]))
    assert "data.csv, line 3: " in str(caught.value)
    assert reason in str(caught.value)


def test_bad_lines_are_skipped_and_counted_when_asked(write):
    dataset = open_csv(write("y,a\n1,2\nx,2\n0,z\n1,4\n"), numeric=["a"], on_bad="skip")
    assert [label for label, _ in rows(dataset)] == [1, 1]
    assert dataset.skipped == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"label": "z"}, r"column 'z' is not there; the columns are y, a, a"),
        ({"categorical": ["a"]}, "column 'a' is twice or more"),
        ({"categorical": [7]}, "column number 7 of 3"),
        ({"categorical": [-1]}, "column number -1 of 3"),
        ({"numeric": [], "categorical": []}, "no feature columns"),
        ({"numeric": [1], "categorical": [1]}, "columns used twice: 1"),
        ({"numeric": [1], "numeric_as": "log"}, "numeric_as"),
        ({"categorical": [1], "dense": True}, "dense=True takes numeric"),
        ({"delimiter": ",,"}, "delimiter"),
        ({"delimiter": '"'}, "delimiter"),
        ({"header": "maybe"}, "header"),
    ],
)
def test_wrong_options_are_refused(write, options, reason):
    with pytest.raises(BadInput, match=reason):
        open_csv(write("y,a,a\n1,2,3\n"), **options)


def test_a_header_that_is_not_utf_8_is_refused(write):
    with pytest.raises(BadInput, match="not UTF-8"):
        open_csv(write(b"y,\xff\xfe\n1,2\n"))


def test_columns_are_checked_when_made():
    with pytest.raises(BadInput, match="no feature columns"):
        Columns(label=0)


CRITEO_ROW = ["1", "5", "", "-1"] + ["3"] * 10 + ["05db9164", ""] + ["ab"] * 24


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize("header", [True, False])
def test_criteo_rows_with_and_without_header_by_tabs_or_commas(write, delimiter, header):
    names = ["Label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]
    lines = [names] * header + [CRITEO_ROW] * 2
    path = write("\n".join(delimiter.join(line) for line in lines))
    found = rows(open_criteo(path))
    assert len(found) == 2
    label, features = found[0]
    assert label == 1
    assert len(features) == 39
    expected = ["I1=p2", "I2=", "I3=-1", "C1=05db9164", "C2=", "C26=ab"]
    assert {key(text) for text in expected} <= set(features)
    assert set(features.values()) == {1.0}


def test_criteo_keys_do_not_depend_on_how_integers_are_written(write):
    as_floats = [CRITEO_ROW[0], "5.0", *CRITEO_ROW[2:]]
    text = "\n".join(",".join(row) for row in (CRITEO_ROW, as_floats))
    first, second = rows(open_dataset(write(text), format="criteo"))
    assert first == second


def test_a_criteo_row_with_a_missing_column_is_a_bad_line(write):
    with pytest.raises(BadInput, match="line 1: 39 fields where 40 are expected"):
        rows(open_criteo(write("\t".join(CRITEO_ROW[:-1]) + "\n")))


def test_tsv_is_csv_with_tabs(write):
    path = write("y\ta\n1\tx,z\n", "data.tsv")
    assert rows(open_dataset(path)) == [(1, {key("a=x,z"): 1})]

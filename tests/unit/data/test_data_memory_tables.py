"""Tables that are read as a whole: columns, categories, and events in windows of time."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.data.asciitable import floats, integers, read_columns
from resilient_ps.data.categories import bucketed, category_of, crossed, numbered
from resilient_ps.data.events import Events, Moments
from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text


def test_columns_of_a_table():
    table = read_columns("t", b"a,bb,c\n1,x,\n23,yy,NA\n", ["c", "a", "bb"])
    assert table["bb"].tolist() == [b"x", b"yy"]
    assert integers(table["a"]).tolist() == [1, 23]
    assert table["c"].tolist() == [b"", b"NA"]


def test_windows_line_ends_and_a_missing_last_one():
    assert read_columns("t", b"a,b\r\n1,2\r\n3,4", ["b"])["b"].tolist() == [b"2", b"4"]


def test_a_missing_number_is_nan():
    column = read_columns("t", b"a\n1.5\nNA\n", ["a"])["a"]
    assert np.array_equal(floats(column), [1.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,b\n1\n", "not every row"),
        (b"a,b\n1,2,3\n4\n", "not every row"),
        (b'a,b\n"1",2\n', "quoted"),
        (b"a,c\n1,2\n", "no column 'b', only a, c"),
    ],
)
def test_irregular_tables_are_refused(data, reason):
    with pytest.raises(BadInput, match=reason):
        read_columns("t", data, ["a", "b"])


def test_keys_hash_the_column_and_the_category():
    column = category_of("c", np.array([b"UA", b"B6", b"UA"]))
    ua, b6 = hash_text(b"c=UA"), hash_text(b"c=B6")
    assert column.keys().tolist() == [ua, b6, ua]


def test_buckets_have_a_category_for_missing_numbers():
    column = bucketed("d", np.array([-5.0, 0.0, 0.5, 99.0, np.nan]), (0, 10))
    assert [column.texts[code] for code in column.codes] == ["0", "0", "1", "2", "missing"]


def test_pairs_are_told_apart():
    first, second = numbered("a", np.array([0, 0, 1, 1])), numbered("b", np.array([0, 1, 0, 1]))
    pair = crossed(first, second)
    assert pair.name == "a*b"
    assert len(set(pair.keys().tolist())) == 4
    assert pair.keys()[1] == hash_text(b"a*b=0,1")


def test_unbounded_categories_are_refused():
    with pytest.raises(BadInput, match="numbers must be in"):
        numbered("a", np.array([-1]))
    wide = numbered("a", np.array([5000]))
    with pytest.raises(BadInput, match="more than"):
        crossed(wide, wide)


def plain(groups, minutes, values, group, minute, window):
    return [
        v
        for _, v in sorted(
            (m, v)
            for g, m, v in zip(groups, minutes, values, strict=True)
            if g == group and minute - window <= m < minute
        )
    ]


# With groups as far apart as the latter, the place of an event and its row need two numbers
@pytest.mark.parametrize("apart", [1, 1 << 36])
def test_windows_equal_a_plain_loop(apart):
    rng = np.random.default_rng(0)
    groups, minutes = rng.integers(0, 4, 300) * apart, rng.permutation(1000)[:300]
    values = rng.normal(size=300)
    asked, at = rng.integers(0, 5, 200) * apart, rng.integers(0, 1100, 200)
    before = Events(groups, minutes, values).before(Moments(asked, at))
    for window in (1, 30, 2000):
        means, counts, lasts = before.mean(window), before.count(window), before.last(window)
        for i in range(200):
            expected = plain(groups, minutes, values, asked[i], at[i], window)
            assert counts[i] == len(expected)
            if expected:
                assert means[i] == pytest.approx(np.mean(expected))
                assert lasts[i] == expected[-1]
            else:
                assert np.isnan(means[i])
                assert np.isnan(lasts[i])


def test_an_event_at_the_moment_itself_is_not_known_yet():
    events = Events(np.array([0]), np.array([60]), np.array([5.0]))
    moments = Moments(np.zeros(3, np.int64), np.array([60, 61, 91]))
    assert events.before(moments).count(30).tolist() == [0, 1, 0]


@pytest.mark.parametrize("group", [0, 1 << 38])
def test_of_events_in_the_same_minute_the_one_given_last_is_the_last(group):
    groups = np.full(40, group)
    events = Events(groups, np.repeat([8, 7], 20), np.arange(40.0))
    moments = Moments(groups[:2], np.array([9, 8]))
    assert events.before(moments).last(5).tolist() == [19.0, 39.0]

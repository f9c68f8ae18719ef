"""Namespaces: names, and that none of them ever reaches into another."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from resilient_ps.coordinator.keys import MAX_LEVELS, ClusterKeys, check_namespace
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.namespaces import covers, enclosing, within

# few letters, so that names are often the beginning of others
LEVEL = st.builds(str.__add__, st.sampled_from("ab1"), st.text("ab.-_:1", max_size=2))
PATHS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
TABLES = st.tuples(PATHS, LEVEL).map("/".join)
KEYS = ClusterKeys("prod")


@given(PATHS, TABLES)
def test_what_lies_in_a_namespace_shares_all_its_levels_and_goes_on(path: str, table: str) -> None:
    levels, of_table = path.split("/"), table.split("/")
    inside = len(of_table) > len(levels) and of_table[: len(levels)] == levels
    assert covers(path, table) == inside
    assert (path in enclosing(table)) == inside
    assert KEYS.table(table).startswith(KEYS.tables_in(path)) == inside
    assert within("", [(table, 1)]) == [1]
    if inside:
        assert within(path, [(table, 1), (f"other/{table}", 2)])[0] == 1
    else:
        with pytest.raises(NotFound, match="there is no table in namespace"):
            within(path, [(table, 1)])


@given(PATHS, PATHS, TABLES)
def test_two_namespaces_of_which_none_is_in_the_other_share_nothing(
    one: str, other: str, table: str
) -> None:
    assume(one != other and not covers(one, other) and not covers(other, one))
    assert not (covers(one, table) and covers(other, table))
    assert not KEYS.tables_in(one).startswith(KEYS.tables_in(other))
    assert KEYS.namespace(one) != KEYS.namespace(other)


@given(PATHS, LEVEL)
def test_a_longer_name_is_no_inner_namespace(path: str, more: str) -> None:
    assert not covers(path, f"{path}{more}")
    assert not covers(path, f"{path}{more}/table")
    assert not covers(path, path)
    assert covers(path, f"{path}/{more}")


@given(PATHS)
def test_enclosing_namespaces_come_outermost_first(path: str) -> None:
    outer = enclosing(path)
    assert len(outer) == path.count("/")
    assert all(covers(each, path) for each in outer)
    assert [each.count("/") for each in outer] == list(range(len(outer)))


@pytest.mark.parametrize(
    "path",
    ["", "/", "a/", "/a", "a//b", "a b", "a\n", ".a", "a/.b", "a/*", "../a", "ä", "x" * 201,
     "/".join("a" * (MAX_LEVELS + 1))],
)  # fmt: skip
def test_what_is_no_name_is_refused(path: str) -> None:
    with pytest.raises(BadInput):
        check_namespace(path)
    with pytest.raises(BadInput):
        KEYS.tables_in(path)


def test_deep_and_long_names_are_possible() -> None:
    deep = "/".join("a" * MAX_LEVELS)
    assert check_namespace(deep) == deep
    assert check_namespace("x" * 200) == "x" * 200


def test_nothing_but_text_is_a_name() -> None:
    with pytest.raises(BadInput, match="is text, not int"):
        check_namespace(7)  # type: ignore[arg-type]

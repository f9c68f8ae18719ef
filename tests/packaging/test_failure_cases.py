"""The tests that `failure_cases.md` names are there, and every case has some."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = 26
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", (TESTS / "failure_cases.md").read_text(), re.MULTILINE)


@functools.cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing(row: str) -> list[str]:
    """The tests that a row names, and that do not exist."""
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row)
    assert named
    assert row.count("`") == 2 * len(named), "something else is in quotes"
    return [name for path, name in named if name not in names_in(path)]


def test_the_cases_are_numbered_without_a_gap() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, CASES + 1))


@pytest.mark.parametrize(("number", "row"), ROWS, ids=[number for number, _ in ROWS])
def test_every_case_is_shown_by_tests_that_exist(number: str, row: str) -> None:
    assert missing(row) == []


def test_a_name_of_no_test_is_found_out() -> None:
    row = "| | `packaging/test_failure_cases.py::test_nobody_wrote_this` |"
    assert missing(row) == ["test_nobody_wrote_this"]

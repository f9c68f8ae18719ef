"""Specifications of tables: JSON there and back, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilient_ps.errors import BadInput
from resilient_ps.tables.initialisers import Constant, Normal, Uniform
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Sum
from resilient_ps.tables.spec import (
    MAX_DENSE_ELEMENTS,
    MAX_NAME_CHARS,
    DenseSpec,
    SparseSpec,
    TableSpec,
    check_name,
    spec_from_json,
)

SPECS: list[TableSpec] = [
    SparseSpec("a", 1),
    SparseSpec("features/user_id.v2", 64, "float32", Adagrad(lr=0.1), Normal(stddev=0.01)),
    SparseSpec("a/b/c-d", 4096, "float64", FTRL(alpha=0.1, l1=1.0)),
    SparseSpec("counts", 3, "int64", Sum(), Constant(-7)),
    DenseSpec("bias", ()),
    DenseSpec("w/1", (784, 256), "float32", Adam(), Uniform(-0.1, 0.1)),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_json_gives_the_specification_back(spec: TableSpec) -> None:
    text = spec.to_json()
    assert spec_from_json(text) == spec
    assert type(spec).from_json(text.encode()) == spec
    assert spec_from_json(text).to_json() == text


def test_equal_specifications_have_equal_json() -> None:
    """Also where they were written differently: integers as rates, lists as shapes."""
    one = DenseSpec("w", (2, 3), "float32", SGD(lr=1))
    other = DenseSpec("w", [2, 3], "float32", SGD(lr=1.0))  # type: ignore[arg-type]
    assert one.to_json() == other.to_json()
    assert one == other


def test_the_json_is_stable_for_ever() -> None:
    """Running clusters hold it: a change here needs a reader for the old text."""
    assert SparseSpec("n/t", 2, "float32", SGD(lr=0.5)).to_json() == (
        '{"dim":2,"dtype":"float32","initialiser":{"name":"zeros"},"layout":"sparse",'
        '"name":"n/t","optimiser":{"lr":0.5,"name":"sgd"}}'
    )


def test_reading_the_other_layout_is_refused() -> None:
    with pytest.raises(BadInput, match="expected a DenseSpec, got a sparse table a"):
        DenseSpec.from_json(SparseSpec("a", 1).to_json())


@pytest.mark.parametrize("name", ["a", "A/b_c/d-e.f", "0", "x" * MAX_NAME_CHARS, ".hidden"])
def test_good_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", "a b", "ä", "a\n", "a:b", "x" * (MAX_NAME_CHARS + 1), None, 3],
)
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(BadInput, match="table name"):
        check_name(name)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: SparseSpec("t", 0), "dim must be 1 to 4096"),
        (lambda: SparseSpec("t", 4097), "dim must be 1 to 4096"),
        (lambda: SparseSpec("t", 1.5), "dim must be 1 to 4096"),  # type: ignore[arg-type]
        (lambda: SparseSpec("t", True), "dim must be 1 to 4096"),
        (lambda: SparseSpec("t", 1, "float16"), "dtype must be one of"),  # type: ignore[arg-type]
        (lambda: SparseSpec("t", 1, "int64", SGD(lr=1)), "an int64 table can only Sum"),
        (lambda: SparseSpec("t", 1, "int64", Sum(), Normal(1)), "Zeros or a whole Constant"),
        (lambda: SparseSpec("t", 1, "int64", Sum(), Constant(0.5)), "Zeros or a whole Constant"),
        (lambda: SparseSpec("t", 1, "int64", Sum(), Constant(1e20)), "Zeros or a whole Constant"),
        (lambda: SparseSpec("t", 1, "float32", "adam"), "give an optimiser"),  # type: ignore[arg-type]
        (lambda: DenseSpec("t", (3, 0)), "lengths in a shape"),
        (lambda: DenseSpec("t", (-1,)), "lengths in a shape"),
        (lambda: DenseSpec("t", 3), "shape must be a tuple"),  # type: ignore[arg-type]
        (lambda: DenseSpec("t", (1,) * 9), "shape must be a tuple"),
        (lambda: DenseSpec("t", (MAX_DENSE_ELEMENTS, 2)), "split it into several tables"),
    ],
)
def test_bad_specifications_are_refused(make: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        make()


GOOD = json.loads(SparseSpec("t", 2).to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "[" * 4000,
        " " * 5000,
        json.dumps({**GOOD, "layout": "round"}),
        json.dumps({**GOOD, "extra": 1}),
        json.dumps({key: value for key, value in GOOD.items() if key != "dim"}),
        json.dumps({**GOOD, "dim": "2"}),
        json.dumps({**GOOD, "optimiser": {"name": "sgd", "lr": float("nan")}}),
        json.dumps({**GOOD, "initialiser": {"name": "ones"}}),
        b"\xff\xfe",
    ],
)
def test_bad_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadInput):
        spec_from_json(text)


def test_messages_describe_the_whole_table() -> None:
    text = SparseSpec("n/t", 2, "float32", SGD(lr=0.5)).describe()
    assert text == "sparse table n/t (dim 2, float32, SGD(lr=0.5), Zeros())"

"""The result inside a report is what was put there, or an error that names the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_run import sample_run

from resilient_ps.chaos.report.embedded import BEGIN, END, embedded, script_text
from resilient_ps.chaos.report.page import page
from resilient_ps.errors import BadInput


def test_a_report_gives_its_result_back(tmp_path: Path) -> None:
    run = sample_run()
    path = tmp_path / "report.html"
    path.write_text(page(run))
    assert embedded(path) == json.loads(json.dumps(run.as_json()))


def test_what_is_no_number_becomes_null(tmp_path: Path) -> None:
    run = sample_run()
    silent = replace(run.samples[0], latency_median_s=math.nan, latency_p99_s=math.inf)
    path = tmp_path / "report.html"
    path.write_text(page(replace(run, samples=(silent,))))
    (sample,) = embedded(path)["samples"]
    assert (sample["latency_median_s"], sample["latency_p99_s"]) == (None, None)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_no_text_ends_the_element_and_every_text_comes_back(value: object) -> None:
    text = script_text(value)
    assert "<" not in text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "it holds no result"),
        ("<html><body>Hello</body></html>", "it holds no result"),
        (BEGIN + "{}" + END + BEGIN + "{}" + END, "it holds no result"),
        (BEGIN + '{"format": "resil', "breaks off"),
        (BEGIN + "{'format'}" + END, "is no JSON"),
        (BEGIN + '{"seed": NaN}' + END, "NaN is no number"),
        (BEGIN + '{"seed": 1, "seed": 2}' + END, "a field is given twice"),
        (BEGIN + "[" * 100_000 + END, "is no JSON"),
        (BEGIN + "[1]" + END, "not the result of"),
        (BEGIN + '{"format": "something else"}' + END, "not the result of"),
    ],
)
def test_what_is_no_report_is_refused(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(content)
    with pytest.raises(BadInput, match=complaint) as refused:
        embedded(path)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing\.html: No such file"):
        embedded(tmp_path / "missing.html")
    with pytest.raises(BadInput, match="Is a directory"):
        embedded(tmp_path)
    (tmp_path / "bytes.html").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not a text"):
        embedded(tmp_path / "bytes.html")

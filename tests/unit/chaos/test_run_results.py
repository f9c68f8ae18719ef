"""Results of runs as files: what is written can be read, and nothing else can."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from sample_run import sample_run, violated_run

from resilient_ps.chaos.result import result_from
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly

WHERE = "run.json"


def _document() -> dict[str, Any]:
    text = json.dumps(sample_run().as_json(), allow_nan=False)
    document: dict[str, Any] = loads_strictly(text)
    return document


@pytest.mark.parametrize("run", [sample_run(), violated_run()])
def test_a_result_is_read_as_it_was_written(run: Any) -> None:
    read = result_from(loads_strictly(json.dumps(run.as_json(), allow_nan=False)), WHERE)
    assert repr(read) == repr(run)  # nan is not equal to itself


def test_a_second_without_pushes_has_no_latency() -> None:
    document = _document()
    document["samples"][0]["latency_median_s"] = None
    assert math.isnan(result_from(document, WHERE).samples[0].latency_median_s)


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.pop(name)


def _with(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("format"), "run.json: this is no report"),
        (_with(("format",), "another"), "this is no report"),
        (_with(("version",), 2), "a report of version 2; this is version 1"),
        (_without("seed"), "run.json: the field 'seed' is missing"),
        (_with(("more",), 1), "there is no field 'more'"),
        (_with(("seed",), "7"), "run.json.seed: a whole number of 64 bits was expected, not '7'"),
        (_with(("seed",), True), "run.json.seed: a whole number"),
        (_with(("seed",), 1 << 63), "run.json.seed: a whole number"),
        (_with(("seconds",), None), "run.json.seconds: a finite number"),
        (_with(("seconds",), 10**400), "run.json.seconds: a finite number"),
        (_with(("verdict",), "fine"), "one of held, violated, unknown was expected, not 'fine'"),
        (_with(("faults",), {}), "run.json.faults: a list"),
        (_with(("faults", 0, "struck"), "s1"), r"run.json.faults\[0\].struck: a list"),
        (_with(("faults", 0, "planned", "kind"), 3), r"run.json.faults\[0\].planned.kind: a text"),
        (_with(("samples", 0), []), r"run.json.samples\[0\]: an object with fields"),
        (_with(("counts", "pulls"), 1.5), "run.json.counts.pulls: a whole number"),
        (_with(("logs", "s1"), 1), "run.json.logs.s1: a text"),
        (_with(("command",), "x" * 200_000), "run.json.command: a text of at most"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[dict[str, Any]], object], said: str) -> None:
    document = _document()
    change(document)
    with pytest.raises(BadInput, match=said):
        result_from(document, WHERE)


@pytest.mark.parametrize("document", [None, 1, [], "text", {}])
def test_what_is_no_report_is_refused(document: Any) -> None:
    with pytest.raises(BadInput, match="this is no report of `resilient-ps chaos run`"):
        result_from(document, WHERE)

"""Questions for tasks and their answers: the same after a round trip, and read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.task_asks import (
    SELECTED_MAX,
    WAIT_MOST_S,
    WHY_CHARS_MAX,
    FailedTask,
    Failure,
    Granted,
    TaskAsk,
    TaskTold,
)
from resilient_ps.errors import BadInput

NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,10}", fullmatch=True)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
TASKS = st.builds(
    Granted, st.integers(0, 16_383), st.integers(1, 1_000_000), st.integers(1, 2**63 - 1)
)
REPORTS = st.one_of(
    st.just((None, None)),
    st.tuples(TASKS, st.none()),
    st.tuples(st.none(), st.builds(FailedTask, TASKS, TEXTS)),
)
ANSWERS = st.one_of(
    st.builds(TaskTold, grant=TASKS),
    st.builds(TaskTold, over=st.sampled_from(["done", "removed"])),
    st.builds(
        TaskTold,
        over=st.just("failed"),
        failure=st.builds(Failure, PATHS, st.integers(0, 9), st.integers(1, 9), TEXTS),
    ),
    st.builds(TaskTold, nothing=st.just(True), waits_for=TEXTS),
    st.builds(
        TaskTold, error=TEXTS, kind=st.sampled_from(["fenced", "unknown", "refused", "busy"])
    ),
    st.builds(TaskTold, error=TEXTS, elected=st.just(False)),
)
ASKED: dict[str, Any] = {"graph": "g", "holder": "h", "wait_s": 1, "incarnation": 1}


@given(NAMES, NAMES, st.none() | st.lists(PATHS, max_size=4), st.floats(0, WAIT_MOST_S), REPORTS)
def test_a_question_is_the_same_after_a_round_trip(
    graph: str, holder: str, names: list[str] | None, wait_s: float, report: Any
) -> None:
    selected = None if names is None else tuple(names)
    ask = TaskAsk(graph, holder, selected, wait_s, *report, incarnation=3 if any(report) else 0)
    fields = json.loads(json.dumps(ask.to_json()))
    assert TaskAsk.from_json(fields["task"]) == ask


@given(ANSWERS)
def test_an_answer_is_the_same_after_a_round_trip(told: TaskTold) -> None:
    assert TaskTold.from_json(json.loads(json.dumps(told.to_json()))) == told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"graph": "a/b"}, "cannot name a graph"),
        ({"graph": None}, "a graph name is text"),
        ({"holder": ""}, "cannot name a holder"),
        ({"namespaces": "a"}, "namespaces: a list"),
        ({"namespaces": ["a"] * (SELECTED_MAX + 1)}, "namespaces: a list of at most 64"),
        ({"namespaces": ["/"]}, "cannot name a namespace"),
        ({"wait_s": -1}, "wait_s is -1"),
        ({"wait_s": True}, "wait_s is True"),
        ({"done": [1, 2]}, r"done is \[1, 2\], not \[rank, step, token\]"),
        ({"done": [1, 0, 1]}, "done: step is 0"),
        ({"done": [1, 1, 1.0]}, "done: token is 1.0"),
        ({"failed": {"rank": 0, "step": 1}}, "failed: token is None"),
        ({"failed": 1}, "failed is 1, not an object"),
        ({"done": [1, 1, 1], "incarnation": 0}, "incarnation is 0, not a whole number from 1"),
        ({"incarnation": None}, "incarnation is None"),
        (
            {"done": [1, 1, 1], "failed": {"rank": 1, "step": 1, "token": 1}},
            "report one of both",
        ),
    ],
)
def test_what_is_no_question_is_refused(change: dict[str, Any], told: str) -> None:
    TaskAsk.from_json(ASKED)
    with pytest.raises(BadInput, match=told):
        TaskAsk.from_json({**ASKED, **change})


def test_longer_waits_and_texts_are_cut() -> None:
    failed = {"rank": 1, "step": 1, "token": 1, "why": "x" * 5_000}
    ask = TaskAsk.from_json({**ASKED, "wait_s": 1e9, "failed": failed})
    assert ask.wait_s == WAIT_MOST_S
    assert ask.failed is not None
    assert len(ask.failed.why) == WHY_CHARS_MAX


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        {"elected": True},
        {"grant": 3},
        {"grant": {"rank": 1}},
        {"over": "soon"},
        {"error": "x", "kind": "other"},
        {"over": "failed", "failure": {"namespace": "a", "n": -1, "step": 1}},
    ],
)
def test_what_is_no_answer_is_refused(fields: object) -> None:
    with pytest.raises(BadInput):
        TaskTold.from_json(fields)

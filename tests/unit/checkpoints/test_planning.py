"""How an attempt follows from the ones that failed, and the clocks from how fast jobs are."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.checkpoints.clocks import Clocks
from resilient_ps.checkpoints.planning import LEAD_LEAST_S, LEAD_MOST_S, Lead, attempts, plan
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import ClusterConfig, IntentRecord, JobRecord
from resilient_ps.coordinator.task_records import GraphRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.machine import Send
from resilient_ps.messages import Ask

KEYS = ClusterKeys("c")
CONFIG = ClusterConfig("0123456789abcdef", 3, 2, 1, 1, 1, 64, "s1")
JOB = JobRecord(1, "train", "bsp", 2, "running")


def failed(attempt: int, refusals: int, kind: str) -> IntentRecord:
    details = {"attempt": attempt, "refusals": refusals, "clocks": {}}
    result = {"why": "", "kind": kind, "retry": True}
    return IntentRecord(9, "cut", "", 0, 0, "aborted", result, details)


def planned(
    per_second: int, lead_s: float, *waiting: IntentRecord, steps: int = 0, job_id: int = 1
) -> CutPlan:
    """`steps`: of the graph that the job is; 0: it is none. `job_id`: which job's graph that is."""
    view = ClusterView(KEYS)
    items = [KeyValue(KEYS.job("train"), JOB.to_bytes(), 1, 1, 1, 0)]
    if steps:
        graph = Graph("train", steps)
        graph.add("part", width=2)
        record = GraphRecord(job_id, graph.to_json())
        items.append(KeyValue(KEYS.graph("train"), record.to_bytes(), 1, 1, 1, 0))
    view.load(items, 1)
    clocks = Clocks()
    for second in (0, 1):
        for sent in clocks.ask(["s1"], second * 10**9):
            assert isinstance(sent, Send)
            assert isinstance(sent.message, Ask)
            told = {"clocks": {"1": [0, 10 + (per_second + 1) * second]}}
            clocks.hear(sent.message.request, json.dumps(told), second * 10**9)
    return plan(
        view, CONFIG, 17, clocks, lead_s, lambda bits: 7, waiting=waiting, why="", begun_s=0
    )


def test_the_first_attempt_follows_none() -> None:
    assert attempts([]) == (0, 0)
    wish = IntentRecord(9, "cut", "", 0, 0, "open", details={"why": "x"})
    assert attempts([wish]) == (0, 0)


def test_refusals_are_counted_apart_and_forgotten_after_another_failure() -> None:
    assert attempts([failed(2, 2, "refused")]) == (3, 3)
    assert attempts([failed(3, 3, "deadline")]) == (4, 0)
    assert attempts([failed(4, 0, "refused")]) == (5, 1)


def test_a_store_that_is_away_is_no_failure_of_the_cut() -> None:
    assert attempts([failed(2, 0, "store")]) == (2, 0)


def test_the_margin_is_what_the_job_does_meanwhile_and_twice_as_much_after_each_refusal() -> None:
    held = 10 + 101
    assert planned(100, 0.1).clocks == {"train": held + 20}
    assert planned(100, 0.2).clocks == {"train": held + 40}
    assert planned(100, 0.1, failed(0, 0, "refused")).clocks == {"train": held + 40}
    assert planned(100, 0.1, failed(1, 1, "refused")).clocks == {"train": held + 80}
    assert planned(100, 0.1, failed(7, 1, "deadline")).clocks == {"train": held + 20}


def test_a_slow_job_is_cut_where_it_is() -> None:
    assert planned(1, 0.1).clocks == {"train": 12}


def test_no_cut_lies_behind_the_last_step_of_a_graph() -> None:
    held = 10 + 101
    assert planned(100, 0.1, steps=held + 5).clocks == {"train": held + 5}
    assert planned(100, 0.1, steps=held + 500).clocks == {"train": held + 20}


def test_what_is_left_of_an_earlier_graph_of_the_name_does_not_count() -> None:
    assert planned(100, 0.1, steps=5, job_id=7).clocks == {"train": 10 + 101 + 20}


def test_the_id_names_the_incarnation_and_the_number() -> None:
    assert planned(1, 0.1).id == "3-17-00000007"


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_the_lead_is_bounded_and_grows_at_once(seconds: list[float]) -> None:
    lead = Lead()
    for each in seconds:
        lead.measured(each)
        assert LEAD_LEAST_S <= lead.seconds <= LEAD_MOST_S
        assert lead.seconds >= min(each, LEAD_MOST_S)

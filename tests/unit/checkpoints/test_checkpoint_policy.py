"""When checkpoints are due: intervals, clocks, and what has moved."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.checkpoints.clocks import Span
from resilient_ps.checkpoints.planning import newest
from resilient_ps.checkpoints.policy import (
    AUTO_LEAST_S,
    AUTO_MOST_S,
    COSTS_KEPT,
    FIRST_S,
    auto_s,
    clocks_due,
    cost,
    has_moved,
    interval,
)
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    IntentRecord,
    JobRecord,
    Record,
    RestoreRecord,
)
from resilient_ps.coordinator.view import ClusterView

KEYS = ClusterKeys("c")
CHECKPOINT = CheckpointRecord(7, "1-7-0000abcd", 1, "m", 1, "0" * 64, {"train": 90}, 0, 1, 1)


def view_of(*records: tuple[bytes, Record]) -> ClusterView:
    view = ClusterView(KEYS)
    view.load([KeyValue(key, record.to_bytes(), 1, 1, 1, 0) for key, record in records], 1)
    return view


def made(number: int, took_s: float) -> tuple[bytes, Record]:
    result = {"checkpoint": "1-1-00000000", "took_s": took_s}
    return KEYS.intent(number), IntentRecord(number, "cut", "", 0, 0, "done", result)


def job(number: int, name: str) -> tuple[bytes, Record]:
    return KEYS.job(name), JobRecord(number, name, "bsp", 2, "running")


def test_the_automatic_interval_is_the_one_of_young() -> None:
    assert auto_s(20.0, 24.0) == pytest.approx(math.sqrt(2 * 20 * 24 * 3600))
    assert auto_s(20.0, 1.0) == pytest.approx(math.sqrt(2 * 20 * 3600))


@given(st.floats(0, 10**6), st.floats(0.001, 10**6))
def test_the_automatic_interval_is_bounded_and_leaves_time_between(cost_s: float, h: float) -> None:
    chosen = auto_s(cost_s, h)
    assert AUTO_LEAST_S <= chosen <= AUTO_MOST_S
    assert chosen >= min(5 * cost_s, AUTO_MOST_S) * (1 - 1e-12)


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(1, 1000))
def test_dearer_checkpoints_are_rarer_and_more_failures_make_them_more_frequent(
    one_s: float, other_s: float, mtbf_h: float
) -> None:
    assert (auto_s(one_s, mtbf_h) <= auto_s(other_s, mtbf_h)) or one_s > other_s
    assert auto_s(one_s, mtbf_h) <= auto_s(one_s, 2 * mtbf_h)


def test_the_first_checkpoint_is_made_soon_to_see_what_it_costs() -> None:
    chosen = interval(CheckpointSettings(auto=True), view_of())
    assert (chosen.seconds, chosen.chosen, chosen.cost_s) == (FIRST_S, "auto", None)


def test_the_cost_is_the_mean_of_the_last_few_checkpoints() -> None:
    view = view_of(*[made(n, float(n)) for n in range(1, 11)])
    assert cost(view) == sum(range(11 - COSTS_KEPT, 11)) / COSTS_KEPT


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_rests_between_uploads_do_not_make_checkpoints_dearer(share: float) -> None:
    settings = CheckpointSettings(auto=True, upload_share=share)
    chosen = interval(settings, view_of(made(1, 20.0 / share)))
    assert (chosen.seconds, chosen.cost_s) == (pytest.approx(auto_s(20.0, 24.0)), 20.0 / share)


def test_a_stated_interval_is_taken_as_it_is_and_none_means_none() -> None:
    assert interval(CheckpointSettings(every_s=7), view_of(made(1, 100.0))).seconds == 7
    nothing = interval(CheckpointSettings(every_clocks=5), view_of())
    assert (nothing.seconds, nothing.chosen) == (0, "none")


def test_what_was_pushed_but_not_ticked_has_moved_too() -> None:
    view = view_of(job(1, "train"))
    assert not has_moved(view, {1: Span(90, 90)}, CHECKPOINT)
    assert has_moved(view, {1: Span(90, 91)}, CHECKPOINT)
    assert has_moved(view, {1: Span(0, 1)}, None)
    assert not has_moved(view, {1: Span(0, 0)}, None)
    assert not has_moved(view, {2: Span(5, 5)}, None)  # a job that etcd does not know


def test_a_job_of_the_same_name_that_began_anew_has_moved() -> None:
    assert has_moved(view_of(job(2, "train")), {2: Span(3, 4)}, CHECKPOINT)


def test_the_first_job_that_has_gone_far_enough_is_named() -> None:
    view = view_of(job(1, "train"), job(2, "embed"))
    spans = {1: Span(100, 110), 2: Span(3, 19)}
    assert clocks_due(20, view, spans, CHECKPOINT) == "train"
    assert clocks_due(19, view, spans, CHECKPOINT) == "embed"
    assert clocks_due(21, view, spans, CHECKPOINT) == ""
    assert clocks_due(0, view, spans, CHECKPOINT) == ""
    assert clocks_due(20, view, spans, replace(CHECKPOINT, clocks={"train": 91})) == ""


def test_a_job_that_began_anew_is_counted_from_its_beginning() -> None:
    view, spans = view_of(job(2, "train")), {2: Span(18, 20)}
    assert clocks_due(20, view, spans, CHECKPOINT) == "train"
    assert clocks_due(21, view, spans, CHECKPOINT) == ""


def test_the_newest_checkpoint_is_none_of_a_future_that_was_given_up() -> None:
    """Else nothing would be due before the job has come as far again, and be lost with a shard."""
    name = "c/checkpoints/1-5-0000abcd/manifest.json"
    back = RestoreRecord(2, "1-5-0000abcd", name, 1, "0" * 64, {}, "an operator", 0)
    config = ClusterConfig("0" * 32, 2, 4, 1, 1, 1, 64, "s1")
    older = replace(CHECKPOINT, number=5, id="1-5-0000abcd")
    own = replace(CHECKPOINT, number=9, id="2-9-0000abcd", incarnation=2)
    there = [(KEYS.checkpoint(each.number), each) for each in (CHECKPOINT, older)]
    assert newest(view_of(*there)) == CHECKPOINT
    gone_back = [(KEYS.config, config), (KEYS.restore, back), *there]
    assert newest(view_of(*gone_back)) == older
    assert newest(view_of(*gone_back, (KEYS.checkpoint(9), own))) == own
    empty = replace(back, checkpoint="", manifest="", sha256="", nbytes=0)
    assert newest(view_of((KEYS.config, config), (KEYS.restore, empty), *there)) is None

"""What `resilient-ps status` says of checkpoints."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from resilient_ps.cli.checkpoint_lines import checkpoint_lines, duration_text
from resilient_ps.client.checkpoint_report import CheckpointReport, checkpoint_report
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.coordinator.view import ClusterView

KEYS = ClusterKeys("c")
TOLD: dict[str, Any] = {
    "elected": True,
    "store": True,
    "age_s": 130,
    "old": False,
    "interval_s": 415.7,
    "interval_by": "auto",
    "every_clocks": 0,
    "mtbf_h": 24.0,
    "cost_s": 1.25,
    "due_s": 285.7,
    "failures": 0,
    "last_failure": "",
    "waiting": 0,
    "under_way": None,
    "sweeping": "",
}


def view_of(*states: str) -> ClusterView:
    view = ClusterView(KEYS)
    items = []
    for number, state in enumerate(states, 1):
        record = CheckpointRecord(
            number, f"1-{number}-0000abcd", 1, "m", 1, "0" * 64, {"train": number}, 0, 1, 1, state
        )  # type: ignore[arg-type]
        items.append(KeyValue(KEYS.checkpoint(number), record.to_bytes(), 1, 1, 1, 0))
    view.load(items, 1)
    return view


def shown(report: CheckpointReport | None) -> str:
    assert report is not None
    console = Console(file=io.StringIO(), width=160)
    console.print(checkpoint_lines(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_store_and_without_checkpoints_there_is_nothing_to_say() -> None:
    assert checkpoint_report(view_of(), {"elected": True, "store": False}) is None
    assert checkpoint_report(view_of(), {}) is None


def test_the_newest_good_one_its_age_the_interval_and_what_comes_next_are_shown() -> None:
    text = shown(checkpoint_report(view_of("good", "good", "damaged", "deleting"), TOLD))
    for part in ("1-2-0000abcd", "2.2 min", "train 2", "6.9 min (auto, for 24 h)", "1.2 s", "4.8"):
        assert part in text


def test_what_is_under_way_is_shown_with_what_it_waits_for() -> None:
    doing = {
        "checkpoint": "1-9-0",
        "stage": "imaging",
        "done": 3,
        "total": 8,
        "waits_for": "rank 2",
    }
    text = shown(checkpoint_report(view_of(), {**TOLD, "under_way": doing}))
    assert "1-9-0 under way: imaging, 3 of 8 shards written, waits for rank 2" in text


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"old": True}, "older than three intervals"),
        ({"failures": 3, "last_failure": "the store is away"}, "the last 3 attempts failed"),
        ({"failures": 3, "last_failure": "the store is away"}, "last failure: the store is away"),
        ({"store": False}, "has no object store"),
        ({"sweeping": "credentials"}, "nothing can be deleted at the moment: credentials"),
    ],
)
def test_what_somebody_should_look_at_is_said(told: dict[str, Any], says: str) -> None:
    assert says in shown(checkpoint_report(view_of("good"), {**TOLD, **told}))


def test_a_coordinator_that_does_not_answer_leaves_what_etcd_says() -> None:
    report = checkpoint_report(view_of("good"), {})
    text = shown(report)
    assert "1-1-0000abcd" in text
    assert "not known" in text
    assert report is not None
    assert report.trouble == ""


def test_durations_are_said_as_people_say_them() -> None:
    said = [duration_text(seconds) for seconds in (None, 0.04, 90, 600, 7200, 864_000)]
    assert said == ["", "0.0 s", "90.0 s", "10.0 min", "2.0 h", "10.0 d"]

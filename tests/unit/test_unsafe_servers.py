"""Servers without a protection: which rules are off then, and that they say so all the time."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from served_node import RECORD, SECOND_NS, Served

from resilient_ps.errors import BadInput
from resilient_ps.guards import ALL_GUARDS, UNSAFE, Guards, without
from resilient_ps.machine import Started, TimerFired
from resilient_ps.node import NodeSettings, build_node

MINUTE_NS = 60 * SECOND_NS


@pytest.mark.parametrize("name", UNSAFE)
def test_a_name_switches_off_its_rules_and_no_other(name: str) -> None:
    off = {rule for rule, kept in asdict(without([name])).items() if not kept}
    assert off == set(UNSAFE[name])


def test_several_names_switch_off_all_their_rules() -> None:
    both = without(["dedup", "sync-ack"])
    assert both == Guards(deduplication=False, wait_for_backups=False)


def test_without_names_all_rules_are_on() -> None:
    assert without([]) is ALL_GUARDS


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(BadInput, match="no 'dedupe'; use fencing, dedup, sync-ack, commit-gate"):
        without(["dedupe"])


def served(*unsafe: str) -> Served:
    there = Served()
    settings = NodeSettings("c", replace(RECORD), 4, guards=without(unsafe), unsafe=unsafe)
    there.node = build_node(settings, lambda bits: 5)
    there.handle(Started())
    return there


def warned(there: Served) -> list[str]:
    return [log.fields["disabled"] for log in there.logs if log.event == "UNSAFE SERVER"]


def test_a_server_without_a_protection_warns_when_it_starts_and_every_minute() -> None:
    there = served("dedup", "fencing")
    assert warned(there) == ["dedup,fencing"]
    for minutes in range(1, 4):
        assert there.timers["unsafe"] == there.now_ns + MINUTE_NS
        there.now_ns += MINUTE_NS
        there.handle(TimerFired("unsafe"))
        assert warned(there) == ["dedup,fencing"] * (1 + minutes)


def test_the_warning_is_an_error_that_names_the_remedy() -> None:
    (log,) = (log for log in served("sync-ack").logs if log.event == "UNSAFE SERVER")
    assert log.level == "error"
    assert "without --unsafe-disable" in log.fields["remedy"]


def test_a_server_with_all_rules_has_nothing_to_warn_of() -> None:
    there = served()
    assert warned(there) == []
    assert "unsafe" not in there.timers

"""Schedules are drawn from a seed, and shortened to what matters."""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.sim.drawing import DISASTER_WEIGHTS, STORE_WEIGHTS, WEIGHTS
from resilient_ps.chaos.sim.minimise import minimise
from resilient_ps.chaos.sim.outcome import Finding, Outcome, overall
from resilient_ps.chaos.sim.schedule import Schedule
from resilient_ps.chaos.sim.setup import schedule_of


def test_a_seed_always_has_the_same_schedule_and_others_have_others() -> None:
    assert schedule_of(5) == schedule_of(5)
    assert schedule_of(5) != schedule_of(6)


def test_schedules_are_full_of_faults_and_in_the_order_of_time() -> None:
    kinds = set()
    for seed in range(100):
        schedule = schedule_of(seed)
        assert len(schedule) >= 12
        assert [fault.at_ms for fault in schedule] == sorted(fault.at_ms for fault in schedule)
        kinds.update(fault.kind for fault in schedule)
    assert kinds == {*WEIGHTS, *STORE_WEIGHTS, *DISASTER_WEIGHTS}


def outcome(schedule: Schedule, broken: str = "") -> Outcome:
    findings = (Finding(broken, Verdict("false", ("because",))),) if broken else ()
    return Outcome(
        seed=1,
        kind="safety",
        workload="none",
        verdict=overall(findings),
        findings=findings,
        schedule=schedule,
        faults=len(schedule),
        skipped=0,
        acknowledged=0,
        lost_shards=(),
        virtual_s=0.0,
        steps=0,
        trace="",
    )


def test_a_schedule_is_shortened_to_the_faults_that_matter() -> None:
    schedule = schedule_of(3)
    needed = {schedule[2], schedule[9]}

    def again(shorter: Schedule) -> Outcome:
        return outcome(shorter, "lost" if needed <= set(shorter) else "")

    assert set(minimise(outcome(schedule, "lost"), again).schedule) == needed


def test_a_run_that_breaks_something_else_is_no_shorter_case_of_the_same() -> None:
    schedule = schedule_of(3)

    def again(shorter: Schedule) -> Outcome:
        return outcome(shorter, "another promise")

    assert minimise(outcome(schedule, "lost"), again).schedule == schedule


def test_a_failure_that_needs_no_fault_is_shortened_to_none() -> None:
    found = minimise(outcome(schedule_of(4), "lost"), lambda shorter: outcome(shorter, "lost"))
    assert found.schedule == ()


def test_shortening_ends_after_a_bounded_number_of_runs() -> None:
    runs = []

    def again(shorter: Schedule) -> Outcome:
        runs.append(shorter)
        return outcome(shorter)

    minimise(outcome(schedule_of(4), "lost"), again, runs_max=7)
    assert len(runs) == 7


def test_the_verdict_of_a_run_is_its_worst_finding() -> None:
    true, unknown = Finding("a", Verdict("true")), Finding("b", Verdict("unknown"))
    false = Finding("c", Verdict("false"))
    assert overall([true]) == "true"
    assert overall([true, unknown]) == "unknown"
    assert overall([unknown, false, true]) == "false"
    assert overall([]) == "unknown"
    assert replace(outcome((), "c"), findings=(false, unknown)).broken == ("c",)

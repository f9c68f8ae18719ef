"""Every call ends, on histories written by hand."""

from __future__ import annotations

from histories import note, why

from resilient_ps.chaos.checkers.verdict import HOLDS, Verdict
from resilient_ps.chaos.checkers.waits import check_waits
from resilient_ps.chaos.history import History

SECOND_NS = 10**9


def judged(history: History, end_ns: int = 100 * SECOND_NS) -> Verdict:
    return check_waits(history, slack_ns=SECOND_NS, end_ns=end_ns)


def with_pull(begun_s: int, ended_s: int | None, deadline_s: int) -> History:
    history = History()
    ended_ns = None if ended_s is None else ended_s * SECOND_NS
    note(
        history,
        "0.1",
        "pull",
        3,
        begun_s * SECOND_NS,
        ended_ns,
        outcome="unknown",
        deadline_ns=deadline_s * SECOND_NS,
    )
    return history


def test_an_operation_may_end_at_its_deadline_and_a_little_later() -> None:
    assert judged(with_pull(1, 5, 5)) == HOLDS
    assert judged(with_pull(1, 6, 5)) == HOLDS


def test_an_operation_that_ends_long_after_its_deadline_is_convicted() -> None:
    text = "the pull of 0.1 at clock 3 ended 2000.000 ms after its deadline"
    assert text in why(judged(with_pull(1, 7, 5)))


def test_an_operation_that_has_not_ended_when_the_run_is_over_is_convicted() -> None:
    assert "has not ended 95000.000 ms after" in why(judged(with_pull(1, None, 5)))


def test_an_operation_whose_deadline_is_still_to_come_is_not() -> None:
    assert judged(with_pull(1, None, 5), end_ns=4 * SECOND_NS) == HOLDS


def test_an_operation_of_a_dead_process_needs_no_end() -> None:
    history = with_pull(1, None, 5)
    history.died("0.1", 2 * SECOND_NS)
    assert judged(history) == HOLDS


def test_operations_without_a_deadline_tell_nothing() -> None:
    assert judged(with_pull(1, None, 0)).outcome == "unknown"


def test_a_process_that_stood_still_may_notice_later() -> None:
    history = with_pull(1, 8, 5)
    for paused_s, verdict in ((1, "false"), (2, "true")):
        paused_ns = {"0.1": paused_s * SECOND_NS}
        judgement = check_waits(
            history, slack_ns=SECOND_NS, end_ns=100 * SECOND_NS, paused_ns=paused_ns
        )
        assert judgement.outcome == verdict


def test_a_process_with_a_slow_clock_may_notice_later() -> None:
    history = with_pull(0, 122, 120)
    for skew_ppm, verdict in ((1_000, "false"), (10_000, "true")):
        judgement = check_waits(
            history, slack_ns=SECOND_NS, end_ns=200 * SECOND_NS, skew_ppm=skew_ppm
        )
        assert judgement.outcome == verdict

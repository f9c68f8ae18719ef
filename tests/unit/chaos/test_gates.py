"""The checker of bounds that knows nothing of a program but its pulls and the servers' audit."""

from __future__ import annotations

from resilient_ps.chaos.checkers.applied import Event
from resilient_ps.chaos.checkers.gates import AnsweredPull, check_gates
from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec
from resilient_ps.ids import Epoch, Position

JOB = 7


def place(lsn: int, incarnation: int = 1) -> Position:
    return Position(Epoch(incarnation, 1), lsn)


def tick(lsn: int, rank: int, clock: int, incarnation: int = 1) -> Event:
    return Event("tick", 0, place(lsn, incarnation), JOB, rank, 1, clock)


def pull(lsn: int, clock: int, incarnation: int = 1) -> AnsweredPull:
    return AnsweredPull(JOB, 0, clock, ((0, place(lsn, incarnation)),))


def outcome(mode: Consistency, pulls: list[AnsweredPull], *events: Event) -> str:
    jobs = {JOB: JobSpec(JOB, "job", 2, mode)}
    return check_gates(pulls, [*events, *events], jobs).outcome  # two replicas tell the same


BOTH_TICKED = (tick(2, 0, 1), tick(3, 1, 1))


def test_a_pull_behind_the_last_tick_that_it_needs_is_right() -> None:
    assert outcome(BSP(), [pull(3, clock=2)], *BOTH_TICKED) == "true"


def test_a_pull_that_was_answered_before_a_rank_ticked_is_found() -> None:
    verdict = check_gates([pull(2, clock=2)], BOTH_TICKED, {JOB: JobSpec(JOB, "job", 2, BSP())})
    assert verdict.outcome == "false"
    assert "rank 1 had ticked 0: must be 1" in verdict.reasons[0]


def test_staleness_lets_pulls_run_ahead_as_far_as_it_says() -> None:
    ahead = [tick(lsn, 0, lsn) for lsn in range(1, 6)]
    assert outcome(SSP(3), [pull(5, clock=4)], *ahead) == "true"
    assert outcome(SSP(3), [pull(5, clock=5)], *ahead) == "false"
    assert outcome(ASP(), [pull(5, clock=6)], *ahead) == "true"


def test_nobody_waits_for_who_has_left_and_everybody_for_who_has_joined() -> None:
    left = Event("leave", 0, place(3), JOB, 1)
    joined = Event("join", 0, place(4), JOB, 2, 0, clock=2)
    assert outcome(BSP(), [pull(3, clock=2)], tick(2, 0, 1), left) == "true"
    assert outcome(BSP(), [pull(2, clock=2)], tick(2, 0, 1), left) == "false", "it had not left yet"
    later = (*BOTH_TICKED, joined, tick(5, 0, 2), tick(6, 1, 2))
    assert outcome(BSP(), [pull(6, clock=3)], *later) == "false"
    assert outcome(BSP(), [pull(7, clock=3)], *later, tick(7, 2, 2)) == "true"


def test_after_a_rollback_the_first_tick_tells_what_was_ticked_before() -> None:
    again = (tick(2, 0, 5, incarnation=2), tick(4, 1, 5, incarnation=2))
    pulls = [pull(1, clock=5, incarnation=2), pull(99, clock=9)]  # the second is of before it
    assert outcome(BSP(), pulls, *BOTH_TICKED, *again) == "true"
    assert outcome(BSP(), [pull(3, clock=6, incarnation=2)], *again) == "false"


def test_a_history_without_pulls_tells_nothing() -> None:
    assert outcome(BSP(), [], *BOTH_TICKED) == "unknown"

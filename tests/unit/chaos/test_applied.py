"""Exactly-once of any program, from receipts and audits: what holds, and what is convicted."""

from __future__ import annotations

from histories import why

from resilient_ps.chaos.checkers.applied import Event, Receipt, check_applied, check_nothing_lost
from resilient_ps.ids import Epoch, Position

JOB, RANK = 1, 0


def at(lsn: int, counter: int = 1, incarnation: int = 1) -> Position:
    return Position(Epoch(incarnation, counter), lsn)


def push(place: Position, n: int, *, clock: int = 1, process: int = 1, shard: int = 0) -> Event:
    return Event("push", shard, place, JOB, RANK, process, clock, n)


def other(what: str, place: Position, *, clock: int = 1, process: int = 1) -> Event:
    return Event(what, 0, place, JOB, RANK, process, clock, 0)


def epoch(lsn: int, counter: int, incarnation: int = 1) -> Event:
    return Event("epoch", 0, at(lsn, counter, incarnation))


def receipt(n: int, place: Position, *, clock: int = 1, process: int = 1) -> Receipt:
    return Receipt(JOB, RANK, process, clock, n, ((0, place),))


def test_pushes_that_were_applied_once_hold_whoever_applied_them() -> None:
    primary = [epoch(1, 1), push(at(2), 1), push(at(3), 2)]
    backup = [push(at(2), 1)]
    made = [receipt(1, at(2)), receipt(2, at(3))]
    assert check_applied(made, [*backup, *primary]).outcome == "true"


def test_an_acknowledged_push_that_nobody_applied_is_convicted() -> None:
    verdict = check_applied([receipt(1, at(2)), receipt(2, at(3))], [push(at(2), 1)])
    assert "push 2 of clock 1 of rank 0.1" in why(verdict)


def test_what_a_later_epoch_dropped_does_not_count() -> None:
    audit = [push(at(2), 1), push(at(3), 2), epoch(3, 2), push(at(4, 2), 3)]
    verdict = check_applied([receipt(1, at(2)), receipt(2, at(3)), receipt(3, at(4, 2))], audit)
    assert "push 2" in why(verdict)
    assert "push 1" not in why(verdict)


def test_what_an_old_primary_applied_beside_its_successor_does_not_count() -> None:
    audit = [epoch(1, 1), epoch(2, 2), push(at(9, 1), 1)]
    assert "is not in its log" in why(check_applied([receipt(1, at(9, 1))], audit))


def test_what_was_dropped_and_sent_again_is_applied_once() -> None:
    audit = [push(at(2), 1), epoch(2, 2), push(at(3, 2), 1)]
    assert check_applied([receipt(1, at(3, 2))], audit).outcome == "true"


def test_a_push_that_was_applied_twice_is_convicted() -> None:
    verdict = check_applied([receipt(1, at(2))], [push(at(2), 1), push(at(3), 1)])
    assert "applied twice by shard 0, at lsn 2 and 3" in why(verdict)


def test_a_repeat_that_was_only_answered_is_no_second_time() -> None:
    audit = [push(at(2), 1), other("fence", at(3), process=2), other("replay", at(4), process=2)]
    made = [receipt(1, at(2)), receipt(1, at(4), process=2)]
    assert check_applied(made, audit).outcome == "true"


def test_a_redo_lets_a_clock_be_pushed_again() -> None:
    redo = other("redo", at(3), process=2)
    audit = [push(at(2), 1), redo, push(at(4), 1, process=2), other("tick", at(5), process=2)]
    made = [receipt(1, at(2)), receipt(1, at(4), process=2)]
    assert check_applied(made, audit).outcome == "true"


def test_a_redo_of_another_clock_does_not() -> None:
    audit = [push(at(2), 1), other("redo", at(3), clock=2, process=2), push(at(4), 1, process=2)]
    assert "applied twice" in why(check_applied([receipt(1, at(2))], audit))


def test_what_a_redo_undid_must_be_there_again_once_the_clock_is_ended() -> None:
    audit = [push(at(2), 1), other("redo", at(3), process=2)]
    assert check_applied([receipt(1, at(2))], audit).outcome == "true", "nobody ended the clock"
    ended = [*audit, other("tick", at(4), process=2)]
    assert "is not in its log" in why(check_applied([receipt(1, at(2))], ended))


def test_replicas_that_applied_different_things_at_one_place_are_convicted() -> None:
    verdict = check_applied([receipt(1, at(2))], [push(at(2), 1), push(at(2), 2)])
    assert "one replica applied the push of rank 0.1" in why(verdict)


def test_after_a_rollback_the_new_incarnation_is_judged() -> None:
    audit = [push(at(2), 1), epoch(1, 1, 2), push(at(2, 1, 2), 1)]
    made = [receipt(1, at(2)), receipt(2, at(3)), receipt(1, at(2, 1, 2))]
    assert check_applied(made, audit).outcome == "true"
    assert "push 3" in why(check_applied([*made, receipt(3, at(3, 1, 2))], audit))


def test_without_evidence_nothing_is_known() -> None:
    assert check_applied([], []).outcome == "unknown"
    assert check_applied([], [push(at(2), 1)]).outcome == "unknown"
    assert check_nothing_lost({"s1": 0}).outcome == "true"
    assert check_nothing_lost({"s1": 3}).outcome == "unknown"

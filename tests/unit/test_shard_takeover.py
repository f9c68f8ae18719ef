"""Takeovers, joins and leaves as one shard sees them."""

from __future__ import annotations

from shard_asking import Asking

from resilient_ps.consistency import ASP, BSP, SSP
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Kind, Status


def test_a_takeover_is_told_the_last_tick_and_its_cursor() -> None:
    asking = Asking(SSP(1))
    asking.tick(0, 1)
    asking.tick(0, 2)
    answer = asking.fence(0, 2)
    assert (answer.value, answer.text) == (2, b"at 2")
    assert asking.fence(0, 2)[1:] == answer[1:]


def test_an_older_process_is_fenced_off_everywhere() -> None:
    asking = Asking(BSP())
    asking.fence(0, 3)
    me = WorkerId(1, 0, 1)
    answers = [
        asking.push(0, 1, 1, 0, [7]),
        asking.tick(0, 1),
        asking.pull(0, 1, [7])[0].answer,
        asking.one(Kind.REDO, worker=me, clock=1),
        asking.one(Kind.TUNE, worker=me, clock=1, n=1, table=2, rate=0.5),
        asking.one(Kind.LEAVE, worker=me, n=1),
        asking.fence(0, 1),
    ]
    assert [(a.status, a.value) for a in answers] == [(Status.FENCED, 3)] * len(answers)


def test_a_takeover_under_bsp_forgets_the_open_clock() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.push(0, 1, 2, 1, [8])
    asking.fence(0, 2)
    heir = WorkerId(1, 0, 2)
    assert asking.one(Kind.REDO, worker=heir, clock=1).status is Status.OK
    asking.push(0, 1, 1, 0, [9], incarnation=2)
    assert asking.one(Kind.REDO, worker=heir, clock=1).status is Status.OK  # late repeat
    asking.tick(0, 1, prev=1, incarnation=2)
    assert asking.values([7, 8, 9]) == [0, 0, 1]


def test_a_takeover_under_ssp_keeps_what_was_applied() -> None:
    asking = Asking(SSP(1), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.fence(0, 2)
    asking.push(0, 1, 1, 0, [7], incarnation=2)
    asking.push(0, 1, 2, 1, [8], incarnation=2)
    assert asking.values([7, 8]) == [1, 1]


def test_a_repeated_clock_with_other_keys_is_not_repeatable() -> None:
    asking = Asking(ASP(), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.fence(0, 2)
    answer = asking.push(0, 1, 1, 0, [8], incarnation=2)
    assert answer.status is Status.NOT_REPEATABLE
    assert b"same keys" in answer.text


def test_a_repeat_into_another_table_is_not_repeatable() -> None:
    asking = Asking(ASP(), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.fence(0, 2)
    answer = asking.push(0, 1, 1, 0, [7], incarnation=2, table=2)
    assert answer.status is Status.NOT_REPEATABLE


# -- join and leave


def test_a_leave_lets_bsp_go_on_and_answers_who_waited() -> None:
    asking = Asking(BSP())
    asking.push(0, 1, 1, 0, [7])
    asking.tick(0, 1, prev=1)
    assert asking.pull(0, 2, [7], wait_s=10) == []
    replies = asking.ask(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=1)
    assert [reply.answer.status for reply in replies] == [Status.OK, Status.OK]
    assert replies[1].values is not None
    assert replies[1].values.tolist() == [1]


def test_a_left_rank_is_refused_and_its_fence_too() -> None:
    asking = Asking(SSP(1))
    asking.one(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=1)
    assert asking.push(1, 1, 1, 0, [7]).status is Status.LEFT
    assert asking.fence(1, 2).status is Status.LEFT
    assert asking.pull(1, 1, [7])[0].answer.status is Status.LEFT


def test_steps_of_an_intent_that_was_executed_are_only_answered() -> None:
    """So that a new coordinator can finish on the other shards what its predecessor began."""
    asking = Asking(BSP())
    leaver = WorkerId(1, 1, 2)
    asking.tick(1, 1)
    asking.fence(1, 2, n=5)
    asking.one(Kind.LEAVE, worker=leaver, n=5)
    lsn = asking.shard.lsn
    answer = asking.fence(1, 2, n=5)
    assert (answer.status, answer.value, answer.text) == (Status.OK, 1, b"at 1")
    assert asking.one(Kind.REDO, worker=leaver, clock=2, n=5).status is Status.OK
    assert asking.one(Kind.LEAVE, worker=leaver, n=5).status is Status.OK
    assert asking.fence(77, 1, n=5).status is Status.UNKNOWN
    assert asking.shard.lsn == lsn


def test_a_repeated_join_is_only_answered() -> None:
    asking = Asking(SSP(1))
    joiner = WorkerId(1, 9, 0)
    assert asking.one(Kind.JOIN, worker=joiner, n=1).value == 1
    lsn = asking.shard.lsn
    assert asking.one(Kind.JOIN, worker=joiner, n=1).value == 1
    assert asking.one(Kind.JOIN, worker=WorkerId(1, 10, 0), n=1).value == 0  # an old number
    assert asking.shard.lsn == lsn


def test_a_joined_rank_is_waited_for() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.tick(0, 1)
    asking.one(Kind.JOIN, worker=WorkerId(1, 1, 0), n=1)
    asking.tick(0, 2)
    asking.tick(0, 3)
    answer = asking.pull(0, 3, [7])[0].answer
    assert answer.status is Status.DEADLINE
    assert b"clock 2 of rank 1 (at clock 2)" in answer.text

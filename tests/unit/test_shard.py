"""A shard: requests in, answers out. What the ledger decides is tested there."""

from __future__ import annotations

import numpy as np
import pytest
from shard_asking import SECOND_NS, SUMS, WEIGHTS, Asking, tell

from resilient_ps.consistency import ASP, BSP, SSP, JobSpec
from resilient_ps.guards import Guards
from resilient_ps.ids import READER, Epoch, Position, WorkerId
from resilient_ps.messages import Command, Kind, Status
from resilient_ps.shard import CURSOR_BYTES_MAX, Shard
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.waiting import WAITING_MAX

# -- pushes, and what they change


def test_a_repeated_push_is_answered_but_not_applied() -> None:
    asking = Asking(SSP(1))
    assert asking.push(0, 1, 1, 0, [7]).status is Status.OK
    lsn = asking.shard.lsn
    assert asking.push(0, 1, 1, 0, [7]).status is Status.OK
    assert asking.values([7]) == [1]
    assert asking.shard.lsn == lsn


def test_under_ssp_a_push_is_applied_on_arrival() -> None:
    asking = Asking(SSP(1))
    asking.push(0, 1, 1, 0, [7, 8, 7])
    assert asking.values([7, 8, 9]) == [2, 1, 0]


def test_under_bsp_a_push_is_applied_when_all_ranks_have_ticked_its_clock() -> None:
    asking = Asking(BSP())
    asking.push(0, 1, 1, 0, [7])
    asking.tick(0, 1, prev=1)
    assert asking.values([7]) == [0]
    asking.push(1, 1, 1, 0, [7])
    assert asking.values([7]) == [0]
    asking.tick(1, 1, prev=1)
    assert asking.values([7]) == [2]


def test_a_refused_push_changes_nothing() -> None:
    asking = Asking(SSP(1))
    lsn = asking.shard.lsn
    assert asking.push(0, 1, 2, 1, [7]).status is Status.GAP
    assert asking.push(0, 5, 1, 0, [7]).status is Status.REFUSED
    assert asking.push(0, 1, 1, 0, [7], values=[1, 2]).status is Status.REFUSED
    floats = asking.one(
        Kind.PUSH, worker=WorkerId(1, 0, 1), clock=1, n=1, table=1, keys=[7], values=np.ones(1)
    )
    assert floats.status is Status.REFUSED
    assert b"holds int64" in floats.text
    assert asking.shard.lsn == lsn
    assert asking.push(0, 1, 1, 0, [7]).status is Status.OK


def test_every_change_is_an_entry_and_pulls_are_none() -> None:
    asking = Asking(SSP(1))
    lsn = asking.shard.lsn
    asking.push(0, 1, 1, 0, [7])
    asking.tick(0, 1, prev=1)
    assert asking.shard.position == Position(Epoch(1, 1), lsn + 2)
    asking.values([7])
    asking.pull(0, 2, [7])
    assert asking.shard.lsn == lsn + 2


# -- the learning rate


def test_under_ssp_a_new_learning_rate_holds_in_the_order_of_entries() -> None:
    asking = Asking(SSP(1))
    asking.push(0, 1, 1, 0, [7], table=2)
    tuned = asking.one(Kind.TUNE, worker=WorkerId(1, 0, 1), clock=1, n=2, prev=1, table=2, rate=0.5)
    assert tuned.status is Status.OK
    asking.push(0, 1, 3, 2, [7], table=2)
    assert asking.values([7], table=2) == [-1.5]


def test_under_bsp_a_new_learning_rate_holds_from_the_next_clock_on() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.one(Kind.TUNE, worker=WorkerId(1, 0, 1), clock=1, n=1, table=2, rate=0.5)
    asking.push(0, 1, 2, 1, [7], table=2)
    asking.tick(0, 1, prev=2)
    assert asking.values([7], table=2) == [-1.0]
    asking.push(0, 2, 1, 0, [7], table=2)
    asking.tick(0, 2, prev=1)
    assert asking.values([7], table=2) == [-1.5]


@pytest.mark.parametrize(("table", "rate"), [(1, 0.5), (2, -1.0), (2, float("nan"))])
def test_a_rate_that_the_optimiser_cannot_use_is_refused(table: int, rate: float) -> None:
    asking = Asking(SSP(1))
    answer = asking.one(Kind.TUNE, worker=WorkerId(1, 0, 1), clock=1, n=1, table=table, rate=rate)
    assert answer.status is Status.REFUSED


# -- reduce


def test_mean_divides_by_the_live_ranks() -> None:
    asking = Asking(BSP("mean"), ranks=4)
    for rank in range(4):
        asking.push(rank, 1, 1, 0, [7], values=[float(rank)], table=2)
        asking.tick(rank, 1, prev=1)
    assert asking.values([7], table=2) == [-1.5]


def test_mean_counts_a_rank_in_the_clocks_that_it_ticked_before_it_left() -> None:
    asking = Asking(BSP("mean"), ranks=2)
    asking.push(1, 1, 1, 0, [7], values=[4.0], table=2)
    asking.tick(1, 1, prev=1)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=1)
    asking.push(0, 1, 1, 0, [7], values=[2.0], table=2)
    asking.tick(0, 1, prev=1)
    assert asking.values([7], table=2) == [-3.0]
    asking.push(0, 2, 1, 0, [7], values=[2.0], table=2)
    asking.tick(0, 2, prev=1)
    assert asking.values([7], table=2) == [-5.0]


def test_mean_is_refused_for_whole_numbers() -> None:
    answer = Asking(BSP("mean")).push(0, 1, 1, 0, [7])
    assert answer.status is Status.REFUSED
    assert b"needs a float table" in answer.text


# -- one writer


def test_one_job_writes_a_table_at_a_time_and_others_read() -> None:
    asking = Asking(SSP(1))
    asking.open_job(2, ASP(), 1)
    asking.fence(0, 1, job=2)
    asking.push(0, 1, 1, 0, [7])
    refused = asking.push(0, 1, 1, 0, [7], job=2)
    assert refused.status is Status.REFUSED
    assert b"being written by job 'job1'" in refused.text
    (reply,) = asking.ask(Kind.PULL, worker=WorkerId(2, 0, 1), clock=1, table=1, keys=[7])
    assert reply.answer.status is Status.OK
    asking.one(Kind.CLOSE_JOB, worker=WorkerId(1, 0, 0))
    assert asking.push(0, 1, 1, 0, [7], job=2).status is Status.OK
    assert asking.values([7]) == [2]


def test_a_closed_job_is_unknown_and_its_waiting_pulls_are_answered() -> None:
    asking = Asking(BSP())
    asking.pull(0, 2, [7], wait_s=10)
    replies = asking.ask(Kind.CLOSE_JOB, worker=WorkerId(1, 0, 0))
    assert [reply.answer.status for reply in replies] == [Status.OK, Status.UNKNOWN]
    assert asking.push(0, 1, 1, 0, [7]).status is Status.UNKNOWN
    assert asking.tick(0, 1).status is Status.UNKNOWN
    assert asking.fence(0, 2).status is Status.UNKNOWN


# -- pulls


def test_a_pull_waits_until_the_slowest_rank_has_ticked_its_gate() -> None:
    asking = Asking(SSP(1))
    for clock in (1, 2):
        asking.tick(0, clock)
    assert asking.pull(0, 3, [7], wait_s=10) == []
    replies = asking.ask(Kind.TICK, worker=WorkerId(1, 1, 1), clock=1)
    assert [reply.answer.status for reply in replies] == [Status.OK, Status.OK]


def test_a_pull_that_waited_too_long_names_the_ranks_that_it_waited_for() -> None:
    asking = Asking(BSP(), ranks=12)
    asking.tick(0, 1)
    asking.pull(0, 2, [7], wait_s=2)
    asking.now_ns = 2 * SECOND_NS - 1
    assert asking.shard.release(asking.now_ns) == []
    (reply,) = asking.shard.release(asking.now_ns + 1)
    assert reply.answer.status is Status.DEADLINE
    text = reply.answer.text.decode()
    assert "job 'job1' waits for clock 1 of rank 1 (at clock 1), 2 (at clock 1)" in text
    assert text.endswith("and 3 more")
    assert len(asking.shard.waiting) == 0


def test_pulls_of_a_lost_peer_are_forgotten() -> None:
    asking = Asking(BSP())
    asking.pull(0, 2, [7], wait_s=10, peer="client:1")
    asking.pull(1, 2, [7], wait_s=10, peer="client:2")
    asking.shard.waiting.forget_peer("client:1")
    assert len(asking.shard.waiting) == 1


def test_the_number_of_waiting_pulls_is_bounded() -> None:
    asking = Asking(BSP())
    for _ in range(WAITING_MAX):
        assert asking.pull(0, 2, [7], wait_s=10) == []
    assert asking.pull(0, 2, [7], wait_s=10)[0].answer.status is Status.BUSY


def test_the_bytes_of_waiting_pulls_are_bounded_and_given_back() -> None:
    asking = Asking(BSP())
    asking.shard.waiting.bytes_max = 3 * 8
    assert asking.pull(0, 2, [7, 8], wait_s=10, peer="client:1") == []
    assert asking.pull(0, 2, [7, 8], wait_s=10)[0].answer.status is Status.BUSY
    assert asking.pull(0, 2, [7], wait_s=10, peer="client:2") == []
    asking.shard.waiting.forget_peer("client:1")
    assert asking.pull(0, 2, [7, 8], wait_s=10) == []
    assert asking.shard.waiting.held_bytes == 3 * 8
    asking.shard.waiting.take_all()
    assert asking.shard.waiting.held_bytes == 0


def test_a_pull_of_the_same_number_takes_the_place_of_the_first() -> None:
    asking = Asking(BSP())
    asking.pull(0, 2, [7], wait_s=10)
    asking.requests -= 1
    asking.pull(0, 2, [7], wait_s=20)
    assert len(asking.shard.waiting) == 1
    assert asking.shard.waiting.next_deadline_ns() == 20 * SECOND_NS


def test_a_job_of_more_ranks_than_so_many_shards_can_hold_is_refused() -> None:
    shard = Shard(0, 1024)
    for ranks, status in ((1025, Status.REFUSED), (1024, Status.OK)):
        text = JobSpec(1, "many", ranks, SSP(1)).to_json().encode()
        answer = tell(shard, Command(Kind.OPEN_JOB, WorkerId(1, 0, 0), text=text))
        assert answer.status is status
        assert ranks == 1024 or b"at most 1024 ranks are possible" in answer.text


def test_unknown_tables_and_jobs_are_named() -> None:
    asking = Asking(SSP(1))
    (reply,) = asking.ask(Kind.PULL, worker=READER, table=9, keys=[1])
    assert reply.answer.status is Status.UNKNOWN
    assert b"no table 9" in reply.answer.text
    answer = asking.push(0, 1, 1, 0, [7], job=8)
    assert answer.status is Status.UNKNOWN
    assert b"no job 8" in answer.text
    (reply,) = asking.ask(Kind.PULL, worker=WorkerId(8, 0, 1), table=1, keys=[1])
    assert reply.answer.status is Status.UNKNOWN


def test_a_pull_of_more_than_one_answer_can_carry_is_refused() -> None:
    asking = Asking(SSP(1))
    asking.open_table(3, SparseSpec("wide", 4096, "float64", Sum()))
    (reply,) = asking.ask(Kind.PULL, worker=READER, table=3, keys=np.zeros(2049, np.uint64))
    assert reply.answer.status is Status.REFUSED
    assert b"at most 2048" in reply.answer.text


def test_a_block_of_elsewhere_is_refused() -> None:
    asking = Asking(SSP(1))
    asking.open_table(3, DenseSpec("dense", (4,), "float32", Sum()))
    (reply,) = asking.ask(Kind.PULL, worker=READER, table=3, keys=[5])
    assert reply.answer.status is Status.REFUSED


# -- tables and jobs


def test_a_table_or_job_is_opened_again_only_with_the_same_specification() -> None:
    asking = Asking(SSP(1))
    assert asking.open_table(1, SUMS).status is Status.OK
    assert asking.open_table(1, WEIGHTS).status is Status.REFUSED
    assert asking.open_job(1, SSP(1), 2).status is Status.OK
    other = asking.open_job(1, BSP(), 2)
    assert other.status is Status.REFUSED
    assert b"ssp:1" in other.text
    assert b"bsp" in other.text


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b"[" * 3000, b"nonsense"])
def test_specifications_that_are_none_are_refused(text: bytes) -> None:
    asking = Asking(SSP(1))
    assert asking.one(Kind.OPEN_TABLE, table=5, text=text).status is Status.REFUSED
    answer = asking.one(Kind.OPEN_JOB, worker=WorkerId(5, 0, 0), text=text)
    assert answer.status is Status.REFUSED


def test_a_job_that_calls_itself_otherwise_is_refused() -> None:
    asking = Asking(SSP(1))
    text = JobSpec(6, "six", 1, ASP()).to_json().encode()
    assert asking.one(Kind.OPEN_JOB, worker=WorkerId(5, 0, 0), text=text).status is Status.REFUSED


def test_a_dropped_table_is_gone_and_its_held_pushes_with_it() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.push(0, 1, 1, 0, [7])
    asking.one(Kind.DROP_TABLE, table=1)
    assert asking.tick(0, 1, prev=1).status is Status.OK
    (reply,) = asking.ask(Kind.PULL, worker=READER, table=1, keys=[7])
    assert reply.answer.status is Status.UNKNOWN
    assert asking.one(Kind.DROP_TABLE, table=1).status is Status.OK


# -- bounds


def test_a_cursor_has_a_largest_size() -> None:
    asking = Asking(SSP(1))
    me = WorkerId(1, 0, 1)
    long = asking.one(Kind.TICK, worker=me, clock=1, text=b"x" * (CURSOR_BYTES_MAX + 1))
    assert long.status is Status.REFUSED
    assert str(CURSOR_BYTES_MAX).encode() in long.text
    fits = asking.one(Kind.TICK, worker=me, clock=1, text=b"x" * CURSOR_BYTES_MAX)
    assert fits.status is Status.OK


def test_a_rank_that_runs_ahead_is_told_to_wait_and_the_slow_one_is_not() -> None:
    asking = Asking(BSP(), barrier_bytes_max=16 * 4)
    asking.tick(0, 1)
    asking.push(0, 2, 1, 0, [1])
    asking.push(0, 2, 2, 1, [1])
    busy = asking.push(0, 2, 3, 2, [1])
    assert busy.status is Status.BUSY
    assert b"clock 1 of rank 1" in busy.text
    assert asking.push(1, 1, 1, 0, [1]).status is Status.OK
    asking.tick(1, 1, prev=1)
    assert asking.push(0, 2, 3, 2, [1]).status is Status.OK


# -- guards, for negative controls


def test_each_guard_switches_one_rule_off() -> None:
    doubled = Asking(SSP(1), guards=Guards(deduplication=False))
    doubled.push(0, 1, 1, 0, [7])
    doubled.push(0, 1, 1, 0, [7])
    assert doubled.values([7]) == [2]
    stale = Asking(SSP(0), guards=Guards(staleness_gate=False))
    assert stale.pull(0, 9, [7])[0].answer.status is Status.OK
    unfenced = Asking(SSP(1), guards=Guards(fencing=False))
    unfenced.fence(0, 2)
    assert unfenced.push(0, 1, 1, 0, [7]).status is Status.OK
    early = Asking(BSP(), guards=Guards(barrier=False))
    early.push(0, 1, 1, 0, [7])
    assert early.values([7]) == [1]

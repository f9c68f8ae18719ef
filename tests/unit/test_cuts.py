"""What a shard answers to cuts and aborts, and what an open cut changes for pushes and joins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from shard_asking import Asking

from resilient_ps.consistency import ASP, BSP, SSP
from resilient_ps.cut import CLOCK_MAX, CUT_JOBS_MAX, Cut
from resilient_ps.cuts import Cuts
from resilient_ps.errors import BadInput
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Command, Kind, PartAnswer, Status

# -- the value


@pytest.mark.parametrize(
    "cut",
    [
        Cut(1, ()),
        Cut(7, ((1, 0), (9, 12)), "s1", hold=True, base="1-2-0a0b0c0d", resting=(3, 4)),
        Cut(CLOCK_MAX, ((CLOCK_MAX, CLOCK_MAX),), "s" * 512),
    ],
)
def test_a_cut_is_written_and_read(cut: Cut) -> None:
    assert Cut.from_json(cut.to_json()) == cut
    assert Cut.from_json(cut.to_json().encode()).to_json() == cut.to_json()


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 0},
        {"number": True},
        {"number": CLOCK_MAX + 1},
        {"number": "1"},
        {"clocks": [[1, -1]]},
        {"clocks": [[1, 1], [1, 2]]},
        {"clocks": [[2, 1], [1, 2]]},
        {"clocks": [[1, 1, 1]]},
        {"clocks": [1]},
        {"clocks": {"1": 1}},
        {"clocks": [[1, 1.5]]},
        {"clocks": [[i, 1] for i in range(CUT_JOBS_MAX + 1)]},
        {"by": 1},
        {"by": "s" * 513},
        {"hold": 1},
        {"base": None},
        {"resting": [2, 1]},
        {"resting": ["1"]},
        {"resting": [1], "clocks": [[1, 1]]},
        {"more": 1},
    ],
)
def test_what_is_no_cut_is_refused(fields: dict[str, Any]) -> None:
    document = json.loads(Cut(1, ((1, 1),)).to_json()) | fields
    with pytest.raises(BadInput):
        Cut.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{}", "[" * 100_000, "x", "\ud800"])
def test_garbage_is_no_cut(text: str) -> None:
    with pytest.raises(BadInput):
        Cut.from_json(text)


# -- beginning


def give(asking: Asking, cut: Cut) -> PartAnswer:
    return asking.one(Kind.CUT, n=cut.number, text=cut.to_json().encode())


def uneven() -> Asking:
    """Rank 0 has ticked clock 2 and pushed in clock 3; rank 1 is in clock 1."""
    asking = Asking(ASP())
    asking.tick(0, 1)
    asking.tick(0, 2)
    asking.push(0, 3, 1, 0, [1])
    return asking


def test_a_cut_that_something_is_behind_of_is_refused_with_the_largest_clock() -> None:
    asking = uneven()
    answer = give(asking, Cut(1, ((1, 2),), "s1"))
    assert (answer.status, answer.value) == (Status.REFUSED, 3)
    assert b"job 1" in answer.text
    assert give(asking, Cut(1, ((1, 3),), "s1")).status is Status.OK


def test_an_empty_tick_is_something() -> None:
    asking = Asking(ASP())
    asking.tick(0, 1)
    assert give(asking, Cut(1, ((1, 0),))).value == 1
    assert give(asking, Cut(1, ((1, 1),))).status is Status.OK


def test_a_job_that_the_cut_does_not_name_must_not_have_begun() -> None:
    asking = Asking(SSP(1))
    assert give(asking, Cut(1, ())).status is Status.OK
    asking.push(0, 1, 1, 0, [1])
    answer = give(asking, Cut(2, ((7, 4),)))
    assert (answer.status, answer.value) == (Status.REFUSED, 1)
    assert b"not named" in answer.text


def test_a_cut_is_not_below_the_start_of_an_earlier_join() -> None:
    asking = uneven()
    asking.one(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=1)
    asking.one(Kind.JOIN, worker=WorkerId(1, 5, 0), n=2)  # starts at clock 3
    assert give(asking, Cut(3, ((1, 2),))).value == 3


def test_a_repeated_cut_is_answered_the_same_although_another_server_is_named() -> None:
    asking = uneven()
    first = give(asking, Cut(4, ((1, 3),), "s1"))
    assert (first.status, first.text) == (Status.OK, b"s1")
    lsn = asking.shard.lsn
    asking.push(0, 3, 2, 1, [1])
    assert give(asking, Cut(4, ((1, 3),), "s2"))._replace(at=first.at) == first
    assert asking.shard.lsn == lsn + 1
    assert give(asking, Cut(4, ((1, 9),), "s1")).status is Status.REFUSED


def test_a_number_that_was_given_up_or_passed_never_begins() -> None:
    asking = uneven()
    abort(asking, 3)
    for number in (1, 2, 3):
        answer = give(asking, Cut(number, ((1, 5),)))
        assert (answer.status, answer.value) == (Status.REFUSED, 0)
    assert give(asking, Cut(4, ((1, 5),))).status is Status.OK
    assert give(asking, Cut(6, ((1, 5),))).status is Status.OK
    assert give(asking, Cut(4, ((1, 5),))).status is Status.REFUSED
    assert give(asking, Cut(5, ((1, 5),))).status is Status.REFUSED
    abort(asking, 6)
    assert asking.shard.cuts == Cuts(6)
    assert give(asking, Cut(6, ((1, 5),))).status is Status.REFUSED


def abort(asking: Asking, number: int) -> None:
    assert asking.one(Kind.ABORT, n=number).status is Status.OK


def test_an_abort_of_what_is_passed_or_given_up_changes_nothing() -> None:
    asking = uneven()
    give(asking, Cut(4, ((1, 5),)))
    lsn, digest = asking.shard.lsn, asking.shard.digest()
    abort(asking, 3)
    assert (asking.shard.lsn, asking.shard.digest()) == (lsn, digest)
    abort(asking, 4)
    assert asking.shard.lsn == lsn + 1
    abort(asking, 4)
    assert asking.shard.lsn == lsn + 1
    assert asking.one(Kind.ABORT, n=0).status is Status.REFUSED


def test_a_refused_cut_leaves_the_present_one_alone() -> None:
    asking = uneven()
    give(asking, Cut(4, ((1, 5),)))
    assert give(asking, Cut(5, ((1, 2),))).status is Status.REFUSED
    assert asking.shard.cuts.number == 4


def test_a_cut_that_says_another_number_than_its_command_is_refused() -> None:
    asking = uneven()
    text = Cut(4, ((1, 5),)).to_json().encode()
    assert asking.one(Kind.CUT, n=5, text=text).status is Status.REFUSED
    assert asking.one(Kind.CUT, n=5, text=b"{").status is Status.REFUSED


def test_a_cut_and_its_end_are_in_the_digest() -> None:
    asking = uneven()
    digests = [asking.shard.digest()]
    give(asking, Cut(4, ((1, 5),)))
    digests.append(asking.shard.digest())
    asking.shard.cuts.awaited.clear()
    digests.append(asking.shard.digest())
    asking.shard.cuts.give_up(4)
    digests.append(asking.shard.digest())
    assert len(set(digests)) == 4


# -- while a cut is open


def test_it_waits_for_the_live_ranks_of_its_jobs() -> None:
    asking = uneven()
    give(asking, Cut(1, ((1, 3), (9, 1))))
    cuts, jobs = asking.shard.cuts, asking.shard.jobs
    assert "rank 0 (at clock 3), 1 (at clock 1)" in cuts.waits_for(jobs)
    asking.tick(0, 3, prev=1)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 1, 1), n=2)
    assert cuts.awaited == {9}
    assert "job 9 is not open" in cuts.waits_for(jobs)
    asking.open_job(9, SSP(1), 1)
    asking.fence(0, 1, job=9)
    assert "rank 0 (at clock 1)" in cuts.waits_for(jobs)
    asking.one(Kind.TICK, worker=WorkerId(9, 0, 1), clock=1)
    assert not cuts.awaited
    assert cuts.waits_for(jobs) == ""


def test_a_job_that_is_removed_is_not_waited_for() -> None:
    asking = uneven()
    give(asking, Cut(1, ((1, 3),), hold=True))
    asking.one(Kind.CLOSE_JOB, worker=WorkerId(1, 0, 0))
    assert not asking.shard.cuts.awaited


def test_pushes_behind_a_cut_that_holds_wait_until_it_is_reached() -> None:
    asking = uneven()
    give(asking, Cut(1, ((1, 3),), hold=True))
    assert asking.push(0, 3, 2, 1, [1]).status is Status.OK
    asking.tick(0, 3, prev=2)
    answer = asking.push(0, 4, 1, 0, [1])
    assert answer.status is Status.BUSY
    assert b"cut 1" in answer.text
    assert b"rank 1 (at clock 1)" in answer.text
    for clock in (1, 2, 3):
        assert asking.push(1, clock, 1, 0, [1]).status is Status.OK
        asking.tick(1, clock, prev=1)
    assert asking.push(0, 4, 1, 0, [1]).status is Status.OK
    assert asking.push(0, 4, 1, 0, [1]).status is Status.OK  # a repeat
    assert asking.values([1]) == [6]


def test_pushes_of_jobs_that_are_not_named_wait_too() -> None:
    asking = uneven()
    give(asking, Cut(1, ((1, 3),), hold=True))
    asking.open_job(2, ASP(), 1)
    asking.fence(0, 1, job=2)
    assert asking.push(0, 1, 1, 0, [1], table=2, job=2).status is Status.BUSY
    abort(asking, 1)
    assert asking.push(0, 1, 1, 0, [1], table=2, job=2).status is Status.OK


@pytest.mark.parametrize("mode", [BSP(), SSP(2), ASP()])
def test_who_joins_after_an_open_cut_starts_above_its_clock(mode: Any) -> None:
    asking = Asking(mode)
    give(asking, Cut(1, ((1, 4),)))
    join = {"worker": WorkerId(1, 7, 0), "n": 2}
    assert asking.one(Kind.JOIN, **join).value == 5
    assert asking.one(Kind.JOIN, **join).value == 5
    assert asking.shard.jobs[1].ledger.ranks[7].started == 5
    assert asking.one(Kind.JOIN, worker=WorkerId(1, 0, 0), n=3).value == 1  # it is live already
    assert asking.shard.cuts.awaited == {1}


def test_who_joins_where_nobody_is_live_lets_held_clocks_be_applied() -> None:
    asking = Asking(BSP())
    asking.push(0, 1, 1, 0, [1])
    asking.tick(0, 1, prev=1)
    asking.push(0, 2, 1, 0, [1])
    for rank in (0, 1):
        asking.one(Kind.LEAVE, worker=WorkerId(1, rank, 1), n=rank + 1)
    give(asking, Cut(3, ((1, 4),)))
    assert asking.one(Kind.JOIN, worker=WorkerId(1, 7, 0), n=4).value == 5
    job = asking.shard.jobs[1]
    assert job.barrier.applied == job.ledger.slowest() == 4
    assert asking.values([1]) == [2]


def test_a_cut_that_is_far_away_costs_nothing() -> None:
    asking = Asking(BSP(), ranks=1)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 0, 1), n=1)
    give(asking, Cut(2, ((1, CLOCK_MAX),)))
    assert asking.one(Kind.JOIN, worker=WorkerId(1, 7, 0), n=3).value == CLOCK_MAX + 1
    assert asking.shard.jobs[1].barrier.applied == CLOCK_MAX


# -- where a rank stands


def test_where_a_rank_stands_is_told_without_an_entry() -> None:
    asking = uneven()
    lsn, digest = asking.shard.lsn, asking.shard.digest()
    answer = asking.shard.stand(WorkerId(1, 0, 99))
    assert (answer.status, answer.value, answer.text) == (Status.OK, 2, b"at 2")
    assert answer == asking.fence(0, 1)
    assert asking.shard.stand(WorkerId(1, 5, 1)).status is Status.UNKNOWN
    assert asking.shard.stand(WorkerId(2, 0, 1)).status is Status.UNKNOWN
    assert (asking.shard.lsn, asking.shard.digest()) == (lsn, digest)
    asking.one(Kind.LEAVE, worker=WorkerId(1, 0, 1), n=1)
    assert asking.shard.stand(WorkerId(1, 0, 1)).status is Status.LEFT


def test_where_a_rank_stands_is_no_entry_of_a_log() -> None:
    asking = uneven()
    answer = asking.shard.check(Command(Kind.STAND, WorkerId(1, 0, 1)))
    assert answer is not None
    assert answer.status is Status.REFUSED

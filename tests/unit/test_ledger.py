"""The ledger of one job on one shard: each rule of exactly-once, clocks and takeovers."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec
from resilient_ps.guards import Guards
from resilient_ps.ids import PushId, WorkerId
from resilient_ps.ledger import ACCEPT, REPEAT, JobLedger, Verdict, roll
from resilient_ps.messages import Status

ME = WorkerId(1, 0, 1)
HEIR = WorkerId(1, 0, 2)


def ledger(
    ranks: int = 2, mode: Consistency | None = None, guards: Guards | None = None
) -> JobLedger:
    """A ledger whose ranks have been taken by their first processes."""
    made = JobLedger(JobSpec(1, "job", ranks, mode or SSP(1)), guards or Guards())
    for rank in range(ranks):
        made.record_fence(WorkerId(1, rank, 1))
    return made


def push(
    held: JobLedger, clock: int, n: int, prev: int, *, worker: WorkerId = ME, digest: int = 7
) -> Verdict:
    """Admit a push and, as a shard does, record what is to be recorded."""
    verdict = held.check_push(worker, PushId(clock, n, prev), digest)
    if verdict is ACCEPT:
        held.record_push(worker.rank, PushId(clock, n, prev), digest)
    elif verdict.replay:
        held.record_replay(worker.rank, PushId(clock, n, prev), digest)
    return verdict


def tick(
    held: JobLedger, clock: int, prev: int, *, worker: WorkerId = ME, settled: bool = False
) -> Verdict:
    verdict = held.check_tick(worker, PushId(clock, 0, prev), settled=settled)
    if verdict is ACCEPT:
        held.record_tick(worker.rank, clock, b"cursor %d" % clock)
    return verdict


def fence(held: JobLedger, worker: WorkerId) -> Verdict:
    verdict = held.check_fence(worker)
    if verdict is ACCEPT:
        held.record_fence(worker)
    return verdict


# -- pushes


def test_a_new_push_is_accepted_and_its_repeat_is_only_answered() -> None:
    held = ledger()
    assert push(held, 1, 1, 0) is ACCEPT
    assert push(held, 1, 1, 0) is REPEAT
    assert push(held, 1, 2, 1) is ACCEPT
    assert push(held, 1, 1, 0) is REPEAT


def test_numbers_may_jump_because_other_shards_have_the_others() -> None:
    held = ledger()
    assert push(held, 1, 3, 0) is ACCEPT
    assert push(held, 1, 10, 3) is ACCEPT


def test_a_push_whose_predecessor_is_missing_is_a_gap_that_names_the_last_one_held() -> None:
    held = ledger()
    push(held, 1, 2, 0)
    assert push(held, 1, 9, 5) == Verdict(Status.GAP, value=2)
    assert push(held, 1, 5, 2) is ACCEPT
    assert push(held, 1, 9, 5) is ACCEPT


@pytest.mark.parametrize("clock", [0, 1, 3, 100])
def test_a_push_of_any_clock_but_the_open_one_is_an_error(clock: int) -> None:
    held = ledger()
    tick(held, 1, 0)
    verdict = push(held, clock, 1, 0)
    assert verdict.status is Status.REFUSED
    assert "clock 2 is open" in verdict.text


@pytest.mark.parametrize(("n", "prev"), [(0, 0), (3, 3), (3, 4)])
def test_a_push_must_have_a_number_above_its_predecessor(n: int, prev: int) -> None:
    assert push(ledger(), 1, n, prev).status is Status.REFUSED


def test_ranks_do_not_share_numbers() -> None:
    held = ledger()
    push(held, 1, 5, 0)
    assert push(held, 1, 1, 0, worker=WorkerId(1, 1, 1)) is ACCEPT


# -- ticks


def test_a_tick_opens_the_next_clock_and_its_repeat_is_only_answered() -> None:
    held = ledger()
    push(held, 1, 4, 0)
    assert tick(held, 1, 4) is ACCEPT
    assert tick(held, 1, 4) is REPEAT
    assert push(held, 2, 1, 0) is ACCEPT
    assert held.ranks[0].cursor == b"cursor 1"


def test_a_tick_behind_a_missing_push_is_a_gap() -> None:
    held = ledger()
    push(held, 1, 2, 0)
    assert tick(held, 1, 3) == Verdict(Status.GAP, value=2)


def test_a_tick_of_a_clock_that_is_not_open_is_an_error() -> None:
    held = ledger()
    assert tick(held, 2, 0).status is Status.REFUSED


def test_the_slowest_live_rank_counts() -> None:
    held = ledger(3)
    other = WorkerId(1, 1, 1)
    tick(held, 1, 0)
    tick(held, 1, 0, worker=other)
    tick(held, 2, 0)
    assert held.slowest() == 0
    assert held.behind(1) == [2]
    held.record_leave(1, 2)
    assert held.slowest() == 1
    assert held.behind(2) == [1]


# -- takeover


def test_a_fence_takes_the_rank_and_its_repeat_is_only_answered() -> None:
    held = ledger()
    assert fence(held, HEIR) is ACCEPT
    assert fence(held, HEIR) is REPEAT


def test_a_fenced_process_is_refused_everything_and_told_by_whom() -> None:
    held = ledger(mode=BSP())
    fence(held, WorkerId(1, 0, 5))
    fenced = Verdict(Status.FENCED, value=5)
    assert push(held, 1, 1, 0) == fenced
    assert tick(held, 1, 0) == fenced
    assert held.check_redo(ME, 1) == fenced
    assert held.check_worker(ME) == fenced
    assert held.check_fence(ME) == fenced


def test_a_process_that_has_not_fenced_is_refused() -> None:
    held = ledger()
    verdict = push(held, 1, 1, 0, worker=HEIR)
    assert verdict.status is Status.REFUSED
    assert "has not fenced" in verdict.text


def test_a_settled_tick_needs_no_predecessor() -> None:
    held = ledger()
    push(held, 1, 3, 0)
    fence(held, HEIR)
    assert tick(held, 1, 0, worker=HEIR, settled=True) is ACCEPT
    assert push(held, 2, 1, 0, worker=HEIR) is ACCEPT


def test_a_redo_empties_the_open_clock_once_per_incarnation() -> None:
    held = ledger(mode=BSP())
    push(held, 1, 2, 0)
    fence(held, HEIR)
    assert held.check_redo(HEIR, 1) is ACCEPT
    held.record_redo(HEIR)
    assert push(held, 1, 1, 0, worker=HEIR) is ACCEPT
    assert held.check_redo(HEIR, 1) is REPEAT
    assert push(held, 1, 1, 0, worker=HEIR) is REPEAT
    third = WorkerId(1, 0, 3)
    fence(held, third)
    assert held.check_redo(third, 1) is ACCEPT


def test_a_redo_of_another_clock_is_an_error() -> None:
    held = ledger(mode=BSP())
    assert held.check_redo(ME, 2).status is Status.REFUSED


def test_the_successor_under_ssp_skips_what_is_held_and_goes_on_behind_it() -> None:
    held = ledger()
    push(held, 1, 1, 0, digest=11)
    push(held, 1, 4, 1, digest=44)
    fence(held, HEIR)
    first = push(held, 1, 1, 0, worker=HEIR, digest=11)
    assert first.repeat
    assert first.replay
    assert push(held, 1, 1, 0, worker=HEIR, digest=11) is REPEAT  # its retry
    assert push(held, 1, 4, 1, worker=HEIR, digest=44).repeat
    assert push(held, 1, 6, 4, worker=HEIR, digest=66) is ACCEPT
    assert tick(held, 1, 6, worker=HEIR) is ACCEPT


def test_other_keys_in_a_repeated_clock_are_not_repeatable() -> None:
    held = ledger()
    push(held, 1, 1, 0, digest=11)
    push(held, 1, 4, 1, digest=44)
    fence(held, HEIR)
    push(held, 1, 1, 0, worker=HEIR, digest=12)
    verdict = push(held, 1, 4, 1, worker=HEIR, digest=44)
    assert verdict.status is Status.NOT_REPEATABLE
    assert "rank 0 repeats clock 1 differently" in verdict.text


def test_a_push_that_is_left_out_of_a_repeated_clock_is_not_repeatable() -> None:
    held = ledger()
    push(held, 1, 1, 0)
    push(held, 1, 2, 1)
    fence(held, HEIR)
    push(held, 1, 1, 0, worker=HEIR)
    assert push(held, 1, 3, 1, worker=HEIR).status is Status.NOT_REPEATABLE
    assert tick(held, 1, 1, worker=HEIR).status is Status.NOT_REPEATABLE


def test_a_successor_that_ticks_without_repeating_is_not_repeatable() -> None:
    held = ledger()
    push(held, 1, 1, 0)
    fence(held, HEIR)
    assert tick(held, 1, 0, worker=HEIR).status is Status.NOT_REPEATABLE


def test_a_repeated_clock_is_followed_without_gaps() -> None:
    held = ledger()
    for n in (1, 2, 3):
        push(held, 1, n, n - 1, digest=n)
    fence(held, HEIR)
    assert push(held, 1, 2, 1, worker=HEIR, digest=2) == Verdict(Status.GAP, value=0)
    assert push(held, 1, 4, 3, worker=HEIR, digest=4) == Verdict(Status.GAP, value=0)
    for n in (1, 2, 3):
        assert push(held, 1, n, n - 1, worker=HEIR, digest=n).repeat
    assert push(held, 1, 4, 3, worker=HEIR, digest=4) is ACCEPT


def test_a_second_successor_repeats_from_the_beginning() -> None:
    held = ledger()
    push(held, 1, 1, 0, digest=1)
    push(held, 1, 2, 1, digest=2)
    fence(held, HEIR)
    push(held, 1, 1, 0, worker=HEIR, digest=1)
    third = WorkerId(1, 0, 3)
    fence(held, third)
    for n in (1, 2):
        assert push(held, 1, n, n - 1, worker=third, digest=n).replay
    assert push(held, 1, 3, 2, worker=third, digest=3) is ACCEPT


# -- join and leave


def test_a_new_rank_begins_at_the_lowest_safe_clock() -> None:
    held = ledger()
    for rank in (0, 1):
        for clock in (1, 2):
            tick(held, clock, 0, worker=WorkerId(1, rank, 1))
    tick(held, 3, 0)
    assert held.record_join(1, 9) == 3
    assert held.slowest() == 2
    assert held.ranks[9].ticked == 2
    assert held.live_ranks() == [0, 1, 9]


def test_a_join_of_a_live_rank_leaves_its_clock_and_its_pushes_alone() -> None:
    held = ledger()
    tick(held, 1, 0)
    push(held, 2, 5, 0)
    assert held.record_join(1, 0) == 2
    assert push(held, 2, 5, 0) is REPEAT


def test_a_rank_that_left_far_ahead_joins_behind_its_own_last_clock() -> None:
    held = ledger()
    for clock in (1, 2, 3):
        tick(held, clock, 0)
    held.record_leave(1, 0)
    assert held.record_join(2, 0) == 4
    assert held.ranks[0].cursor == b"cursor 3"
    assert held.slowest() == 0


def test_a_rank_that_left_long_ago_joins_at_the_lowest_safe_clock() -> None:
    held = ledger()
    tick(held, 1, 0)
    held.record_leave(1, 0)
    for clock in (1, 2, 3):
        tick(held, clock, 0, worker=WorkerId(1, 1, 1))
    assert held.record_join(2, 0) == 4
    assert held.ranks[0].cursor == b"cursor 1"
    assert fence(held, ME) is REPEAT  # numbers of earlier processes are remembered
    assert fence(held, WorkerId(1, 0, 0)).status is Status.FENCED


def test_a_rank_that_left_is_refused_and_so_is_its_fence() -> None:
    held = ledger()
    held.record_leave(1, 0)
    assert push(held, 1, 1, 0).status is Status.LEFT
    assert tick(held, 1, 0).status is Status.LEFT
    assert fence(held, HEIR).status is Status.LEFT


def test_a_rank_that_never_joined_is_unknown() -> None:
    held = ledger()
    stranger = WorkerId(1, 7, 1)
    assert push(held, 1, 1, 0, worker=stranger).status is Status.UNKNOWN
    assert fence(held, stranger).status is Status.UNKNOWN


def test_intents_are_executed_in_the_order_of_their_numbers() -> None:
    held = ledger()
    held.record_join(4, 5)
    assert [held.executed(n) for n in (0, 1, 4, 5)] == [False, True, True, False]


def test_a_clock_is_made_of_the_ranks_that_took_part_in_it() -> None:
    held = ledger(3)
    tick(held, 1, 0)
    held.record_leave(1, 0)
    assert held.taking_part(1) == 3
    assert held.taking_part(2) == 2
    for rank in (1, 2):
        tick(held, 1, 0, worker=WorkerId(1, rank, 1))
    held.record_join(2, 3)
    assert held.taking_part(1) == 3
    assert held.taking_part(2) == 3


def test_when_all_have_left_the_largest_tick_counts() -> None:
    held = ledger()
    for clock in (1, 2):
        tick(held, clock, 0)
    held.record_leave(1, 1)
    held.record_leave(2, 0)
    assert held.slowest() == 2
    assert held.record_join(3, 4) == 3


def test_memory_does_not_grow_with_pushes() -> None:
    held = ledger(1)

    def nbytes() -> int:
        record = held.ranks[0]
        return sum(sys.getsizeof(getattr(record, name)) for name in record.__slots__)

    push(held, 1, 1, 0)
    before = nbytes()
    for n in range(2, 3000):
        push(held, 1, n, n - 1, digest=n)
    assert nbytes() <= before + 64
    assert len(held.ranks) == 1


def test_without_its_memory_of_pushes_a_ledger_takes_a_repeat_for_new() -> None:
    """What the negative control of replicated ledgers is about."""
    held = ledger()
    push(held, 1, 1, 0)
    tick(held, 1, 0, worker=WorkerId(1, 1, 1))
    held.forget_pushes()
    assert push(held, 1, 1, 0) is ACCEPT
    assert held.ranks[1].ticked == 1


# -- properties


def test_the_digest_depends_on_order_number_and_content() -> None:
    both = roll(roll(0, 1, 10), 2, 20)
    assert both != roll(roll(0, 1, 20), 2, 10)
    assert both != roll(roll(0, 1, 10), 3, 20)
    assert 0 <= both < 1 << 64


deliveries = st.lists(st.integers(0, 5), max_size=60)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), deliveries)
def test_any_delivery_order_applies_each_push_once_and_in_order(
    steps: list[int], order: list[int]
) -> None:
    """One worker's stream: its pushes to this shard, repeated and reordered at will."""
    held, applied = ledger(), []
    numbers = [sum(steps[: i + 1]) for i in range(len(steps))]
    stream = [(n, ([0, *numbers])[i]) for i, n in enumerate(numbers)]

    def deliver(index: int) -> None:
        n, prev = stream[index % len(stream)]
        verdict = push(held, 1, n, prev, digest=n)
        if verdict is ACCEPT:
            applied.append(n)
        assert verdict.status in (Status.OK, Status.GAP)

    for index in order:
        deliver(index)
    assert applied == numbers[: len(applied)]
    for index in range(len(stream)):  # the client goes on until all are acknowledged
        deliver(index)
    assert applied == numbers
    assert tick(held, 1, numbers[-1]) is ACCEPT


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=40))
def test_any_history_of_takeovers_applies_each_push_once(
    lives: list[tuple[int, int]],
) -> None:
    """Each life repeats the clock from its beginning, comes some way, and dies."""
    held, applied = JobLedger(JobSpec(1, "job", 1, ASP())), []
    incarnation = 0
    for skip, reach in [*lives, (0, 6)]:
        incarnation += 1
        worker = WorkerId(1, 0, incarnation)
        fence(held, worker)
        for n in range(1, reach + 1):
            for again in range(1 + (n + skip) % 2):  # some are sent twice
                verdict = push(held, 1, n, n - 1, worker=worker, digest=n)
                assert verdict.status is Status.OK
                assert verdict.repeat or again == 0
                if verdict is ACCEPT:
                    applied.append(n)
    assert applied == [1, 2, 3, 4, 5, 6]
    assert tick(held, 1, 6, worker=WorkerId(1, 0, incarnation)) is ACCEPT

"""Data shards and consistent cuts: who goes back to a cut runs every batch exactly once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.coordinator.data_shards import (
    MAX_ENDED,
    NO_CUT,
    DataShards,
    Grant,
    Returned,
)
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.errors import BadInput

KEY = ClusterKeys("prod").data_shards("job")
FRESH = DataShards(job_id=1, dataset="rows", per_epoch=4)
BATCHES = 3  # of each data shard
RANKS = 3
EPOCHS = 2


@dataclass
class Rank:
    """What a rank knows: its last tick, what that said, and what it has in hand."""

    ticked: int = 0
    cursor: dict[str, int] | None = None
    history: list[dict[str, int] | None] = field(default_factory=lambda: [None])

    def tick(self, cursor: dict[str, int] | None) -> None:
        self.ticked += 1
        self.cursor = cursor
        self.history.append(cursor)

    def next_batch(self, grant: Grant) -> int:
        """By the rules: behind the cursor if it is of this grant, else at the grant's start."""
        if self.cursor is not None and self.cursor["grant"] == grant.grant:
            return self.cursor["data"] + 1
        return json.loads(grant.start) + 1 if grant.start else 0


class Job:
    """Ranks that work on data shards as `worker.batches` does; `done`: (number, batch) and when."""

    def __init__(self, record: DataShards, ranks: dict[int, Rank]) -> None:
        self.record = record
        self.ranks = ranks
        self.done: list[tuple[tuple[int, int], int]] = []

    def step(self, rank: int, action: str) -> None:
        grant, me = self.record.held(rank), self.ranks[rank]
        if action == "idle":
            me.tick(me.cursor)
        elif grant is None:
            self.record, _ = self.record.take(rank, EPOCHS, me.ticked)
        elif me.next_batch(grant) >= BATCHES:
            self.record = self.record.finish(grant, me.ticked)
        elif action == "give back":
            at = me.next_batch(grant) - 1
            start = json.dumps(at) if at >= 0 else ""
            self.record = self.record.give_back(grant, start, me.ticked)
        elif me.ticked < grant.after:
            me.tick(me.cursor)
        else:
            batch = me.next_batch(grant)
            me.tick({"grant": grant.grant, "data": batch})
            self.done.append(((grant.number, batch), me.ticked))

    def run_out(self) -> None:
        while self.record.following < 4 * EPOCHS or self.record.doing or self.record.returned:
            for rank in self.ranks:
                self.step(rank, "work")


def resumed(clock: int, cursor: dict[str, int] | None) -> Rank:
    """A rank as a checkpoint of this clock has it."""
    history: list[dict[str, int] | None] = [None] * clock
    return Rank(clock, cursor, [*history, cursor])


STEPS = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1), st.sampled_from(["work", "work", "work", "idle", "give back"])
    ),
    max_size=80,
)


@given(before=STEPS, margin=st.integers(0, 4), after=STEPS, later=STEPS)
@settings(deadline=None, max_examples=100)
def test_who_goes_back_to_a_cut_runs_every_batch_exactly_once(
    before: list[tuple[int, str]],
    margin: int,
    after: list[tuple[int, str]],
    later: list[tuple[int, str]],
) -> None:
    job = Job(FRESH, {rank: Rank() for rank in range(RANKS)})
    for rank, action in before:
        job.step(rank, action)
    clock = max(rank.ticked for rank in job.ranks.values()) + margin
    job.record = job.record.at_cut(clock)
    for rank, action in after:
        job.step(rank, action)
    for number, rank in job.ranks.items():  # the cut is reached
        while rank.ticked < clock:
            job.step(number, "work" if job.record.held(number) else "idle")
    cursors = {number: rank.history[clock] for number, rank in job.ranks.items()}
    cut = job.record.as_of(clock, cursors)
    cut = DataShards.from_bytes(cut.to_bytes(), KEY)
    counted = Counter(batch for batch, at in job.done if at <= clock)

    again = Job(cut, {number: resumed(clock, cursor) for number, cursor in cursors.items()})
    for rank, action in later:
        again.step(rank, action)
    again.run_out()
    counted.update(batch for batch, _ in again.done)
    everything = [(number, batch) for number in range(4 * EPOCHS) for batch in range(BATCHES)]
    assert counted == Counter(everything)


def test_what_was_not_begun_at_the_cut_is_as_if_nobody_had_had_it() -> None:
    record = FRESH.at_cut(5)
    record, first = record.take(0, 1, clock=4)
    record, second = record.take(1, 1, clock=4)
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    record = record.finish(second, clock=9)
    kept = record.as_of(5, {0: {"grant": first.grant, "data": 0}, 1: None})
    assert kept.doing == (first,)
    assert (kept.following, kept.returned) == (1, ())


def test_a_hole_among_those_that_were_begun_is_to_be_taken_again() -> None:
    record = FRESH.at_cut(5)
    record, first = record.take(0, 1, clock=4)
    record, second = record.take(1, 1, clock=4)
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    kept = record.as_of(5, {0: None, 1: {"grant": second.grant, "data": 0}})
    assert (kept.doing, kept.returned, kept.following) == ((second,), (Returned(0),), 2)


def test_what_ended_before_the_cut_is_not_kept() -> None:
    record, grant = FRESH.at_cut(5).take(0, 1, clock=2)
    assert isinstance(grant, Grant)
    record = record.finish(grant, clock=5)
    assert record.ended == ()
    assert record.as_of(5, {0: {"grant": grant.grant, "data": 2}}).done(0) == 1


def test_without_a_cut_nothing_is_kept_and_a_later_cut_forgets_what_it_has() -> None:
    record, grant = FRESH.take(0, 1, clock=2)
    assert isinstance(grant, Grant)
    assert record.finish(grant, clock=9).ended == ()
    kept = record.at_cut(5).finish(grant, clock=9)
    assert [each.clock for each in kept.ended] == [9]
    assert kept.at_cut(8).ended == kept.ended
    assert kept.at_cut(9).ended == kept.at_cut(NO_CUT).ended == ()


def test_a_cut_whose_history_was_not_kept_is_of_no_use() -> None:
    with pytest.raises(BadInput, match="was not kept: the cut has to be made again"):
        FRESH.as_of(5, {})
    with pytest.raises(BadInput, match="was not kept"):
        FRESH.at_cut(6).as_of(5, {})


def test_history_is_bounded() -> None:
    record = replace(FRESH, per_epoch=10_000).at_cut(0)
    for clock in range(1, MAX_ENDED + 2):
        record, grant = record.take(0, 1, clock)
        assert isinstance(grant, Grant)
        record = record.finish(grant, clock)
        if clock % 32 == 0 or clock >= MAX_ENDED - 1:
            assert DataShards.from_bytes(record.to_bytes(), KEY) == record
    assert (record.cut, record.ended) == (NO_CUT, ())

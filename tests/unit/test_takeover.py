"""Takeovers, joins and leaves as scripts: what they ask of which shards, and where they end.

Here scripts run against real shards, one step at a time, and their processes die in between.
"""

from __future__ import annotations

import numpy as np
import pytest
from routings import routing
from shard_asking import tell

from resilient_ps.calls import Calls
from resilient_ps.consistency import BSP, SSP, Consistency, JobSpec, Tasks
from resilient_ps.ids import NOWHERE, READER, WorkerId
from resilient_ps.machine import Send
from resilient_ps.messages import NO_KEYS, Answer, Command, Kind, Part, PartAnswer, Request, Status
from resilient_ps.scripts import RunningScript
from resilient_ps.shard import Shard
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.takeover import Script, Settled, Step, join, leave, start_worker, take_over

SHARDS = (0, 1, 2)
NO_VALUES = np.empty(0, np.int64)


def answers(*ticked: int, begun: tuple[int, ...] = ()) -> dict[int, PartAnswer]:
    """Answers to a fence: the last tick on each shard, with its cursor. `begun`: shards that hold
    something of the clock behind it."""
    return {
        shard: PartAnswer(
            shard, Status.OK, value=tick, count=int(shard in begun), text=b"c%d" % tick
        )
        for shard, tick in enumerate(ticked)
    }


def steps_of(script: Script, *given: dict[int, PartAnswer]) -> tuple[list[list[Step]], Settled]:
    """All steps of a script that gets these answers, and its result."""
    steps = [next(script)]
    for each in given:
        try:
            steps.append(script.send(each))
        except StopIteration as end:
            return steps, end.value
    raise AssertionError(f"the script goes on: {steps}")


# -- the scripts themselves

ME = WorkerId(1, 4, 9)


def test_a_takeover_fences_all_shards_then_empties_those_that_hold_something_under_bsp() -> None:
    fenced = answers(5, 5, 5, begun=(0, 2))
    steps, settled = steps_of(take_over(ME, SHARDS, redo=True), fenced, {})
    assert steps == [[Step(Kind.FENCE, SHARDS, ME)], [Step(Kind.REDO, (0, 2), ME, 6)]]
    assert settled == Settled(5, b"c5")


def test_a_takeover_where_nothing_was_begun_is_one_round_trip() -> None:
    steps, settled = steps_of(take_over(ME, SHARDS, redo=True), answers(5, 5, 5))
    assert steps == [[Step(Kind.FENCE, SHARDS, ME)]]
    assert settled == Settled(5, b"c5")


def test_what_is_held_of_a_clock_that_another_shard_has_ended_is_ticked_not_dropped() -> None:
    fenced = answers(4, 5, 5, begun=(0,))
    steps, settled = steps_of(take_over(ME, SHARDS, redo=True), fenced, {})
    assert steps[1:] == [[Step(Kind.TICK, (0,), ME, 5, settled=True, text=b"c5")]]
    assert settled == Settled(5, b"c5")


def test_a_takeover_under_ssp_repeats_nothing() -> None:
    steps, settled = steps_of(take_over(ME, SHARDS, redo=False), answers(0, 0, 0))
    assert steps == [[Step(Kind.FENCE, SHARDS, ME)]]
    assert settled == Settled(0, b"c0")


def test_ticks_that_some_shards_miss_are_made_up_for_with_the_last_cursor() -> None:
    steps, settled = steps_of(take_over(ME, SHARDS, redo=False), answers(4, 5, 3), {}, {})
    assert steps[1:] == [
        [Step(Kind.TICK, (2,), ME, 4, settled=True, text=b"c5")],
        [Step(Kind.TICK, (0, 2), ME, 5, settled=True, text=b"c5")],
    ]
    assert settled == Settled(5, b"c5")


def test_a_worker_first_makes_its_job_known() -> None:
    steps, settled = steps_of(start_worker(ME, SHARDS, b"spec", redo=False), {}, answers(1, 1, 1))
    assert steps[0] == [Step(Kind.OPEN_JOB, SHARDS, ME, text=b"spec")]
    assert settled.ticked == 1


def test_a_leave_follows_the_settled_tick_and_all_its_steps_carry_its_number() -> None:
    fenced = answers(2, 3, 3, begun=(0, 1))
    steps, settled = steps_of(leave(7, ME, SHARDS, redo=True), fenced, {}, {}, {})
    flat = [step for group in steps for step in group]
    assert [step.kind for step in flat] == [Kind.FENCE, Kind.TICK, Kind.REDO, Kind.LEAVE]
    assert {step.n for step in flat} == {7}
    assert settled.ticked == 3


def test_a_join_takes_the_highest_of_the_lowest_safe_clocks() -> None:
    steps, settled = steps_of(join(8, ME, SHARDS), answers(4, 6, 5))
    assert steps == [[Step(Kind.JOIN, SHARDS, ME, n=8)]]
    assert settled.ticked == 5


# -- scripts on shards


class Group:
    """Three shards behind one server; requests are carried to them by hand."""

    def __init__(self, mode: Consistency) -> None:
        self.shards = [Shard(number, 3) for number in SHARDS]
        self.job = JobSpec(1, "job", 1, mode)
        self.redo = self.job.holds_pushes
        self.ask(Kind.OPEN_JOB, SHARDS, READER._replace(job=1), text=self.job.to_json().encode())
        spec = SparseSpec("t", 1, "int64", Sum()).to_json().encode()
        self.ask(Kind.OPEN_TABLE, SHARDS, table=1, text=spec)

    def carry(self, request: Request) -> Answer:
        """Every part to its shard."""
        parts = []
        for part in request.parts:
            shard = self.shards[part.shard]
            keys = request.keys if part.count else NO_KEYS
            values = request.values[0] if part.count else NO_VALUES
            command = Command(
                request.kind, request.worker, request.clock, request.n, part.prev, request.table,
                request.rate, request.settled, request.text, keys, values,
            )  # fmt: skip
            parts.append(tell(shard, command))
        return Answer(request.request, tuple(parts))

    def ask(self, kind: Kind, shards: tuple[int, ...], worker: WorkerId = READER, **more) -> Answer:
        parts = tuple(Part(shard) for shard in shards)
        return self.carry(Request(kind, 1, parts, worker=worker, **more))

    def push(self, worker: WorkerId, shard: int, clock: int, n: int, prev: int) -> Status:
        keys, values = np.array([n], np.uint64), np.ones(1, np.int64)
        part = Part(shard, NOWHERE, prev, 1, 1)
        request = Request(
            Kind.PUSH, 1, (part,), worker=worker, clock=clock, n=n, table=1, keys=keys,
            values=(values,),
        )  # fmt: skip
        return self.carry(request).parts[0].status

    def tick(self, worker: WorkerId, shards: tuple[int, ...], clock: int, prev: int) -> None:
        parts = tuple(Part(shard, NOWHERE, prev) for shard in shards)
        request = Request(Kind.TICK, 1, parts, worker=worker, clock=clock, text=b"c%d" % clock)
        assert {part.status for part in self.carry(request).parts} == {Status.OK}

    def run(self, script: Script, *, dies_after: int = 1000) -> RunningScript:
        """Run a script; its process dies after so many messages, all to one shard each."""
        calls = Calls(routing("s1 s2 s3", alive="s1 s2 s3"), b"/")
        running = RunningScript(script, calls)
        todo = running.start(0)
        while todo and dies_after > 0:
            send = todo.pop(0)
            if not isinstance(send, Send):
                continue
            dies_after -= 1
            assert isinstance(send.message, Request)
            call, more = calls.on_answer(self.carry(send.message), 0)
            todo += more
            if call is not None:
                todo += running.on_done(call, 0)
        return running

    def take_over(self, incarnation: int, *, dies_after: int = 1000) -> RunningScript:
        worker = WorkerId(1, 0, incarnation)
        return self.run(take_over(worker, SHARDS, redo=self.redo), dies_after=dies_after)

    def held(self) -> list[list[int]]:
        """What each shard holds of keys 0 to 5."""
        keys = np.arange(6, dtype=np.uint64)
        return [shard.tables[1].pull(keys).tolist() for shard in self.shards]


def half_done(mode: Consistency) -> Group:
    """A process died: clock 1 is ticked on shard 0 only. Clock 1 is whole on all shards."""
    group = Group(mode)
    first = WorkerId(1, 0, 1)
    group.take_over(1)
    for shard in SHARDS:
        group.push(first, shard, 1, shard + 1, 0)
    group.tick(first, (0,), 1, prev=1)
    return group


@pytest.mark.parametrize("mode", [BSP(), SSP(1), Tasks()], ids=str)
def test_a_tick_on_one_shard_proves_the_clock_and_is_made_up_for_on_the_others(
    mode: Consistency,
) -> None:
    group = half_done(mode)
    assert group.take_over(2).result == Settled(1, b"c1")
    assert group.held() == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize("mode", [BSP(), SSP(1), Tasks()], ids=str)
@pytest.mark.parametrize("dies_after", range(12))
@pytest.mark.parametrize("again_after", [1, 4, 7])
def test_a_successor_of_a_takeover_that_died_anywhere_ends_the_same(
    mode: Consistency, dies_after: int, again_after: int
) -> None:
    group = half_done(mode)
    group.take_over(2, dies_after=dies_after)
    group.take_over(3, dies_after=again_after)
    assert group.take_over(4).result == Settled(1, b"c1")
    heir = WorkerId(1, 0, 4)
    for shard in SHARDS:
        assert group.push(heir, shard, 2, shard + 1, 0) is Status.OK
    group.tick(heir, (0,), 2, prev=1)
    assert group.take_over(5).result == Settled(2, b"c2")
    assert group.held() == [[0, 2, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0], [0, 0, 0, 2, 0, 0]]


def test_a_takeover_that_was_overtaken_fails_and_says_by_whom() -> None:
    group = half_done(SSP(1))
    group.take_over(5)
    running = group.take_over(2)
    assert running.over
    assert running.result is None
    assert running.failure is not None
    assert (running.failure.status, running.failure.value) == (Status.FENCED, 5)


def test_the_step_under_way_is_named() -> None:
    calls = Calls(routing("s1 - s3"), b"/")
    running = RunningScript(take_over(ME, SHARDS, redo=True), calls)
    running.start(0)
    assert running.waits_for().startswith("fence: ")
    assert "shard 1 has no primary yet" in running.waits_for()
    running.abandon()
    assert calls.open == {}
    assert running.waits_for() == "nothing"

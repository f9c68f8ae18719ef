"""A session: what leaves when. Answers are written by hand; one server has both shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from routings import process, routing

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Piece
from resilient_ps.consistency import BSP, SSP, Consistency, JobSpec, Tasks
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, KvAnswered, KvCall, KvFailed, ReadResult
from resilient_ps.coordinator.records import ClusterConfig, Member, ServerRecord, ShardRecord
from resilient_ps.errors import (
    DeadlineExceeded,
    Fenced,
    FixTheCall,
    NotFound,
    NotRepeatable,
    Reopen,
    ResilientPsError,
    Unavailable,
)
from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.machine import Drop, MessageArrived, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import NO_KEYS, Answer, Kind, PartAnswer, Refuse, Request, Status
from resilient_ps.session import Resolved, Session, SessionEffect
from resilient_ps.split import Split
from resilient_ps.takeover import Settled, Step

S1 = "server:s1"
NO_SPLIT = Split(NO_KEYS, {}, 0)
CONFIG = ClusterConfig("c0ffee00", 1, 2, 1, 1, 1, 64, "s1")
SERVER = ServerRecord("s1", process("s1"), "127.0.0.1", 7000, "", "", 1.0, 1, "1", 1, "here")


def led_by(server: ServerRecord, shard: int) -> ShardRecord:
    member = Member(server.server, server.process)
    return ShardRecord(shard, Epoch(1, 2), *member, (member,), ("s1",), 1, "")


class Driven:
    """A session, what it has sent and not been answered, and what it has resolved."""

    def __init__(self, mode: Consistency | None = None, *, opened: bool = True) -> None:
        self.session = Session("c", routing("s1 s1"))
        self.sent: list[Request] = []
        self.resolved: dict[int, Resolved] = {}
        self.effects: list[SessionEffect] = []
        self.lsn = 0
        if mode is not None:
            job = JobSpec(1, "job", 2, mode)
            self.do(self.session.open_worker(0, job, WorkerId(1, 1, 3), 0))
            while opened and self.sent:
                self.answer(value=0)

    def do(self, effects: list[SessionEffect]) -> None:
        self.effects = effects
        for effect in effects:
            if isinstance(effect, Send):
                assert isinstance(effect.message, Request)
                self.sent.append(effect.message)
            elif isinstance(effect, Resolved):
                assert effect.op not in self.resolved
                self.resolved[effect.op] = effect

    def handle(self, event: Any) -> None:
        self.do(self.session.handle(event, 0))

    def push(self, op: int, shards: tuple[int, ...] = (0, 1)) -> None:
        keys = np.arange(len(shards), dtype=np.uint64)
        pieces = {shard: Piece(i, 1) for i, shard in enumerate(shards)}
        self.do(self.session.push(op, 1, Split(keys, pieces, 0), 0))

    def pull(self, op: int) -> None:
        keys = np.arange(2, dtype=np.uint64)
        split = Split(keys, {0: Piece(0, 1), 1: Piece(1, 1)}, 0)
        self.do(self.session.pull(op, 1, split, 0, wait_ns=10))

    def tick(self, op: int, cursor: bytes = b"") -> None:
        self.do(self.session.tick(op, cursor, 0))

    def answer(
        self, index: int = 0, status: Status = Status.OK, shards: Any = None, **fields: Any
    ) -> None:
        """Answer the oldest request that is open (or that of this index)."""
        request = self.sent[index]
        self.lsn += 1
        at = Position(Epoch(1, 1), self.lsn)
        numbers = [part.shard for part in request.parts] if shards is None else shards
        if shards is None:
            del self.sent[index]
        parts = tuple(PartAnswer(shard, status, at, **fields) for shard in numbers)
        self.handle(MessageArrived(S1, Answer(request.request, parts)))

    def kinds(self) -> list[str]:
        """What is under way: kind, clock and number."""
        return [f"{r.kind.name.lower()} {r.clock}.{r.n}" for r in self.sent]

    def error(self, op: int) -> ResilientPsError | None:
        return self.resolved[op].error


# -- opening


def test_opening_a_worker_takes_its_rank_over_and_opens_the_next_clock() -> None:
    driven = Driven(BSP(), opened=False)
    assert driven.kinds() == ["open_job 0.0"]
    driven.answer()
    assert driven.kinds() == ["fence 0.0"]
    driven.answer(value=4, count=1, text=b"cursor")
    assert driven.kinds() == ["redo 5.0"]
    driven.answer()
    assert driven.resolved[0].value == Settled(4, b"cursor")
    assert driven.session.clock == 5
    assert driven.session.cursor == b"cursor"


# -- going from task to task

GRAPH = JobSpec(1, "job", 2, Tasks())


def holder() -> Driven:
    """It does a task of lane 1 with token 3: clock 1."""
    return Driven(Tasks())


def take(driven: Driven, op: int, rank: int, token: int, job: JobSpec = GRAPH) -> None:
    driven.do(driven.session.take(op, job, WorkerId(job.job, rank, token), 0))


def test_the_next_task_costs_one_round_trip_and_numbers_its_pushes_anew() -> None:
    driven = holder()
    driven.push(1)
    driven.answer()
    driven.tick(2)
    driven.answer()
    take(driven, 3, 0, 8)
    assert driven.kinds() == ["fence 0.0"]
    assert driven.sent[0].worker == WorkerId(1, 0, 8)
    driven.answer(value=6, text=b"cursor")
    assert driven.resolved[3].value == Settled(6, b"cursor")
    driven.push(4)
    (push,) = driven.sent
    assert (push.worker, push.clock, push.n) == (WorkerId(1, 0, 8), 7, 1)
    assert [part.prev for part in push.parts] == [0, 0]


def test_a_holder_without_a_task_yet_takes_its_first_one_as_it_takes_others() -> None:
    driven = Driven()
    take(driven, 0, 1, 1)
    assert driven.kinds() == ["open_job 0.0"]
    driven.answer()
    driven.answer(value=0)
    assert driven.resolved[0].value == Settled(0, b"")


def test_what_somebody_else_has_begun_is_forgotten_where_it_is_held() -> None:
    driven = holder()
    take(driven, 1, 0, 2)
    (fence,) = driven.sent
    driven.answer(shards=[0], value=4, count=1)
    driven.answer(shards=[1], value=4)
    driven.sent.remove(fence)
    (redo,) = driven.sent
    assert (redo.kind, redo.clock, [part.shard for part in redo.parts]) == (Kind.REDO, 5, [0])


def test_a_task_that_was_lost_is_dropped_and_the_next_one_taken() -> None:
    driven = holder()
    driven.push(1)
    driven.answer(status=Status.FENCED, value=9)
    assert isinstance(driven.error(1), Fenced)
    assert "lane 1 of graph 'job' was granted to another process (token 9" in str(driven.error(1))
    take(driven, 2, 0, 4)
    driven.answer(value=2)
    assert driven.resolved[2].value == Settled(2, b"")
    driven.push(3)
    assert driven.kinds() == ["push 3.1"]


def test_what_is_under_way_for_the_task_before_ends_when_another_is_taken() -> None:
    driven = holder()
    driven.push(1)
    driven.pull(2)
    driven.tick(3)
    stale = driven.sent[:]
    take(driven, 4, 0, 4)
    assert [type(driven.error(op)) for op in (1, 2, 3)] == [Fenced] * 3
    assert "rank 1 was given up for rank 0" in str(driven.error(1))
    driven.sent = driven.sent[len(stale) :]
    driven.answer(value=2)
    driven.sent = stale
    while driven.sent:  # late answers to what was given up
        driven.answer()
    assert driven.session.clock == 3
    assert driven.session.broken is None


def test_a_takeover_that_came_too_late_leaves_the_job_to_be_announced_again() -> None:
    driven = Driven()
    take(driven, 0, 1, 1)
    driven.do(driven.session.abandon(0, 0))
    assert isinstance(driven.error(0), DeadlineExceeded)
    driven.sent.clear()
    take(driven, 1, 1, 1)
    assert driven.kinds() == ["open_job 0.0"]


def test_after_a_rollback_no_task_is_taken_before_the_session_resumes() -> None:
    driven = holder()
    driven.push(1)
    driven.answer(status=Status.ROLLED_BACK, value=2)
    driven.sent.clear()
    take(driven, 2, 0, 4)
    assert driven.sent == []
    assert 2 not in driven.resolved


def test_the_tick_of_a_task_waits_for_its_pulls() -> None:
    driven = holder()
    driven.pull(1)
    driven.tick(2)
    assert driven.kinds() == ["pull 1.0"]
    driven.answer()
    assert driven.kinds() == ["tick 1.0"]


# -- what breaks an opening


def test_a_takeover_that_is_refused_breaks_the_session() -> None:
    driven = Driven(SSP(1), opened=False)
    driven.answer()
    driven.answer(status=Status.FENCED, value=9)
    assert isinstance(driven.error(0), Fenced)
    assert "incarnation 9, this one is 3" in str(driven.error(0))
    driven.push(1)
    assert driven.error(1) is driven.session.broken


def test_a_server_that_refuses_the_connection_ends_an_opening() -> None:
    driven = Driven(SSP(1), opened=False)
    driven.handle(MessageArrived(S1, Refuse("wrong cluster")))
    assert isinstance(driven.error(0), FixTheCall)
    assert "wrong cluster" in str(driven.error(0))


def test_an_opening_that_is_abandoned_names_its_step() -> None:
    driven = Driven(SSP(1), opened=False)
    driven.do(driven.session.abandon(0, 0))
    assert "taking over rank 1 timed out; open_job: shard 0" in str(driven.error(0))
    driven.answer()
    assert driven.kinds() == []


# -- order of writes


def test_pushes_are_numbered_over_all_shards_and_name_their_predecessor_on_each() -> None:
    driven = Driven(SSP(1))
    driven.push(1, (0,))
    driven.push(2, (1,))
    driven.push(3, (0, 1))
    driven.tick(4)
    for _ in range(3):
        driven.answer()
    prevs = [[part.prev for part in request.parts] for request in driven.sent]
    assert prevs == [[3, 3]]
    driven.answer()
    driven.push(5, (0, 1))
    (request,) = driven.sent
    assert (request.clock, request.n, [part.prev for part in request.parts]) == (2, 1, [0, 0])


def test_pushes_of_a_clock_do_not_wait_for_each_other() -> None:
    driven = Driven(SSP(1))
    driven.push(1, (0,))
    driven.push(2, (0, 1))
    assert driven.kinds() == ["push 1.1", "push 1.2"]
    assert [[p.prev for p in r.parts] for r in driven.sent] == [[0], [1, 0]]


def test_a_tick_goes_out_only_after_every_shard_has_acknowledged_all_pushes() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.push(2)
    driven.tick(3)
    driven.answer(1)
    driven.answer(0, shards=[0])
    assert driven.kinds() == ["push 1.1"]
    driven.answer(0, shards=[1])
    assert driven.kinds()[1:] == ["tick 1.0"]


def test_no_push_goes_out_before_every_shard_has_acknowledged_the_tick() -> None:
    driven = Driven(SSP(1))
    driven.tick(1)
    driven.push(2)
    driven.tick(3)
    driven.answer(0, shards=[1])
    assert driven.kinds() == ["tick 1.0"]
    assert driven.session.unsettled == 3
    driven.answer(0, shards=[0])
    assert driven.kinds()[1:] == ["push 2.1"]
    assert driven.resolved[1].value == 1


def test_pulls_do_not_wait_for_writes() -> None:
    driven = Driven(BSP())
    driven.push(1)
    driven.tick(2)
    driven.pull(3)
    assert driven.kinds() == ["push 1.1", "pull 2.0"]


def test_a_tick_under_bsp_waits_for_the_pulls_of_its_clock() -> None:
    driven = Driven(BSP())
    driven.pull(1)
    driven.tick(2)
    driven.pull(3)
    assert driven.kinds() == ["pull 1.0", "pull 2.0"]
    driven.answer(0)
    assert driven.kinds() == ["pull 2.0", "tick 1.0"]


def test_a_tick_under_bsp_does_not_wait_for_an_abandoned_pull() -> None:
    driven = Driven(BSP())
    driven.pull(1)
    driven.tick(2)
    driven.do(driven.session.abandon(1, 0))
    assert driven.kinds() == ["pull 1.0", "tick 1.0"]


def test_a_tick_under_ssp_does_not_wait_for_pulls() -> None:
    driven = Driven(SSP(1))
    driven.pull(1)
    driven.tick(2)
    assert driven.kinds() == ["pull 1.0", "tick 1.0"]


def test_the_clock_is_open_as_soon_as_the_tick_is_asked_for() -> None:
    driven = Driven(SSP(1))
    driven.tick(1, b"c")
    assert (driven.session.clock, driven.session.cursor) == (2, b"c")


def test_a_change_of_the_learning_rate_is_numbered_like_a_push() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.do(driven.session.tune(2, 1, 0.5, 0))
    assert driven.kinds() == ["push 1.1", "tune 1.2"]
    assert [part.prev for part in driven.sent[1].parts] == [1, 1]


def test_empty_requests_are_over_at_once() -> None:
    driven = Driven(SSP(1))
    driven.do(driven.session.push(1, 1, NO_SPLIT, 0))
    driven.do(driven.session.pull(2, 1, NO_SPLIT, 0, wait_ns=0))
    assert driven.error(1) is driven.error(2) is None
    driven.tick(3)
    assert driven.kinds() == ["tick 1.0"]


# -- broken connections


def test_what_is_sent_again_keeps_its_order_and_identity() -> None:
    driven = Driven(SSP(1))
    driven.push(1, (0,))
    driven.push(2, (0, 1))
    before = [(r.request, r.clock, r.n, p) for r in driven.sent for p in r.parts]
    driven.sent.clear()
    driven.handle(PeerLost(S1))
    assert isinstance(driven.effects[0], SetTimer)
    driven.handle(TimerFired(RESEND_TIMER))
    assert isinstance(driven.effects[0], KvCall)
    driven.handle(KvFailed(ROUTING_REF, Unavailable("no etcd"), unknown=True))
    after = [(r.request, r.clock, r.n, p) for r in driven.sent for p in r.parts]
    assert after == before


def test_an_unreadable_routing_leaves_the_old_one_in_place() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.sent.clear()
    driven.handle(PeerLost(S1))
    driven.handle(TimerFired(RESEND_TIMER))
    bad = KeyValue(ClusterKeys("c").config, b"{", 1, 1, 1)
    driven.handle(KvAnswered(ROUTING_REF, ReadResult((bad,), 1)))
    assert driven.kinds() == ["push 1.1", "push 1.1"]  # a part for each shard


def test_connections_to_processes_that_are_gone_are_left_before_anything_is_sent_again() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.sent.clear()
    driven.handle(PeerLost(S1))
    driven.handle(TimerFired(RESEND_TIMER))
    keys = ClusterKeys("c")
    new = replace(SERVER, process=SERVER.process + 1)
    records = {keys.config: CONFIG, keys.server("s1"): new, keys.shard(0): led_by(new, 0)}
    records[keys.shard(1)] = led_by(new, 1)
    items = [KeyValue(key, record.to_bytes(), 1, 1, 1) for key, record in records.items()]
    driven.handle(KvAnswered(ROUTING_REF, ReadResult(tuple(items), 1)))
    assert driven.effects[0] == Drop(S1, "its process is gone")
    assert driven.kinds() == ["push 1.1", "push 1.1"]  # a part for each shard


def test_older_answers_are_dropped_and_the_shard_is_asked_again() -> None:
    driven = Driven(SSP(1))
    driven.pull(1)
    request = driven.sent[0]
    old = Position(Epoch(1, 1), driven.lsn - 1)
    parts = tuple(PartAnswer(shard, Status.OK, old) for shard in (0, 1))
    driven.handle(MessageArrived(S1, Answer(request.request, parts)))
    assert 1 not in driven.resolved
    assert isinstance(driven.effects[0], SetTimer)


# -- deadlines


def test_an_abandoned_pull_is_forgotten() -> None:
    driven = Driven(SSP(1))
    driven.pull(1)
    driven.do(driven.session.abandon(1, 0))
    assert isinstance(driven.error(1), DeadlineExceeded)
    assert "the pull of clock 1 timed out; shard 0 (epoch 1.1) on s1" in str(driven.error(1))
    driven.answer()
    assert list(driven.resolved) == [0, 1]


def test_an_abandoned_push_is_still_delivered() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    assert isinstance(driven.session.abandon(1, 0)[0], Resolved)
    driven.tick(2)
    assert driven.kinds() == ["push 1.1"]
    driven.answer()
    assert driven.kinds() == ["tick 1.0"]


def test_a_write_that_waits_for_others_says_so() -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.tick(2)
    (resolved,) = driven.session.abandon(2, 0)
    assert isinstance(resolved, Resolved)
    assert "the tick of clock 1 waits for 1 earlier pushes and ticks" in str(resolved.error)
    assert "first the push of clock 1: shard " in str(resolved.error)
    assert "the push of clock 1 timed out" in str(driven.session.why_unsettled())


def test_an_unknown_operation_can_be_abandoned() -> None:
    driven = Driven(SSP(1))
    driven.do(driven.session.abandon(77, 0))
    assert isinstance(driven.error(77), DeadlineExceeded)


# -- refusals


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.FENCED, Fenced),
        (Status.NOT_REPEATABLE, NotRepeatable),
        (Status.LEFT, Reopen),
        (Status.UNKNOWN, NotFound),
        (Status.REFUSED, FixTheCall),
    ],
)
def test_a_refused_write_breaks_the_session_with_an_error_that_fits(
    status: Status, error: type[ResilientPsError]
) -> None:
    driven = Driven(SSP(1))
    driven.push(1)
    driven.push(2)
    driven.tick(3)
    driven.pull(4)
    driven.answer(0, status, text=b"because")
    assert {op: type(driven.error(op)) for op in (1, 2, 3, 4)} == dict.fromkeys((1, 2, 3, 4), error)
    driven.pull(5)
    driven.tick(6)
    assert driven.error(5) is driven.error(6) is driven.session.broken
    assert driven.session.unsettled == 0


def test_a_refused_pull_breaks_nothing() -> None:
    driven = Driven(SSP(1))
    driven.pull(1)
    driven.answer(0, Status.DEADLINE, text=b"waits for rank 7")
    assert isinstance(driven.error(1), DeadlineExceeded)
    assert "waits for rank 7" in str(driven.error(1))
    driven.push(2)
    driven.answer()
    assert driven.error(2) is None


def test_a_client_that_is_no_worker_reads_and_asks() -> None:
    driven = Driven()
    driven.pull(1)
    assert driven.sent[0].worker == WorkerId(0, 0, 0)
    driven.answer()
    step = Step(Kind.OPEN_TABLE, (0, 1), WorkerId(0, 0, 0), table=4, text=b"spec")
    driven.do(driven.session.broadcast(2, step, 0))
    driven.answer(0, Status.REFUSED, text=b"another specification")
    assert isinstance(driven.error(2), FixTheCall)
    assert driven.session.broken is None

"""A session whose cluster was rolled back: nothing is delivered, all are told, until resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from routings import process, routing

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Call, Calls, Piece
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, KvAnswered, KvCall, KvFailed, ReadResult
from resilient_ps.coordinator.records import (
    ClusterConfig,
    Member,
    Record,
    RestoreRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.errors import ResilientPsError, RolledBack, Unavailable
from resilient_ps.ids import NOWHERE, Epoch, Position, WorkerId
from resilient_ps.machine import Drop, MessageArrived, Send, TimerFired
from resilient_ps.messages import NO_KEYS, Answer, Kind, PartAnswer, Request, Status
from resilient_ps.session import Resolved, Session
from resilient_ps.split import Split
from resilient_ps.takeover import Settled, Step

S1 = "server:s1"
KEYS = ClusterKeys("c")
CONFIG = ClusterConfig("c0ffee00", 2, 2, 1, 1, 1, 64, "s1")
SERVER = ServerRecord("s1", process("s1"), "127.0.0.1", 7000, "", "", 1.0, 1, "1", 1, "here")
RESTORE = RestoreRecord(
    2, "1-7-00000001", "m", 5, "0" * 64, {"1": 4}, "shard 3 was lost", 0, registered=True
)
JOB = JobSpec(1, "job", 2, BSP())
AWAY = PartAnswer(0, Status.ROLLED_BACK, NOWHERE, 2, text=b"it was rolled back")


def items(
    *,
    config: ClusterConfig = CONFIG,
    restore: RestoreRecord | None = RESTORE,
    server: ServerRecord = SERVER,
) -> tuple[KeyValue, ...]:
    member = Member(server.server, server.process)
    epoch = Epoch(config.incarnation, 1)
    led = [ShardRecord(n, epoch, *member, (member,), ("s1",), 1, "") for n in range(2)]
    stored: dict[bytes, Record] = {KEYS.config: config, KEYS.server("s1"): server}
    stored |= {KEYS.shard(n): record for n, record in enumerate(led)}
    if restore is not None:
        stored[KEYS.restore] = restore
    return tuple(KeyValue(key, record.to_bytes(), 1, 1, 1, 0) for key, record in stored.items())


class Driven:
    """A session, what it has sent, what it has resolved, and how often it read etcd."""

    def __init__(self, *, worker: bool = True) -> None:
        self.session = Session("c", routing("s1 s1"))
        self.sent: list[Request] = []
        self.drops: list[str] = []
        self.resolved: dict[int, Resolved] = {}
        self.reads = 0
        if worker:
            self.do(self.session.open_worker(0, JOB, WorkerId(1, 1, 3), 0))
            while self.sent:
                self.answer(self.sent[0])

    def do(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Send(_, Request() as request):
                    self.sent.append(request)
                case Resolved(op):
                    assert op not in self.resolved, "nobody is told twice"
                    self.resolved[op] = effect
                case KvCall():
                    self.reads += 1
                case Drop(peer):
                    self.drops.append(peer)

    def handle(self, event: Any) -> None:
        self.do(self.session.handle(event, 0))

    def answer(self, request: Request, value: int = 0, text: bytes = b"", epoch: int = 1) -> None:
        self.sent.remove(request)
        at = Position(Epoch(epoch, 1), 1)
        parts = tuple(PartAnswer(p.shard, Status.OK, at, value, text=text) for p in request.parts)
        self.handle(MessageArrived(S1, Answer(request.request, parts)))

    def push(self, op: int) -> None:
        split = Split(np.arange(1, dtype=np.uint64), {0: Piece(0, 1)}, 0)
        self.do(self.session.push(op, 1, split, 0))

    def pull(self, op: int) -> None:
        split = Split(np.arange(1, dtype=np.uint64), {0: Piece(0, 1)}, 0)
        self.do(self.session.pull(op, 1, split, 0, wait_ns=9))

    def hear(self) -> None:
        """The answer to the oldest request says that it belongs to an earlier incarnation."""
        request = self.sent.pop(0)
        self.handle(MessageArrived(S1, Answer(request.request, (AWAY,))))

    def read(self, **found: Any) -> None:
        self.handle(KvAnswered(ROUTING_REF, ReadResult(items(**found), 9)))

    def error(self, op: int) -> ResilientPsError | None:
        return self.resolved[op].error


def told(driven: Driven, op: int) -> RolledBack:
    error = driven.error(op)
    assert isinstance(error, RolledBack)
    return error


def rolled_back() -> Driven:
    """A worker that knows where it stands now."""
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.read()
    stand = driven.sent[-1]
    assert (stand.kind, stand.incarnation, stand.worker) == (Kind.STAND, 2, WorkerId(1, 1, 3))
    driven.answer(stand, value=4, text=b'{"row":7}', epoch=2)
    return driven


def test_who_waits_is_told_the_clock_and_the_cursor_that_the_rank_went_back_to() -> None:
    driven = rolled_back()
    error = told(driven, 1)
    assert (error.clock, error.cursor) == (4, b'{"row":7}')
    assert "incarnation 2" in str(error)
    assert "1-7-00000001" in str(error)
    assert "shard 3 was lost" in str(error)


def test_every_call_raises_it_from_then_on_and_nothing_is_sent() -> None:
    driven = rolled_back()
    before = len(driven.sent)
    driven.push(2)
    driven.pull(3)
    driven.do(driven.session.tick(4, b"", 0))
    driven.do(driven.session.tune(5, 1, 0.1, 0))
    driven.do(driven.session.broadcast(6, Step(Kind.OPEN_TABLE, (0, 1), WorkerId(1, 1, 3)), 0))
    assert {told(driven, op).clock for op in range(2, 7)} == {4}
    assert len(driven.sent) == before


def test_what_begins_before_the_stand_is_known_is_told_with_the_others() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.push(2)
    driven.pull(3)
    assert driven.resolved.keys() == {0}
    driven.read()
    driven.answer(driven.sent[-1], value=4, epoch=2)
    assert {told(driven, op).clock for op in (1, 2, 3)} == {4}


def test_a_routing_of_a_later_incarnation_is_not_adopted_either() -> None:
    driven = Driven()
    driven.push(1)
    driven.read()
    assert driven.session.routing.incarnation == 1
    assert driven.reads == 1  # it looks again, as one that was rolled back
    driven.read()
    driven.answer(driven.sent[-1], value=4, epoch=2)
    assert told(driven, 1).clock == 4


def test_an_earlier_incarnation_in_an_answer_or_a_routing_counts_for_nothing() -> None:
    driven = Driven()
    driven.push(1)
    late = AWAY._replace(value=1)
    driven.handle(MessageArrived(S1, Answer(driven.sent[0].request, (late,))))
    driven.read(config=replace(CONFIG, incarnation=1), restore=None)
    assert 1 not in driven.resolved
    assert driven.session.broken is None


def test_it_waits_until_tables_and_jobs_are_registered() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    sent = len(driven.sent)
    driven.read(restore=replace(RESTORE, registered=False))
    driven.handle(KvFailed(ROUTING_REF, Unavailable("no etcd"), unknown=True))
    assert len(driven.sent) == sent
    reads = driven.reads
    driven.handle(TimerFired(RESEND_TIMER))
    assert driven.reads == reads + 1
    driven.read()
    assert driven.sent[-1].kind is Kind.STAND


def test_who_gives_up_waiting_is_told_what_is_known_by_then() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.do(driven.session.abandon(1, 0))
    assert told(driven, 1).clock == 0
    driven.pull(2)
    driven.read()
    driven.do(driven.session.abandon(2, 0))
    assert told(driven, 2).clock == 4  # by the restore record
    assert "not known yet" in str(told(driven, 2))
    driven.answer(driven.sent[-1], value=4, epoch=2)
    driven.pull(3)
    assert told(driven, 3).clock == 4


def test_a_rank_that_the_checkpoint_does_not_know_begins_at_the_beginning() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.read()
    stand = driven.sent.pop()
    unknown = PartAnswer(0, Status.UNKNOWN, Position(Epoch(2, 1), 0), text=b"no job 1")
    driven.handle(MessageArrived(S1, Answer(stand.request, (unknown,))))
    assert (told(driven, 1).clock, told(driven, 1).cursor) == (0, b"")


def test_another_rollback_meanwhile_is_followed() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.read()
    stand = driven.sent.pop()
    again = AWAY._replace(value=3)
    driven.handle(MessageArrived(S1, Answer(stand.request, (again,))))
    driven.read()  # what is read is older than that
    assert driven.sent == []
    config = replace(CONFIG, incarnation=3)
    driven.read(config=config, restore=replace(RESTORE, incarnation=3))
    assert driven.sent[-1].incarnation == 3


def test_a_reader_is_told_without_asking_where_anybody_stands() -> None:
    driven = Driven(worker=False)
    driven.pull(1)
    driven.hear()
    driven.read(restore=replace(RESTORE, registered=False))
    assert told(driven, 1).clock == 0
    assert driven.sent == []


def test_connections_to_processes_that_were_replaced_are_left() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.read(server=replace(SERVER, process=999))
    assert driven.drops == [S1, "server:s2"]  # there is no s2 any more
    assert driven.session.servers["s1"].process == 999


# -- resume


def test_after_resume_the_rank_is_taken_over_and_continues_behind_the_checkpoint() -> None:
    driven = rolled_back()
    me = WorkerId(1, 1, 4)
    driven.do(driven.session.resume(9, routing("s1 s1", incarnation=2), me, 0))
    assert [r.kind for r in driven.sent] == [Kind.OPEN_JOB]
    while driven.sent:
        assert (driven.sent[0].incarnation, driven.sent[0].worker) == (2, me)
        driven.answer(driven.sent[0], value=4, text=b"cursor", epoch=2)
    assert driven.resolved[9].value == Settled(4, b"cursor")
    assert (driven.session.clock, driven.session.cursor) == (5, b"cursor")
    driven.push(10)
    push = driven.sent[-1]
    assert (push.incarnation, push.clock, push.n, push.parts[0].prev) == (2, 5, 1, 0)
    assert push.parts[0].seen == Position(Epoch(2, 1), 1)


def test_late_answers_of_the_incarnation_before_mean_nothing_after_resume() -> None:
    driven = Driven()
    driven.push(1)
    old = driven.sent[0]
    driven.hear()
    driven.read()
    driven.sent.clear()
    driven.do(driven.session.resume(9, routing("s1 s1", incarnation=2), WorkerId(1, 1, 4), 0))
    assert isinstance(driven.error(1), RolledBack)
    assert driven.sent[0].request > old.request
    at = Position(Epoch(1, 9), 9)
    driven.handle(MessageArrived(S1, Answer(old.request, (PartAnswer(0, Status.OK, at),))))
    assert driven.session.calls.seen == [NOWHERE, NOWHERE]


def test_a_routing_that_cannot_be_read_while_the_stand_is_asked_for_is_read_again() -> None:
    driven = Driven()
    driven.push(1)
    driven.hear()
    driven.read()
    stand = driven.sent.pop()
    away = (PartAnswer(0, Status.NOT_OWNER, Position(Epoch(2, 0), 0)),)
    driven.handle(MessageArrived(S1, Answer(stand.request, away)))
    for _ in range(2):
        reads = driven.reads
        driven.handle(TimerFired(RESEND_TIMER))
        assert driven.reads == reads + 1
        driven.handle(KvFailed(ROUTING_REF, Unavailable("no etcd"), unknown=False))
        again = driven.sent.pop()
        assert (again.kind, again.request) == (Kind.STAND, stand.request)
        driven.handle(MessageArrived(S1, Answer(again.request, away)))
    driven.handle(TimerFired(RESEND_TIMER))
    driven.read()
    driven.answer(driven.sent[-1], value=4, epoch=2)
    assert told(driven, 1).clock == 4


def test_a_session_that_resumes_does_not_wait_for_what_it_awaited_before() -> None:
    """The routing that was being read was told to who looked after the rollback."""
    driven = Driven()
    driven.push(1)
    driven.pull(2)
    away = PartAnswer(0, Status.NOT_OWNER, NOWHERE)
    driven.handle(MessageArrived(S1, Answer(driven.sent.pop(0).request, (away,))))
    driven.handle(TimerFired(RESEND_TIMER))
    assert driven.reads == 1
    driven.hear()
    driven.read()
    driven.answer(driven.sent[-1], value=4, epoch=2)
    driven.sent.clear()
    driven.do(driven.session.resume(9, routing("s1 s1", incarnation=2), WorkerId(1, 1, 4), 0))
    reads = driven.reads
    opened = driven.sent.pop(0)
    at = tuple(PartAnswer(part.shard, Status.NOT_OWNER, NOWHERE) for part in opened.parts)
    driven.handle(MessageArrived(S1, Answer(opened.request, at)))
    driven.handle(TimerFired(RESEND_TIMER))
    assert driven.reads == reads + 1
    driven.read()
    assert driven.sent[0].request == opened.request


def test_a_reader_resumes_without_a_takeover() -> None:
    driven = Driven(worker=False)
    driven.pull(1)
    driven.hear()
    driven.read()
    now = routing("s1 s1", incarnation=2)
    driven.do(driven.session.resume(2, now, driven.session.worker, 0))
    assert driven.error(2) is None
    driven.pull(3)
    assert driven.sent[-1].incarnation == 2


def test_a_cluster_may_come_back_with_another_number_of_shards() -> None:
    driven = rolled_back()
    me = WorkerId(1, 1, 4)
    driven.do(driven.session.resume(9, routing("s1 s1 s1", incarnation=2), me, 0))
    assert [part.shard for part in driven.sent[0].parts] == [0, 1, 2]


def test_a_takeover_that_did_not_end_leaves_a_session_that_writes_nothing() -> None:
    driven = rolled_back()
    driven.do(driven.session.resume(9, routing("s1 s1", incarnation=2), WorkerId(1, 1, 4), 0))
    driven.do(driven.session.abandon(9, 0))
    driven.sent.clear()
    driven.push(10)
    assert driven.error(10) is not None
    assert driven.sent == []


# -- calls


def test_calls_never_adopt_a_later_incarnation() -> None:
    made = Calls(routing("s1 s1"), b"/")
    made.start(Call(made.next_number(), Kind.PULL, (0,), keys=NO_KEYS), 0)
    made.on_routing(routing("s1 s1", incarnation=2), 0)
    assert (made.routing.incarnation, made.rolled_back_to) == (1, 2)


@pytest.mark.parametrize("incarnation", [0, 1])
def test_calls_ignore_a_routing_of_an_earlier_incarnation(incarnation: int) -> None:
    made = Calls(routing("s1 s1", incarnation=2), b"/")
    made.on_routing(routing("s2 s2", incarnation=incarnation), 0)
    assert (made.routing.owners[0].server, made.rolled_back_to) == ("s1", 0)

"""The quick way of plain pulls and pushes, against the usual one: the same bytes and state."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from routings import routing

from resilient_ps import quick_calls
from resilient_ps.calls import RESEND_TIMER, ROUTING_REF
from resilient_ps.consistency import ASP, JobSpec
from resilient_ps.coordinator.kv import KvFailed
from resilient_ps.errors import Fenced, RolledBack, Unavailable
from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.machine import MessageArrived, PeerLost, Send, TimerFired
from resilient_ps.messages import Answer, Kind, PartAnswer, Request, Status
from resilient_ps.noted_calls import Acknowledged, NotedCalls
from resilient_ps.quick_calls import QuickCall, plain_table
from resilient_ps.session import Resolved, Session, SessionEffect
from resilient_ps.split import SparsePull, split_sparse_pull, split_sparse_push
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.wire import FrameReader, encode

if not quick_calls.IN_USE:
    pytest.skip("there is no native module here", allow_module_level=True)

S1 = "server:s1"
TABLE = 3
DTYPES = ("float32", "float64", "int64")
WORKER = WorkerId(1, 1, 3)


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@dataclass
class User:
    """A session and its one connection; `quick` says which way its calls go."""

    shards: int
    quick: bool
    spec: SparseSpec
    sent: list[bytes] = field(default_factory=list)
    resolved: dict[int, Resolved] = field(default_factory=dict)
    took_it: int = 0  # answers that were taken the quick way
    noted: list[Acknowledged] | None = None

    def __post_init__(self) -> None:
        places = routing(" ".join(["s1"] * self.shards))
        if self.noted is None:
            self.session = Session("c", places)
        else:
            self.session = Session("c", places, partial(NotedCalls, note=self.noted.append))
        self.reader = FrameReader(place=self.session.calls.places)
        self.plain = plain_table(TABLE, self.spec, 1000)
        self.do(self.session.open_worker(0, JobSpec(1, "job", 2, ASP()), WORKER, 0))
        lsn = 0
        while 0 not in self.resolved:
            lsn += 1
            request = self.last_request
            at = Position(Epoch(1, 1), lsn)
            parts = [PartAnswer(part.shard, Status.OK, at) for part in request.parts]
            self.receive(Answer(request.request, tuple(parts)))

    def do(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append(joined(encode(effect.message)))
            elif isinstance(effect, Resolved):
                self.resolved[effect.op] = effect

    @property
    def last_request(self) -> Request:
        (request,) = parsed(self.sent[-1])
        return request

    def pull(self, op: int, keys: NDArray[np.uint64], out: NDArray[Any]) -> Any:
        """What is to be called when the pull has been answered."""
        if self.quick:
            assert self.plain is not None
            call = self.session.pull_quickly(self.plain, keys, out, 5, wait_ns=7)
            return self.left(call, op).finish
        pull: SparsePull = split_sparse_pull(self.session.routing, keys, self.spec)
        self.do(self.session.pull(op, TABLE, pull.split, 5, wait_ns=7))
        return lambda: pull.finish(out)

    def push(self, op: int, keys: NDArray[np.uint64], grads: NDArray[Any]) -> None:
        if self.quick:
            assert self.plain is not None
            self.left(self.session.push_quickly(self.plain, keys, grads, 5), op)
        else:
            split = split_sparse_push(self.session.routing, keys, grads)
            self.do(self.session.push(op, TABLE, split, 5))

    def left(self, call: QuickCall | None, op: int) -> QuickCall:
        assert call is not None
        call.op = op
        call.fill()
        self.sent.append(joined(call.buffers))
        return call

    def receive(self, answer: Answer, most: int = 1 << 30) -> None:
        """As a driver does: the quick way, if a folded call is waited for."""
        data = joined(encode(answer))
        while data:
            buffer = self.reader.get_buffer()
            count = min(len(data), len(buffer), most)
            buffer[:count] = data[:count]
            folded = self.session.calls.folded
            if folded is not None and self.reader.received_whole(count, folded.take):
                self.took_it += 1
                self.resolved[folded.op] = Resolved(folded.op)
                self.do(self.session.settle(folded, 9))
            else:
                for message in self.reader.received(count):
                    self.do(self.session.handle(MessageArrived(S1, message), 9))
            data = data[count:]

    def handle(self, event: Any) -> None:
        self.do(self.session.handle(event, 9))

    @property
    def state(self) -> Any:
        session, calls = self.session, self.session.calls
        numbers = calls.seen, calls.last_number, session._n, session._last, session._pushes
        ended = {op: type(outcome.error) for op, outcome in self.resolved.items()}
        under_way = sorted(calls.open), session.clock, session.unsettled, type(session.broken)
        return *numbers, *under_way, ended, self.sent


def parsed(data: bytes) -> list[Any]:
    reader, messages = FrameReader(), []
    while data:
        buffer = reader.get_buffer()
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        messages += reader.received(count)
        data = data[count:]
    return messages


@dataclass
class Both:
    """The same calls and events on both ways."""

    shards: int = 4
    dim: int = 3
    dtype: str = "float32"
    noted: bool = False

    def __post_init__(self) -> None:
        spec = SparseSpec("t", dim=self.dim, dtype=self.dtype, optimiser=Sum())
        self.spec = spec
        self.quick, self.usual = [
            User(self.shards, quick, spec, noted=[] if self.noted else None)
            for quick in (True, False)
        ]
        self.compare()

    @property
    def users(self) -> tuple[User, User]:
        return self.quick, self.usual

    def compare(self) -> None:
        assert self.quick.state == self.usual.state

    def rows(self, seed: int, n: int) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        return rng.integers(-100, 100, (n, self.dim)).astype(self.dtype)

    def answer(self, *, lsn: int = 50, rows: NDArray[Any] | None = None) -> Answer:
        """That all is well. `rows`: of a pull, one per key, in the order of the request."""
        request = self.usual.last_request
        at = Position(Epoch(1, 1), lsn)
        width = 0 if rows is None else self.dim
        parts = [
            PartAnswer(part.shard, Status.OK, at, 1, part.count if width else 0, part.count * width)
            for part in request.parts
        ]
        return Answer(request.request, tuple(parts), () if rows is None else (rows.reshape(-1),))


key_sets = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60).map(
    lambda keys: np.array(keys, np.uint64)
)
tables = st.tuples(st.integers(1, 9), st.integers(1, 20), st.sampled_from(DTYPES))


@given(key_sets, key_sets, tables, st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_calls_and_plain_answers_are_the_same_both_ways(
    first: NDArray[np.uint64], second: NDArray[np.uint64], table: tuple[int, int, str], seed: int
) -> None:
    both = Both(*table)
    for op, keys in ((1, first), (2, second)):
        for user in both.users:
            user.push(op, keys, both.rows(seed + op, len(keys)))
        assert both.quick.session.calls.folded is not None
        for user, answer in zip(both.users, [both.answer(lsn=40 + op)] * 2, strict=True):
            user.receive(answer)
        both.compare()
    outs = [both.rows(0, len(second)) for _ in both.users]
    ends = [user.pull(3, second, out) for user, out in zip(both.users, outs, strict=True)]
    answer = both.answer(rows=both.rows(seed, len(second)))
    for user, end in zip(both.users, ends, strict=True):
        user.receive(answer)
        end()
    both.compare()
    assert both.quick.took_it == 3
    np.testing.assert_array_equal(outs[0], outs[1])


def test_what_was_acknowledged_is_noted_the_same_both_ways() -> None:
    both = Both(noted=True)
    keys = np.arange(20, dtype=np.uint64)
    for user in both.users:
        user.push(1, keys, both.rows(1, 20))
    answer = both.answer(lsn=41)
    for user in both.users:
        user.receive(answer)
    outs = [both.rows(0, 20) for _ in both.users]
    ends = [user.pull(2, keys, out) for user, out in zip(both.users, outs, strict=True)]
    answer = both.answer(rows=both.rows(3, 20))
    for user, end in zip(both.users, ends, strict=True):
        user.receive(answer)
        end()
    assert both.quick.took_it == 2
    np.testing.assert_array_equal(outs[0], outs[1])
    assert both.quick.noted == both.usual.noted
    assert both.quick.noted is not None
    push, pull = both.quick.noted[-2:]
    places = {shard: Position(Epoch(1, 1), 41) for shard in range(4)}
    assert push == (Kind.PUSH, WORKER, 1, 1, 5, places)
    assert (pull.kind, pull.n) == (Kind.PULL, 0)


def test_what_was_refused_is_not_noted() -> None:
    both = Both(noted=True)
    assert both.usual.noted is not None
    before = len(both.usual.noted)
    both.usual.push(1, np.arange(20, dtype=np.uint64), both.rows(1, 20))
    request = both.usual.last_request
    at = Position(Epoch(1, 1), 50)
    parts = [PartAnswer(part.shard, Status.FENCED, at, 9) for part in request.parts]
    both.usual.receive(Answer(request.request, tuple(parts)))
    assert isinstance(both.usual.resolved[1].error, Fenced)
    assert len(both.usual.noted) == before


@given(key_sets, tables, st.booleans())
@settings(deadline=None, max_examples=25)
def test_an_unfolded_call_is_sent_again_as_it_was(
    keys: NDArray[np.uint64], table: tuple[int, int, str], is_push: bool
) -> None:
    both = Both(*table)
    outs = [both.rows(0, len(keys)) for _ in both.users]
    ends: list[Any] = []
    for user, out in zip(both.users, outs, strict=True):
        if is_push:
            user.push(1, keys, both.rows(1, len(keys)))
        else:
            ends.append(user.pull(1, keys, out))
    for user in both.users:
        user.handle(PeerLost(S1))
        user.handle(TimerFired(RESEND_TIMER))
        user.handle(KvFailed(ROUTING_REF, Unavailable("no etcd"), unknown=True))
    both.compare()
    assert len(both.quick.sent) == len(both.usual.sent)
    (call,) = both.usual.session.calls.open.values()
    values, first = both.rows(7, len(keys)), 0
    for data in both.usual.sent[-len(call.shards) :]:  # each part is a message of its own now
        (request,) = parsed(data)
        (part,) = request.parts
        rows = () if is_push else (values[first : first + part.count].reshape(-1),)
        first += part.count
        elements = 0 if is_push else part.count * both.dim
        said = PartAnswer(part.shard, Status.OK, Position(Epoch(1, 1), 60), 1, 0, elements)
        for user in both.users:
            user.receive(Answer(request.request, (said,), rows))
    for end in ends:
        end()
    both.compare()
    assert 1 in both.quick.resolved
    np.testing.assert_array_equal(outs[0], outs[1])


ODD = ("status", "older", "number", "order", "text", "fewer", "rolled back", "elements", "values")


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("is_push", [True, False])
def test_an_answer_that_is_not_plain_goes_the_usual_way(what: str, is_push: bool) -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    outs = [both.rows(0, 40) for _ in both.users]
    for user, out in zip(both.users, outs, strict=True):
        if is_push:
            user.push(1, keys, both.rows(1, 40))
        else:
            user.pull(1, keys, out)
    good = both.answer(rows=None if is_push else both.rows(5, 40))
    odd = made_odd(good, what)
    seen = list(both.quick.session.calls.seen)
    call = both.quick.session.calls.folded
    assert call is not None
    data = np.frombuffer(joined(encode(odd)), np.uint8).copy().data
    assert not call.take(data, 0, data.nbytes, 1 << 20, 1 << 20)
    assert not call.over
    assert both.quick.session.calls.seen == seen
    np.testing.assert_array_equal(outs[0], both.rows(0, 40))
    if what not in ("elements", "values"):  # a server that does so is refused, or harms itself
        for user in both.users:
            user.receive(odd)
        both.compare()
    if what == "rolled back":
        assert both.quick.session.calls.rolled_back_to == 2
    if what == "status" and is_push:
        assert isinstance(both.quick.session.broken, Fenced)


def made_odd(good: Answer, what: str) -> Answer:
    first, *rest = good.parts
    number, values = good.request, good.values
    match what:
        case "status":
            first = first._replace(status=Status.FENCED, count=0, elements=0)
        case "older":
            first = first._replace(at=Position(Epoch(1, 1), 0))
        case "number":
            number += 1
        case "order":
            return Answer(number, (*rest, first), values)
        case "text":
            first = first._replace(text=b"why")
        case "fewer":
            return Answer(number, tuple(rest), tuple(v[first.elements :] for v in values))
        case "rolled back":
            first = first._replace(status=Status.ROLLED_BACK, value=2, count=0, elements=0)
        case "elements":
            first = first._replace(elements=first.elements + 1)
            values = (np.zeros(sum(p.elements for p in (first, *rest)), np.float32),)
        case "values":
            first = first._replace(elements=first.elements + 3)
            values = (np.zeros(sum(p.elements for p in (first, *rest)), np.float32),)
    if what in ("status", "rolled back"):
        values = tuple(v[good.parts[0].elements :] for v in values)
    return Answer(number, (first, *rest), values)


@given(st.integers(1, 2000))
@settings(deadline=None, max_examples=30)
def test_an_answer_in_pieces_is_received_as_well(most: int) -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    outs = [both.rows(0, 40) for _ in both.users]
    ends = [user.pull(1, keys, out) for user, out in zip(both.users, outs, strict=True)]
    answer = both.answer(rows=both.rows(5, 40))
    for user, end in zip(both.users, ends, strict=True):
        user.receive(answer, most)
        end()
    both.compare()
    np.testing.assert_array_equal(outs[0], outs[1])


def test_a_second_call_finds_the_first_one_open_and_goes_the_usual_way() -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    for user in both.users:
        user.push(1, keys, both.rows(1, 40))
    assert both.quick.plain is not None
    session = both.quick.session
    assert session.push_quickly(both.quick.plain, keys, both.rows(1, 40), 5) is None
    both.quick.quick = False
    for user in both.users:
        user.push(2, keys[:20], both.rows(2, 20))
    both.compare()
    first, second = session.calls.open.values()
    assert (first.context, second.context, session.calls.folded) == (1, 2, None)


def test_a_tick_waits_for_a_folded_push_and_leaves_with_its_answer() -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    for user in both.users:
        user.push(1, keys, both.rows(1, 40))
        user.do(user.session.tick(2, b"here", 6))
    assert both.quick.session.calls.folded is not None
    assert both.usual.last_request.kind is Kind.PUSH
    answer = both.answer()
    for user in both.users:
        user.receive(answer)
    both.compare()
    assert both.quick.took_it == 1
    assert both.quick.last_request.kind is Kind.TICK


def test_an_abandoned_push_that_was_folded_is_still_delivered() -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    for user in both.users:
        user.push(1, keys, both.rows(1, 40))
        user.do(user.session.abandon(1, 6))
    both.compare()
    assert both.quick.session.unsettled == 1


def test_a_folded_call_ends_when_the_session_begins_anew() -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    later = routing("s1 s1 s1 s1", incarnation=2)
    for user in both.users:
        user.push(1, keys, both.rows(1, 40))
        user.do(user.session.resume(2, later, WORKER, 6))
        assert isinstance(user.resolved[1].error, RolledBack)
    both.compare()


def test_arrays_that_are_not_plain_are_left_and_nothing_has_changed() -> None:
    both = Both()
    plain, session = both.quick.plain, both.quick.session
    assert plain is not None
    keys, rows = np.arange(40, dtype=np.uint64), both.rows(1, 40)
    read_only = rows.copy()
    read_only.flags.writeable = False
    odd: list[tuple[Any, Any]] = [
        (keys.astype(np.int64), rows),
        (keys.astype(">u8"), rows),
        (keys[::2], rows[:20]),
        (keys.reshape(4, 10), rows),
        (keys[:0], rows[:0]),
        (np.arange(1001, dtype=np.uint64), both.rows(1, 1001)),
        (keys, rows.astype(np.float64)),
        (keys, rows.T.copy().T),
        (keys, rows[:39]),
        (keys, rows.reshape(-1)),
        (keys, rows.reshape(3, 40)),
        (keys, rows.view(np.int32)),
    ]
    for some_keys, some_rows in odd:
        assert session.push_quickly(plain, some_keys, some_rows, 5) is None
        assert session.pull_quickly(plain, some_keys, some_rows, 5, wait_ns=0) is None
    assert session.pull_quickly(plain, keys, read_only, 5, wait_ns=0) is None
    both.compare()
    assert session.push_quickly(plain, keys, read_only, 5) is not None


@pytest.mark.parametrize("owners", ["s1 s2 s1 s2", "s1 s1 s1 -"])
def test_calls_to_more_than_one_server_go_the_usual_way(owners: str) -> None:
    both = Both()
    session, plain = both.quick.session, both.quick.plain
    assert plain is not None
    session.calls.routing = routing(owners)
    keys, rows = np.arange(40, dtype=np.uint64), both.rows(1, 40)
    assert session.push_quickly(plain, keys, rows, 5) is None


def test_an_unfolded_call_is_what_the_usual_one_is() -> None:
    both = Both()
    keys = np.arange(40, dtype=np.uint64)
    for user in both.users:
        user.push(1, keys, both.rows(1, 40))
    ours, theirs = (next(iter(u.session.calls.open.values())) for u in both.users)
    for of in fields(ours):
        if of.name not in ("keys", "pieces", "out"):
            assert getattr(ours, of.name) == getattr(theirs, of.name), of.name
    np.testing.assert_array_equal(ours.keys, theirs.keys)
    first, second = (
        joined(encode(user.session.calls._request(call, call.shards)))
        for user, call in zip(both.users, (ours, theirs), strict=True)
    )
    assert first == second


def large(shards: int) -> tuple[Both, NDArray[np.uint64], NDArray[Any]]:
    """A push that is sent while it is prepared."""
    both = Both(shards, dim=90, dtype="float64")
    rng = np.random.default_rng(shards)
    return both, rng.integers(0, 1 << 63, 900).astype(np.uint64), both.rows(3, 900)


def begun(both: Both, keys: NDArray[np.uint64], rows: NDArray[Any]) -> tuple[QuickCall, bytes]:
    """The call of the quick one, which has not left, and the bytes of the usual one."""
    plain = both.quick.plain
    assert plain is not None
    call = both.quick.session.push_quickly(plain, keys, rows, 5)
    assert call is not None
    both.usual.push(1, keys, rows)
    return call, both.usual.sent[-1]


def fill_up(sock: socket.socket) -> None:
    """So that it takes nothing more."""
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while sock.send(bytes(1 << 16)):
            pass


@pytest.mark.parametrize("shards", [1, 4, 37])
@pytest.mark.parametrize("taken", ["all", "a part", "nothing"])
def test_a_large_push_that_is_sent_while_it_is_prepared_has_the_same_bytes(
    shards: int, taken: str
) -> None:
    both, keys, rows = large(shards)
    call, expected = begun(both, keys, rows)
    ours, theirs = socket.socketpair()
    if taken == "nothing":
        fill_up(ours)
    room = 4 << 20 if taken == "all" else 1 << 16
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    sent = call.fill(ours.fileno())
    assert joined(call.buffers) == expected
    assert {"all": sent == len(expected), "a part": 0 < sent < len(expected), "nothing": not sent}[
        taken
    ]
    if taken != "nothing":
        assert theirs.recv(sent, socket.MSG_WAITALL) == expected[:sent]
    assert call.fill(ours.fileno()) == 0, "once"
    ours.close()
    theirs.close()


def test_a_large_push_whose_connection_is_broken_is_whole_all_the_same() -> None:
    both, keys, rows = large(4)
    call, expected = begun(both, keys, rows)
    ours, theirs = socket.socketpair()
    theirs.close()
    assert call.fill(ours.fileno()) == 0
    ours.close()
    assert joined(call.buffers) == expected


def test_a_large_push_that_was_not_sent_unfolds_to_what_it_would_have_been() -> None:
    both, keys, _ = large(4)
    rows = both.rows(77, 900)  # whose bytes are nowhere else in memory
    begun(both, keys, rows)
    (quick,), (usual,) = (user.session.calls.open.values() for user in both.users)
    assert quick.keys.tobytes() == usual.keys.tobytes()
    for shard, piece in usual.pieces.items():
        mine = quick.pieces[shard]
        assert (mine.first, mine.count, mine.prev) == (piece.first, piece.count, piece.prev)
        assert joined([*mine.values]) == joined([*piece.values])

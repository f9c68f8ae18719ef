"""The quick way of plain pulls and pushes of dense tables, against the usual one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_quick_calls import ODD, S1, TABLE, User, joined, made_odd, parsed

from resilient_ps import quick_calls
from resilient_ps.calls import RESEND_TIMER, ROUTING_REF
from resilient_ps.coordinator.kv import KvFailed
from resilient_ps.engine import native
from resilient_ps.errors import Unavailable
from resilient_ps.ids import Epoch, Position
from resilient_ps.machine import PeerLost, TimerFired
from resilient_ps.messages import Answer, PartAnswer, Status
from resilient_ps.noted_calls import Acknowledged
from resilient_ps.quick_calls import plain_table
from resilient_ps.split import Cut, cuts_of, split_dense
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.wire import SCRATCH_BYTES, encode

if not quick_calls.IN_USE:
    pytest.skip("there is no native module here", allow_module_level=True)

PATIENCE_S = 0.02
FAR_NS = 60 * 10**9
SMALL, LARGE = (40, 3), (9, 100_000)
Array = NDArray[Any]


@dataclass
class Both:
    """The same calls of one dense table and the same events on both ways."""

    shape: tuple[int, int] = SMALL
    shards: int = 4
    dtype: str = "float32"
    noted: list[list[Acknowledged]] = field(default_factory=lambda: [[], []])

    def __post_init__(self) -> None:
        self.spec = DenseSpec("t", self.shape, dtype=self.dtype, optimiser=Sum())
        self.layout = DenseLayout(self.spec, self.shards)
        plain = plain_table(TABLE, self.spec)
        assert plain is not None
        self.plain = plain
        unused = SparseSpec("u", 1)
        self.users = [User(self.shards, True, unused, noted=noted) for noted in self.noted]
        self.outs = [self.array(0), self.array(0)]

    @property
    def quick(self) -> User:
        return self.users[0]

    @property
    def usual(self) -> User:
        return self.users[1]

    def array(self, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        return rng.integers(-100, 100, self.shape).astype(self.dtype)

    def cut(self, *, pull: bool) -> Cut:
        (cut,) = cuts_of(self.quick.session.routing.order, self.layout, pull=pull)
        return cut

    def pull(self, op: int) -> None:
        quick, usual = self.outs[0].reshape(-1), self.outs[1].reshape(-1)
        cut, session = self.cut(pull=True), self.usual.session
        call = self.quick.session.pull_quickly(self.plain, cut, quick, 5, wait_ns=7)
        self.quick.left(call, op)
        (split,) = split_dense(session.routing, self.layout, usual, pull=True)
        self.usual.do(session.pull(op, TABLE, split, 5, wait_ns=7))

    def push(self, op: int, gradient: Array) -> None:
        flat, cut, session = gradient.reshape(-1), self.cut(pull=False), self.usual.session
        self.quick.left(self.quick.session.push_quickly(self.plain, cut, flat, 5), op)
        (split,) = split_dense(session.routing, self.layout, flat, pull=False)
        self.usual.do(session.push(op, TABLE, split, 5))

    def compare(self) -> None:
        assert self.quick.state == self.usual.state
        np.testing.assert_array_equal(self.outs[0], self.outs[1])
        assert self.noted[0] == self.noted[1]

    def answer(self, array: Array | None = None, *, lsn: int = 50) -> Answer:
        """That all is well; to a pull, with what of `array` is asked for."""
        request, at = self.usual.last_request, Position(Epoch(1, 1), lsn)
        places = {shard: slice(*place) for shard, _, _, *place in self.cut(pull=True).parts}
        values = (
            [] if array is None else [array.reshape(-1)[places[p.shard]] for p in request.parts]
        )
        sizes = [value.size for value in values] or [0] * len(request.parts)
        parts = [
            PartAnswer(part.shard, Status.OK, at, 1, part.count if size else 0, size)
            for part, size in zip(request.parts, sizes, strict=True)
        ]
        return Answer(request.request, tuple(parts), (np.concatenate(values),) if values else ())


tables = st.tuples(
    st.tuples(st.integers(1, 9), st.sampled_from([1, 7, 40_000])),
    st.integers(1, 9),
    st.sampled_from(("float32", "float64", "int64")),
)


@given(tables, st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_calls_and_plain_answers_are_the_same_both_ways(
    table: tuple[tuple[int, int], int, str], seed: int
) -> None:
    both = Both(*table)
    for op in (1, 2):
        both.push(op, both.array(seed + op))
        assert both.quick.session.calls.folded is not None
        answer = both.answer(lsn=40 + op)
        for user in both.users:
            user.receive(answer)
        both.compare()
    both.pull(3)
    answer = both.answer(both.array(seed))
    for user in both.users:
        user.receive(answer)
    both.compare()
    np.testing.assert_array_equal(both.outs[0], both.array(seed))
    assert both.quick.took_it == 3 or both.spec.elements > 1000  # in pieces it goes the usual way


@given(tables, st.booleans())
@settings(deadline=None, max_examples=30)
def test_an_unfolded_call_is_sent_again_as_it_was(
    table: tuple[tuple[int, int], int, str], is_push: bool
) -> None:
    both = Both(*table)
    if is_push:
        both.push(1, both.array(1))
    else:
        both.pull(1)
    for user in both.users:
        user.handle(PeerLost(S1))
        user.handle(TimerFired(RESEND_TIMER))
        user.handle(KvFailed(ROUTING_REF, Unavailable("no etcd"), unknown=True))
    both.compare()
    (call,) = both.usual.session.calls.open.values()
    places = {shard: slice(*place) for shard, _, _, *place in both.cut(pull=True).parts}
    for data in both.usual.sent[-len(call.shards) :]:  # each part is a message of its own now
        (request,) = parsed(data)
        (part,) = request.parts
        values = () if is_push else (both.array(7).reshape(-1)[places[part.shard]],)
        elements = sum(value.size for value in values)
        said = PartAnswer(part.shard, Status.OK, Position(Epoch(1, 1), 60), 1, 0, elements)
        for user in both.users:
            user.receive(Answer(request.request, (said,), values))
    both.compare()
    assert 1 in both.quick.resolved
    assert is_push or np.array_equal(both.outs[0], both.array(7))


def test_what_does_not_fit_is_left_and_nothing_has_changed() -> None:
    both = Both()
    cut, session, flat = both.cut(pull=False), both.quick.session, both.array(1).reshape(-1)
    (shard, first, *rest), *others = cut.parts
    for keys, parts in (
        (cut.keys[1:], cut.parts),
        (cut.keys.astype(np.int64), cut.parts),
        (cut.keys, ()),
        (cut.keys, tuple(others)),
        (cut.keys, ((shard, first + 1, *rest), *others)),
        (cut.keys, ((99, first, *rest), *others)),
        (cut.keys, ((shard, first, *rest, 0), *others)),
    ):
        odd = Cut(keys, cut.elements, parts)
        assert session.push_quickly(both.plain, odd, flat, 5) is None
        assert session.pull_quickly(both.plain, odd, flat, 5, wait_ns=0) is None
    both.compare()
    assert session.push_quickly(both.plain, cut, flat, 5) is not None


class Asked:
    """A pull that has left, and a socket that its answer comes from."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.both = Both(shape)
        self.both.pull(1)
        self.call = self.both.quick.session.calls.folded
        self.ours, self.server = socket.socketpair()
        seconds = struct.pack("@ll", 0, int(PATIENCE_S * 1e6))
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self.scratch = np.empty(SCRATCH_BYTES, np.uint8).data
        self.good = self.both.answer(self.both.array(5))

    def data(self) -> bytes:
        return joined(encode(self.good))

    def receive(self, patience_ns: int = FAR_NS) -> int:
        assert self.call is not None
        where = self.ours.fileno(), self.scratch, 1 << 20, 1 << 30, patience_ns
        return native.receive(*where, *self.call.hoped)


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    made = Asked(getattr(request, "param", SMALL))
    yield made
    made.ours.close()
    made.server.close()


@pytest.mark.parametrize("asked", [SMALL, LARGE], indirect=True)
def test_blocks_are_received_where_they_belong(asked: Asked) -> None:
    data, both = asked.data(), asked.both

    def send() -> None:
        for start in range(0, len(data), 100_001):
            asked.server.sendall(data[start : start + 100_001])
        asked.server.sendall(b"RPS1")

    sender = threading.Thread(target=send)
    sender.start()
    assert asked.receive() == 0
    sender.join()
    assert asked.ours.recv(10) == b"RPS1"  # what follows is left
    both.usual.receive(asked.good)
    np.testing.assert_array_equal(both.outs[0], both.outs[1])
    assert both.quick.session.calls.seen == both.usual.session.calls.seen


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_what_is_not_plain_is_left_as_it_came(asked: Asked, what: str) -> None:
    data, seen = (
        joined(encode(made_odd(asked.good, what))),
        list(asked.both.quick.session.calls.seen),
    )
    asked.server.sendall(data[:1000])
    count = asked.receive()
    assert 0 < count <= 1000
    assert bytes(asked.scratch[:count]) == data[:count]
    np.testing.assert_array_equal(asked.both.outs[0], asked.both.array(0))
    assert asked.both.quick.session.calls.seen == seen


@pytest.mark.parametrize("asked", [LARGE], indirect=True)
def test_an_answer_that_stops_in_the_middle_ends_the_connection(asked: Asked) -> None:
    asked.server.sendall(asked.data()[:100_000])
    with pytest.raises(BlockingIOError):
        asked.receive(int(2 * PATIENCE_S * 1e9))
    assert asked.ours.recv(10) == b""  # nobody takes the rest for the beginning of a frame


def test_arrays_that_do_not_fit_are_not_received_into(asked: Asked) -> None:
    assert asked.call is not None
    asked.server.sendall(asked.data())
    frame, seen, parts, out = asked.call.hoped
    where = asked.ours.fileno(), asked.scratch, 1 << 20, 1 << 30, FAR_NS
    read_only = out.copy()
    read_only.flags.writeable = False
    for odd_parts, odd_out in ((parts, out[:-1]), (parts[1:], out), (parts, read_only)):
        with pytest.raises((ValueError, BufferError)):
            native.receive(*where, frame, seen, odd_parts, odd_out)
    assert asked.receive() == 0

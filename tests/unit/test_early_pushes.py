"""Pushes that are made while they are received: what the usual way says and does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_node import CLIENT, SECOND_NS, Served, ask, serving

from resilient_ps import quick_replication, quick_requests, replicas
from resilient_ps.chaos.live.audit import install
from resilient_ps.consistency import ASP, BSP, Consistency, JobSpec
from resilient_ps.engine import native
from resilient_ps.ids import NOWHERE, Epoch, Position, WorkerId
from resilient_ps.ledger import JobLedger
from resilient_ps.machine import MessageArrived, Send
from resilient_ps.messages import Answer, Kind, Part, Request, Status
from resilient_ps.quotas import NOTHING, WITHOUT_END, Give, Given, Settle, Size
from resilient_ps.shard_state import ShardState
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec
from resilient_ps.wire import encode

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)

SHARDS = (0, 1, 2, 3)
ME, LATE = WorkerId(1, 0, 1), WorkerId(1, 0, 2)
TABLES: dict[int, TableSpec] = {
    1: SparseSpec("rows", 3, "float32", Adagrad(0.1)),
    2: SparseSpec("sums", 1, "int64", Sum()),
    3: SparseSpec("adam", 5, "float64", Adam(0.01)),
    4: SparseSpec("wide", 20, "float32", FTRL(0.1)),
    5: DenseSpec("blocks", (3,), "float64", SGD(0.5)),
}
SPARSE = (1, 2, 3, 4)


def prepared(mode: Consistency | None = None, *, quick: bool = True) -> Served:
    served = serving()
    served.node._requests._all_rules = quick
    for number, spec in TABLES.items():
        ask(served, Kind.OPEN_TABLE, *SHARDS, table=number, text=spec.to_json().encode())
    text = JobSpec(1, "job", 1, mode or ASP()).to_json().encode()
    ask(served, Kind.OPEN_JOB, *SHARDS, worker=WorkerId(1, 0, 0), text=text)
    ask(served, Kind.FENCE, *SHARDS, worker=ME)
    for n, number in enumerate(SPARSE, 1):  # makes the job the tables' writer
        said(served, push(n, n - 1, number, [[1], [1], [1], [1]]))
    return served


def push(n: int, prev: int, table: int, keys: Sequence[Any], **more: Any) -> Request:
    """A push of these keys to each shard."""
    spec = TABLES[table]
    dim = spec.dim if isinstance(spec, SparseSpec) else 3
    counts = [len(each) for each in keys]
    parts = tuple(
        Part(shard, NOWHERE, prev, count, count * dim)
        for shard, count in zip(SHARDS, counts, strict=False)
    )
    values = (np.arange(sum(counts) * dim) % 11 - 5).astype(spec.dtype)
    all_keys = np.concatenate([np.asarray(each, np.uint64) for each in keys])
    fields = {"worker": ME, "clock": 1, "n": n, "table": table, **more}
    return Request(Kind.PUSH, 5, parts, 1, keys=all_keys, values=(values,), **fields)


FIRST = len(SPARSE) + 1  # the next push


def said(served: Served, request: Request) -> list[Answer]:
    effects = served.node.handle(MessageArrived(CLIENT, request), served.now_ns)
    answers = [effect.message for effect in effects if isinstance(effect, Send)]
    assert all(isinstance(answer, Answer) for answer in answers)
    return answers  # type: ignore[return-value]


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def state(served: Served) -> list[Any]:
    shards = served.node.served()
    logs = [replica.log for replica in served.node.replicas.values()]
    ranks = [vars_of(shard.jobs[1].ledger.ranks[0]) for shard in shards]
    places = [(log.applied, log.last, log.nbytes, len(log)) for log in logs]
    commits = [leading.commit for leading in map(leading_of, served.node.replicas.values())]
    return [[(s.digest(), s.position, s.lsn) for s in shards], ranks, places, commits]


def leading_of(replica: Any) -> Any:
    return replica.leading


def vars_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__slots__]


class Coming:
    """A push of which the first `have` bytes are there, and the others come through a socket."""

    def __init__(self, whole: Request, have: int = 0) -> None:
        self.bytes = whole.keys.tobytes() + whole.values[0].tobytes()
        self.have = have
        self.request = Request(*[getattr(whole, name) for name in Request.__slots__])
        self.request.keys = np.empty_like(whole.keys)
        self.request.values = (np.empty_like(whole.values[0]),)
        self.fill(0, have)
        self.ours, self.theirs = socket.socketpair()

    def fill(self, start: int, stop: int) -> None:
        at = 0
        for array in (self.request.keys, self.request.values[0]):
            view = array.view(np.uint8)
            lo, hi = max(start - at, 0), min(stop - at, view.size)
            if lo < hi:
                view[lo:hi] = np.frombuffer(self.bytes[at + lo : at + hi], np.uint8)
            at += view.size

    def received(self, push: Any) -> Any:
        """What has come by now is received, and made."""
        arrays = self.request.keys, self.request.values[0]
        left = len(self.bytes) - self.have
        taken = native.receive_push(self.ours.fileno(), *arrays, left, push.counts, push.arrays)
        if taken is not None:
            self.have += taken[0]
        return taken

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def early(served: Served, whole: Request, have: int = 0, comes: int | None = None) -> Any:
    """Its answer's bytes; the bytes that were there, if it was not all; None if it is not made
    early."""
    coming = Coming(whole, have)
    begun = served.node.begin_push(CLIENT, coming.request, served.now_ns)
    if begun is None:
        coming.close()
        return None
    stop = len(coming.bytes) if comes is None else have + comes
    coming.theirs.sendall(coming.bytes[have:stop])
    taken = coming.received(begun)
    coming.close()
    assert coming.have == stop
    answer = begun.end(taken[1])
    if answer is None:
        coming.fill(0, len(coming.bytes))  # as they come later
        return coming.request
    assert begun.until_ns == served.node.membership.deadline_ns
    return joined(answer)


key_lists = st.lists(st.integers(0, 12), max_size=9)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_what_is_made_while_it_comes_is_what_the_usual_way_makes(data: st.DataObject) -> None:
    quick, usual = prepared(), prepared(quick=False)
    for n in range(FIRST, FIRST + data.draw(st.integers(1, 4))):
        keys = data.draw(st.lists(key_lists, min_size=1, max_size=4))
        whole = push(n, n - 1, data.draw(st.sampled_from(SPARSE)), keys)
        (expected,) = said(usual, whole)
        size = whole.keys.nbytes + whole.values[0].nbytes
        have = data.draw(st.integers(0, max(0, size - 1)))
        comes = data.draw(st.sampled_from([size - have, size - have, (size - have) // 2]))
        got = early(quick, whole, have, comes) if size else None
        if isinstance(got, bytes):
            assert got == joined(encode(expected))
        else:  # what was made of it is a repeat
            (answer,) = said(quick, whole if got is None else got)
            assert [part[:3] for part in answer.parts] == [part[:3] for part in expected.parts]
        assert state(quick) == state(usual)


def in_pieces(served: Served, whole: Request) -> list[int]:
    """The push is made as it comes, by a thread that does not wait for us: what its parts lacked.

    What has not come in time comes later, as a whole message does."""
    coming = Coming(whole)
    begun = served.node.begin_push(CLIENT, coming.request, served.now_ns)
    assert begun is not None
    sender = threading.Thread(target=coming.theirs.sendall, args=(coming.bytes,))
    sender.start()
    taken = coming.received(begun)
    answer = None if taken is None else begun.end(taken[1])
    while coming.have < len(coming.bytes):
        coming.have += len(coming.ours.recv(1 << 20))
    sender.join()
    coming.close()
    coming.fill(0, len(coming.bytes))
    if answer is None:
        said(served, coming.request)
    return [] if taken is None else list(taken[1])


@pytest.mark.parametrize("table", SPARSE)
def test_large_pushes_that_come_in_pieces_are_shared_out_and_are_the_same(table: int) -> None:
    """With new rows and repeated keys, which lie in whichever share."""
    quick, usual = prepared(), prepared(quick=False)
    rng = np.random.default_rng(table)
    lacks: list[int] = []
    for n, size in zip(range(FIRST, FIRST + 5), (9_000, 3_000, 12_000, 12_000, 40), strict=True):
        whole = push(n, n - 1, table, [rng.integers(0, 30_000, size + i) for i in range(4)])
        lacks += in_pieces(quick, whole)
        said(usual, whole)
        assert state(quick) == state(usual)
    assert max(lacks) > 0, "a table that had to grow went on"
    assert min(lacks) <= 0


@pytest.mark.parametrize("table", SPARSE)
def test_parts_of_one_call_are_changed_as_they_are_one_by_one(table: int) -> None:
    """In shares: with repeated keys and new rows, of which some find no room and some no place."""
    spec = TABLES[table]
    assert isinstance(spec, SparseSpec)
    rng = np.random.default_rng(table)
    together, alone = ([SparseShard(spec) for _ in range(3)] for _ in range(2))
    lacked: set[int] = set()
    for shard in [*together, *alone]:  # whose scratch is large enough from now on
        shard.push(np.ones(9_000, np.uint64), np.zeros((9_000, spec.dim), spec.dtype))
    for turn in range(12):
        counts = [6_000 + turn + i for i in range(3)]
        keys = [rng.integers(0, 3_000 * (turn + 1), count).astype(np.uint64) for count in counts]
        grads = [rng.integers(-9, 9, (count, spec.dim)).astype(spec.dtype) for count in counts]
        flat = np.concatenate([each.reshape(-1) for each in grads])
        assert flat.nbytes > SHARED_BYTES
        arrays = [shard.push_arrays for shard in together]
        lacks = native.push_parts(np.concatenate(keys), flat, counts, arrays, [])
        assert lacks is not None
        lacked |= set(lacks)
        for shard, one, lack, some, theirs in zip(together, alone, lacks, keys, grads, strict=True):
            if lack:
                shard.go_on(lack, some, theirs.reshape(-1))
            one.push(some, theirs)
            assert shard.digest() == one.digest()
    assert lacked == {0, 1, 2}, "done, no place in the index, no room for rows"


SHARED_BYTES = 128 * 1024  # from here on other cores take part


def test_parts_whose_values_are_there_are_made_and_noted_though_the_rest_never_comes() -> None:
    quick, usual = prepared(), prepared(quick=False)
    whole = push(FIRST, FIRST - 1, 1, [[1, 2], [3], [4, 4], [5]])
    coming = Coming(whole)
    begun = quick.node.begin_push(CLIENT, coming.request, quick.now_ns)
    coming.theirs.sendall(coming.bytes[: 6 * 8 + 3 * 3 * 4 + 5])
    count, lacks = coming.received(begun)
    coming.close()
    assert (count, lacks) == (6 * 8 + 3 * 3 * 4 + 5, (0, 0, -1, -1))
    assert begun.end(lacks) is None
    lsns = [shard.lsn for shard in usual.node.served()]
    assert [shard.lsn for shard in quick.node.served()] == [lsns[0] + 1, lsns[1] + 1, *lsns[2:]]
    for served in (quick, usual):  # the client sends it again, and is answered by all
        (answer,) = said(served, whole)
        assert [part.status for part in answer.parts] == [Status.OK] * 4
    assert state(quick) == state(usual)
    assert said(quick, whole) == said(usual, whole), "and once more"


def test_a_connection_that_ends_leaves_what_it_has_brought() -> None:
    served = prepared()
    coming = Coming(push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]]))
    begun = served.node.begin_push(CLIENT, coming.request, served.now_ns)
    coming.theirs.sendall(coming.bytes[:40])
    coming.theirs.close()
    assert coming.received(begun) == (40, (-1, -1, -1, -1))
    coming.ours.close()


def test_nothing_is_made_before_the_keys_are_there() -> None:
    quick = prepared()
    before = state(quick)
    coming = early(quick, push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]]), comes=31)
    assert isinstance(coming, Request)
    assert state(quick) == before


def test_the_answer_is_the_same_where_the_native_module_does_not_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native_way, python_way = prepared(), prepared()
    whole = push(FIRST, FIRST - 1, 1, [[1, 2], [3], [], [5]])
    answer = early(native_way, whole)
    monkeypatch.setattr(quick_replication, "_IN_USE", False)
    assert early(python_way, whole) == answer
    assert isinstance(answer, bytes)
    assert state(native_way) == state(python_way)


def fence(served: Served) -> None:
    ask(served, Kind.FENCE, *SHARDS, worker=LATE)


def be_late(served: Served) -> None:
    served.now_ns += 100 * SECOND_NS


def follow(served: Served) -> None:
    leading = served.node.replicas[2].leading
    assert leading is not None
    leading.followers[served.node.home.me] = None  # type: ignore[assignment]


def take_an_image(served: Served) -> None:
    table = served.node.served()[3].tables[1]
    table.overlay = table.make_overlay(Allowance(1 << 20, lambda: None))


def switch_rules_off(served: Served) -> None:
    served.node._requests._all_rules = False


@pytest.mark.parametrize("happens", [fence, be_late, follow, take_an_image, switch_rules_off])
def test_what_stands_in_the_way_of_a_push_is_left_to_the_usual_way(
    happens: Callable[[Served], None],
) -> None:
    served = prepared()
    whole = push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]])
    happens(served)
    before = state(served)
    assert early(served, whole) is None
    assert state(served) == before


def newer(request: Request) -> None:
    first, *rest = request.parts
    request.parts = (first._replace(seen=Position(Epoch(1, 1), 999)), *rest)


def elsewhere(request: Request) -> None:
    first, *rest = request.parts
    request.parts = (first._replace(shard=7), *rest)


def twice(request: Request) -> None:
    first, *rest = request.parts
    request.parts = (first._replace(shard=1), *rest)


def too_many(request: Request) -> None:
    first, *rest = request.parts
    request.parts = (first._replace(elements=6), *rest)


WRONG: dict[str, Callable[[Request], None]] = {
    "a repeat": lambda r: setattr(r, "n", FIRST - 1),
    "a gap": lambda r: setattr(r, "parts", tuple(p._replace(prev=FIRST) for p in r.parts)),
    "another clock": lambda r: setattr(r, "clock", 2),
    "another incarnation of the cluster": lambda r: setattr(r, "incarnation", 2),
    "another job": lambda r: setattr(r, "worker", WorkerId(2, 0, 1)),
    "a table that is not": lambda r: setattr(r, "table", 9),
    "other values": lambda r: setattr(r, "values", (r.values[0].astype("float64"),)),
    "no values": lambda r: setattr(r, "values", ()),
    "no push": lambda r: setattr(r, "kind", Kind.PULL),
    "nobody": lambda r: setattr(r, "parts", ()),
    "newer": newer,
    "elsewhere": elsewhere,
    "twice": twice,
    "too many": too_many,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_push_that_is_not_plain_is_left_to_the_usual_way(wrong: str) -> None:
    served = prepared()
    whole = push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]])
    assert served.node.begin_push(CLIENT, whole, served.now_ns) is not None
    assert served.node.begin_push("client:2", whole, served.now_ns) is None, "no greeting"
    WRONG[wrong](whole)
    before = state(served)
    assert served.node.begin_push(CLIENT, whole, served.now_ns) is None
    assert state(served) == before


def test_bsp_and_dense_tables_are_left_to_the_usual_way() -> None:
    whole = push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]])
    assert prepared(BSP()).node.begin_push(CLIENT, whole, SECOND_NS) is None
    blocks = push(FIRST, FIRST - 1, 5, [[0]])
    assert prepared().node.begin_push(CLIENT, blocks, SECOND_NS) is None


def test_near_a_quota_nothing_is_received_and_nothing_has_happened() -> None:
    served = prepared()
    text = SparseSpec("ctr/rows", 3, "float32", SGD(0.5)).to_json().encode()
    ask(served, Kind.OPEN_TABLE, *SHARDS, table=6, text=text)
    share = Given(NOTHING, Size(100, WITHOUT_END))
    for what in (Settle({"ctr": Size(400, WITHOUT_END)}), Give((share,))):
        parts = tuple(Part(shard) for shard in SHARDS)
        said(served, Request(Kind.QUOTA, 8, parts, 1, clock=1, text=what.to_json()))
    first, second = (
        push(FIRST, FIRST - 1, 1, [[1]] * 4),
        push(FIRST + 1, FIRST, 1, [range(150)] * 4),
    )
    first.table = second.table = 6
    said(served, first)
    before = state(served)
    coming = Coming(second)
    begun = served.node.begin_push(CLIENT, coming.request, served.now_ns)
    coming.theirs.sendall(coming.bytes)
    assert coming.received(begun) is None
    assert len(coming.ours.recv(1 << 20)) > 0
    coming.close()
    assert state(served) == before


class Noted:
    """What an audit would write."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def note(self, *what: Any) -> None:
        self.lines.append(what)


@pytest.mark.parametrize("in_use", [True, False])
def test_an_audit_finds_each_part_at_its_place(
    monkeypatch: pytest.MonkeyPatch, in_use: bool
) -> None:
    noted = Noted()
    for owner, prefixes in (
        (ShardState, ("apply", "commit", "come_to")),
        (JobLedger, ("record_",)),
        (replicas, ("take_entries", "commit_entries")),
        (quick_requests, ("note_pushes",)),
        (quick_replication, ("METHODS",)),
    ):
        for name in [name for name in vars(owner) if name.startswith(prefixes)]:
            monkeypatch.setattr(owner, name, vars(owner)[name])  # as it is, to be put back
    monkeypatch.setattr(quick_replication, "_IN_USE", in_use)
    install(noted)  # type: ignore[arg-type]
    served = prepared()
    noted.lines.clear()
    whole = push(FIRST, FIRST - 1, 1, [[1], [2], [3], [4]])
    assert isinstance(early(served, whole), bytes)
    cut_off = push(FIRST + 1, FIRST, 1, [[1], [2], [3], [4]])
    early(served, cut_off, comes=4 * 8 + 12)  # the first part only
    places = [(shard.number, shard.position) for shard in served.node.served()]
    firsts = [places[0][1]._replace(lsn=places[0][1].lsn - 1), *[at for _, at in places[1:]]]
    expected = [("push", i, at, *ME, 1, FIRST) for i, at in enumerate(firsts)]
    assert noted.lines == [*expected, ("push", 0, places[0][1], *ME, 1, FIRST + 1)]

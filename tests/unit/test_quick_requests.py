"""The quick way of requests against the usual one: the same answers, the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_node import CLIENT, KEYS, SECOND_NS, Served, ask, elsewhere, serving

from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec, Tasks
from resilient_ps.engine import native
from resilient_ps.ids import NOWHERE, READER, Epoch, Position, WorkerId
from resilient_ps.machine import MessageArrived, Send
from resilient_ps.messages import Answer, Kind, Part, PartAnswer, Request, Status
from resilient_ps.quick_pulls import PLANS_MAX, QUICK_BYTES_MAX, QuickPulls
from resilient_ps.quick_requests import answer_quickly
from resilient_ps.quotas import NOTHING, WITHOUT_END, Give, Given, Settle, Size
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.optimisers import SGD, Adagrad, Adam, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec
from resilient_ps.wire import FrameReader, encode

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)

SHARDS = (0, 1, 2, 3)
ME, LATE = WorkerId(1, 0, 1), WorkerId(1, 0, 2)
TABLES: dict[int, TableSpec] = {
    1: SparseSpec("rows", 3, "float32", Adagrad(0.1)),
    2: SparseSpec("sums", 1, "int64", Sum()),
    3: DenseSpec("blocks", (70_000, 4), "float32", Adam(0.01)),
    4: DenseSpec("few", (3,), "float64", SGD(0.5)),
}


def prepared(mode: Consistency, *, quick: bool) -> Served:
    """A node with these tables and a job of two ranks, both fenced."""
    served = serving()
    served.node._requests._all_rules = quick
    for number, spec in TABLES.items():
        ask(served, Kind.OPEN_TABLE, *SHARDS, table=number, text=spec.to_json().encode())
    for job in (1, 2):
        text = JobSpec(job, f"job{job}", 2, mode).to_json().encode()
        ask(served, Kind.OPEN_JOB, *SHARDS, worker=WorkerId(job, 0, 0), text=text)
        for rank in range(2):
            ask(served, Kind.FENCE, *SHARDS, worker=WorkerId(job, rank, 1))
    return served


Said = list[tuple[int, PartAnswer, list[Any], int]]


def said(served: Served, request: Request) -> Said:
    """Per part: its answer and its values, and until when they may be sent."""
    effects = served.node.handle(MessageArrived(CLIENT, request), served.now_ns)
    return [
        each
        for effect in effects
        if isinstance(effect, Send)
        for each in parts_of(effect.message, effect.until_ns)
    ]


def parts_of(answer: Any, until_ns: int) -> Said:
    assert isinstance(answer, Answer)
    flat = np.concatenate(answer.values) if answer.values else np.empty(0)
    found, start = [], 0
    for part in answer.parts:
        stop = start + part.elements
        found.append((answer.request, part, flat[start:stop].tolist(), until_ns))
        start = stop
    assert start == flat.size
    return found


def by_bytes(served: Served, request: Request, peer: str = CLIENT) -> Said | None:
    """As `said`, where the bytes of the request are answered with bytes."""
    frame = memoryview(b"".join(map(bytes, encode(request))))
    limits = 1 << 20, 1 << 26
    answer = served.node.answer_bytes(peer, frame, 0, len(frame), limits, served.now_ns)
    if answer is None:
        return None
    buffers, until_ns = answer
    data = memoryview(b"".join(buffers))
    reader, messages = FrameReader(), list[Any]()
    while data.nbytes:
        buffer = reader.get_buffer()
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        data = data[count:]
        messages += reader.received(count)
    (message,) = messages
    return parts_of(message, until_ns)


def digests(served: Served) -> list[tuple[str, Position]]:
    return [(shard.digest(), shard.position) for shard in served.node.served()]


def both(mode: Consistency) -> tuple[Served, Served]:
    return prepared(mode, quick=True), prepared(mode, quick=False)


def keys_of(draw: st.DrawFn, table: int, shard: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    if table in (1, 2):
        return np.array(draw(st.lists(st.integers(0, 9), max_size=6)), np.uint64)
    if table == 3 and draw(st.booleans()):  # most shards have blocks of the large table
        return np.array([[0], [1], [2], [3, 4]][shard], np.uint64)
    return np.array(draw(st.lists(st.integers(0, 5), max_size=2)), np.uint64)


def elements_of(table: int, keys: Any) -> int:
    spec = TABLES[table]
    if isinstance(spec, SparseSpec):
        return len(keys) * spec.dim
    from resilient_ps.tables.dense import DenseLayout

    layout = DenseLayout(spec, len(SHARDS))
    return sum(layout.block_elements(int(key)) for key in keys if key < layout.blocks)


def pull(keys: Any = (1, 2), **more: Any) -> Request:
    keys = np.asarray(keys, np.uint64)
    parts = tuple(Part(shard, count=len(keys)) for shard in SHARDS)
    fields = {"worker": ME, "clock": 1, "table": 1, **more}
    return Request(Kind.PULL, 6, parts, 1, keys=np.tile(keys, 4), **fields)


@st.composite
def requests(draw: st.DrawFn, number: int) -> Request:
    """Pushes and pulls as they should be, and a few that are wrong in one way or another."""
    kind = draw(st.sampled_from([Kind.PUSH, Kind.PUSH, Kind.PULL, Kind.TICK]))
    table = draw(st.sampled_from([1, 1, 2, 3, 4, 9]))
    known = table if table in TABLES else 1
    shards = draw(st.lists(st.sampled_from([*SHARDS, *SHARDS, 7]), min_size=1, max_size=4))
    if draw(st.integers(0, 5)):
        shards = list(dict.fromkeys(shards))
    all_keys, parts, elements_sum = [], [], 0
    n = draw(st.integers(0, 4))
    for shard in shards:
        keys = keys_of(draw, known, min(shard, 3))
        count = 0 if kind is Kind.TICK else len(keys)
        elements = elements_of(known, keys) if kind is Kind.PUSH else 0
        seen = draw(st.sampled_from([NOWHERE, NOWHERE, NOWHERE, Position(Epoch(1, 1), 999_999)]))
        parts.append(Part(shard, seen, draw(st.integers(0, max(0, n - 1))), count, elements))
        all_keys.append(keys[:count])
        elements_sum += elements
    dtype = draw(st.sampled_from([TABLES[known].dtype] * 5 + ["float64"]))
    values = np.arange(elements_sum).astype(dtype) % 7
    return Request(
        kind, number, tuple(parts), 1,
        draw(st.sampled_from([ME, ME, ME, ME, READER, LATE, WorkerId(1, 1, 1), WorkerId(2, 0, 1)])),
        draw(st.sampled_from([1, 1, 1, 2, 3])), n, table,
        draw(st.sampled_from([0, SECOND_NS])), keys=np.concatenate(all_keys),
        values=(values,) if elements_sum else (),
    )  # fmt: skip


@given(
    st.sampled_from([ASP(), SSP(1), BSP(), Tasks()]),
    st.integers(1, 12).flatmap(lambda n: st.tuples(*[requests(i) for i in range(n)])),
)
@settings(deadline=None, max_examples=60)
def test_both_ways_say_and_do_the_same(mode: Consistency, stream: tuple[Request, ...]) -> None:
    quick, usual = both(mode)
    for request in stream:
        expected = said(usual, request)
        before = by_bytes(quick, request)  # where there is a plan already
        assert (said(quick, request) if before is None else before) == expected
        if request.kind is Kind.PULL and expected:
            assert by_bytes(quick, request) in (None, expected)
    assert digests(quick) == digests(usual)


def push(n: int, prev: int, keys: Any, **more: Any) -> Request:
    keys = np.asarray(keys, np.uint64)
    parts = tuple(Part(shard, NOWHERE, prev, len(keys), 3 * len(keys)) for shard in SHARDS)
    values = np.ones(12 * len(keys), np.float32)
    fields = {"worker": ME, "clock": 1, "n": n, "table": 1, **more}
    return Request(Kind.PUSH, 5, parts, 1, keys=np.tile(keys, 4), values=(values,), **fields)


def test_pushes_that_make_tables_grow_do_so_both_ways() -> None:
    quick, usual = both(ASP())
    rng = np.random.default_rng(1)
    for n in range(1, 9):
        request = push(n, n - 1, rng.integers(0, 1 << 62, 2 + 400 * n))
        assert said(quick, request) == said(usual, request)
    assert digests(quick) == digests(usual)


def test_plain_requests_really_go_the_quick_way() -> None:
    served = prepared(ASP(), quick=True)
    replicas = served.node.replicas
    said(served, push(1, 0, [1, 2]))  # the first one makes the job the table's writer
    answer = answer_quickly(push(2, 1, [1, 2]), replicas)
    assert answer is not None
    assert [part.status for part in answer.parts] == [Status.OK] * 4
    assert answer_quickly(push(2, 1, [1, 2]), replicas) is None  # a repeat
    assert by_bytes(served, pull()) is None  # the first one makes a plan
    said(served, pull())
    said(served, push(3, 2, range(400)))  # which makes the table grow
    assert by_bytes(served, pull(range(300))) == said(served, pull(range(300)))


def blocks(keys: Any = range(5), counts: Any = (1, 1, 1, 2), **more: Any) -> Request:
    """A pull of the large dense table."""
    parts = tuple(Part(shard, count=n) for shard, n in zip(SHARDS, counts, strict=True))
    fields = {"worker": ME, "clock": 1, "table": 3, **more}
    return Request(Kind.PULL, 6, parts, 1, keys=np.array(keys, np.uint64), **fields)


def test_blocks_are_lent_as_bytes_and_a_later_push_leaves_them_alone() -> None:
    served = prepared(ASP(), quick=True)
    before = said(served, blocks())
    assert by_bytes(served, blocks()) == before
    frame = memoryview(b"".join(map(bytes, encode(blocks()))))
    limits = (1 << 20, 1 << 26)
    lent = served.node.answer_bytes(CLIENT, frame, 0, len(frame), limits, served.now_ns)
    assert lent is not None
    bytes_before = b"".join(lent[0])
    size = sum(part.elements for _, part, *_ in before)
    parts = tuple(
        Part(shard, NOWHERE, 0, part.count, part.elements)
        for shard, (_, part, *_) in zip(SHARDS, before, strict=True)
    )
    gradient = (np.ones(size, np.float32),)
    fields: dict[str, Any] = {"worker": ME, "clock": 1, "n": 1, "table": 3, "values": gradient}
    said(served, Request(Kind.PUSH, 5, parts, 1, keys=blocks().keys, **fields))
    assert b"".join(lent[0]) == bytes_before
    after = said(served, blocks())
    assert [values for *_, values, _ in after] != [values for *_, values, _ in before]
    assert by_bytes(served, blocks()) == after


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ((0, 1, 2, 4, 3), (1, 1, 1, 2)),
        ((0, 1, 2, 3, 3), (1, 1, 1, 2)),
        ((0, 1, 2, 4, 5), (1, 1, 1, 2)),
        ((0, 1, 2, 2, 3), (1, 1, 1, 2)),
        ((0, 1, 5, 3, 4), (1, 1, 1, 2)),
        ((0, 1, 2**64 - 1, 3, 4), (1, 1, 1, 2)),
        ((0, 1, 3, 4), (1, 1, 0, 2)),
        ((0, 1, 2, 3, 4, 4), (1, 1, 1, 2)),
        ((0, 1, 2, 3), (1, 1, 1, 2)),
    ],
)
def test_blocks_that_do_not_stand_in_a_row_are_left_to_the_usual_way(
    keys: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    served = prepared(ASP(), quick=True)
    said(served, blocks())
    assert by_bytes(served, blocks()) is not None
    assert by_bytes(served, blocks(keys, counts)) is None


@pytest.mark.parametrize("wrong", ["more keys", "newer", "another shard", "wide", "large"])
def test_bytes_that_are_no_plain_pull_are_left_to_the_usual_way(wrong: str) -> None:
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2]))
    said(served, pull())
    assert by_bytes(served, pull()) is not None
    request = pull()
    first, *rest = request.parts
    if wrong == "more keys":
        first = first._replace(count=first.count + 1)
    elif wrong == "newer":
        first = first._replace(seen=Position(Epoch(1, 1), 999))
    elif wrong == "another shard":
        first = first._replace(shard=7)
    elif wrong == "wide":
        first = first._replace(elements=3)
    else:
        first = first._replace(count=QUICK_BYTES_MAX // 12)
        request.keys = np.concatenate([np.ones(first.count, np.uint64), request.keys[2:]])
    request.parts = (first, *rest)
    assert by_bytes(served, request) is None


def fence(served: Served) -> None:
    ask(served, Kind.FENCE, *SHARDS, worker=LATE)


def drop_table(served: Served) -> None:
    ask(served, Kind.DROP_TABLE, 2, table=1)


def lose_a_shard(served: Served) -> None:
    served.put(KEYS.shard(1), elsewhere(1))


def be_late(served: Served) -> None:
    served.now_ns += 100 * SECOND_NS


HAPPENINGS = (fence, drop_table, lose_a_shard, be_late)


@pytest.mark.parametrize("happens", HAPPENINGS)
def test_what_happens_between_two_pulls_is_seen(happens: Callable[[Served], None]) -> None:
    quick, usual = both(ASP())
    for served in (quick, usual):
        said(served, push(1, 0, [1, 2]))
        said(served, pull())
        happens(served)
    assert by_bytes(quick, pull()) is None
    assert said(quick, pull()) == said(usual, pull())


@pytest.mark.parametrize("happens", HAPPENINGS[:2])
def test_control_a_plan_that_is_not_forgotten_answers_wrongly(
    happens: Callable[[Served], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickPulls, "forget", lambda pulls: None)
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2]))
    said(served, pull())
    happens(served)
    assert by_bytes(served, pull()) is not None


def test_who_has_not_said_hello_gets_no_bytes() -> None:
    served = prepared(ASP(), quick=True)
    said(served, pull())
    assert by_bytes(served, pull()) is not None
    assert by_bytes(served, pull(), peer="client:2") is None


def test_plans_are_limited() -> None:
    served = prepared(ASP(), quick=True)
    pulls = served.node._requests.quick_pulls
    for clock in range(1, PLANS_MAX + 10):
        said(served, pull(clock=clock))
        assert len(pulls._plans) <= PLANS_MAX
    assert by_bytes(served, pull(clock=PLANS_MAX + 9)) is not None


def test_pushes_beside_images_go_the_quick_way_and_images_keep_their_rows() -> None:
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2, 3]))
    overlays = []
    for shard in served.node.served()[:3]:  # of the last one none is taken
        table = shard.tables[1]
        table.overlay = table.make_overlay(Allowance(1 << 20, lambda: None))
        overlays.append(table.overlay)
    assert answer_quickly(push(2, 1, [2]), served.node.replicas) is None  # it may belong in it
    said(served, push(2, 1, [2]))
    before = [shard.tables[1].capture(0, 1 << 20)[2].tobytes() for shard in served.node.served()]
    for overlay in overlays:
        overlay.freeze()
    for n in (3, 4):
        assert answer_quickly(push(n, n - 1, [2, 3, n]), served.node.replicas) is not None
    for overlay, rows in zip(overlays, before, strict=False):
        piece = overlay.capture(1 << 20)
        assert piece is not None
        assert piece[1].tobytes() == rows
    assert len({shard.tables[1].digest() for shard in served.node.served()}) == 1


def test_a_push_is_not_made_in_part() -> None:
    """One of its shards knows it already: the others have not changed before all are asked."""
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2]))
    first = push(2, 1, [1, 2])
    first.parts = (first.parts[3],)
    first.keys, first.values = first.keys[:2], (first.values[0][:6],)
    said(served, first)
    before = digests(served)
    assert answer_quickly(push(2, 1, [1, 2]), served.node.replicas) is None
    assert digests(served) == before
    assert [part.status for _, part, *_ in said(served, push(2, 1, [1, 2]))] == [Status.OK] * 4
    assert [position.lsn for _, position in digests(served)] == [
        position.lsn + (shard != 3) for shard, (_, position) in enumerate(before)
    ]


def test_a_primary_with_followers_takes_the_usual_way() -> None:
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2]))
    leading = served.node.replicas[2].leading
    assert leading is not None
    assert leading.commits_alone
    leading.followers[served.node.home.me] = None  # type: ignore[assignment]
    assert not leading.commits_alone
    assert answer_quickly(push(2, 1, [1, 2]), served.node.replicas) is None


def test_nothing_is_answered_quickly_without_a_valid_lease() -> None:
    served = prepared(ASP(), quick=True)
    said(served, push(1, 0, [1, 2]))
    served.now_ns += 100 * SECOND_NS
    assert {part.status for _, part, *_ in said(served, push(2, 1, [1, 2]))} == {Status.NOT_OWNER}


def under_quota(served: Served, rows_max: int, share: int) -> None:
    """Table 5 in a namespace with a quota, of which each shard may use `share` rows."""
    text = SparseSpec("ctr/rows", 3, "float32", SGD(0.5)).to_json().encode()
    ask(served, Kind.OPEN_TABLE, *SHARDS, table=5, text=text)
    given = Given(NOTHING, Size(share, WITHOUT_END))
    for said_of_it in (Settle({"ctr": Size(rows_max, WITHOUT_END)}), Give((given,))):
        parts = tuple(Part(shard) for shard in SHARDS)
        request = Request(Kind.QUOTA, 8, parts, 1, clock=1, text=said_of_it.to_json())
        assert {part.status for _, part, *_ in said(served, request)} == {Status.OK}


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=12), st.integers(0, 30))
@settings(deadline=None, max_examples=25)
def test_both_ways_keep_to_quotas_alike(pushes: list[list[int]], share: int) -> None:
    quick, usual = both(ASP())
    for served in (quick, usual):
        under_quota(served, 4 * share, share)
    n = 0
    for keys in pushes:
        request = push(n + 1, n, keys, table=5)
        answers = said(quick, request)
        assert answers == said(usual, request)
        n += answers[0][1].status is Status.OK
    assert digests(quick) == digests(usual)
    assert all(shard.tables[5].rows <= share for shard in quick.node.served())


def test_far_from_a_quota_pushes_go_the_quick_way_and_near_it_the_usual_one() -> None:
    served = prepared(ASP(), quick=True)
    under_quota(served, 4_000, 1_000)
    replicas = served.node.replicas
    said(served, push(1, 0, [1, 2], table=5))
    assert answer_quickly(push(2, 1, range(500), table=5), replicas) is not None
    assert answer_quickly(push(3, 2, range(600, 1_150), table=5), replicas) is None
    statuses = {part.status for _, part, *_ in said(served, push(3, 2, range(600, 1_150), table=5))}
    assert statuses == {Status.BUSY}

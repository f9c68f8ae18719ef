"""Replicated pushes on the quick way against the usual one: the same answers, frames and states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_pair import NAMES, Pair

from resilient_ps import plain_push, quick_replication, replicas
from resilient_ps.chaos.live.audit import install
from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec
from resilient_ps.engine import native
from resilient_ps.ids import Position, PushId, WorkerId
from resilient_ps.ledger import ACCEPT, JobLedger
from resilient_ps.messages import (
    AppendPart,
    Command,
    Entry,
    Kind,
    Part,
    PartAnswer,
    Request,
)
from resilient_ps.quick_replication import enter_push
from resilient_ps.quick_requests import append_quickly
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.replica import Replica
from resilient_ps.shard_state import ShardState
from resilient_ps.tables.optimisers import SGD, Adagrad, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec
from resilient_ps.waiting import Origin

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)

ME, LATE = WorkerId(1, 0, 1), WorkerId(1, 0, 0)
TABLES: dict[int, TableSpec] = {
    1: SparseSpec("rows", 3, "float32", Adagrad(0.1)),
    2: SparseSpec("sums", 1, "int64", Sum()),
    3: DenseSpec("blocks", (70_000, 4), "float32", SGD(0.5)),
}


def prepared(mode: Consistency, *, quick: bool) -> Pair:
    """Two servers with these tables, and a job of two ranks."""
    pair = Pair(quick=quick)
    for number, spec in TABLES.items():
        ask(pair, Kind.OPEN_TABLE, table=number, text=spec.to_json().encode())
    text = JobSpec(1, "job", 2, mode).to_json().encode()
    ask(pair, Kind.OPEN_JOB, worker=WorkerId(1, 0, 0), text=text)
    for rank in range(2):
        ask(pair, Kind.FENCE, worker=WorkerId(1, rank, 1))
    pair.answers.clear()
    pair.appends.clear()
    return pair


def ask(pair: Pair, kind: Kind, **more: Any) -> None:
    for name in NAMES:
        pair.says(name, Request(kind, 1, tuple(map(Part, pair.led_by(name))), 1, **more))
    pair.settle()


def told(pair: Pair) -> list[tuple[str, int, PartAnswer]]:
    """Answers per part, whatever messages they came in."""
    return sorted(
        (name, answer.request, part) for name, answer in pair.answers for part in answer.parts
    )


def frames(pair: Pair) -> list[Any]:
    """What replicas were sent, as plain values."""
    return [[_part(part) for part in append.parts] for append in pair.appends]


def _part(part: AppendPart) -> Any:
    return (*part[:-1], [_entry(entry) for entry in part.entries])


def _entry(entry: Entry) -> Any:
    c = entry.command
    fields = c.kind, c.worker, c.clock, c.n, c.prev, c.table, c.rate, c.settled, c.text
    return entry.at, fields, c.keys.tolist(), c.values.tolist(), str(c.values.dtype)


MOVES = [*["push"] * 6, *["deliver"] * 4, *["settle"] * 3, "tick", "time"]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Pushes (also repeats, gaps and wrong ones), ticks, deliveries and time, in any order."""
    found: list[tuple[Any, ...]] = []
    n = clock = 1
    if draw(st.booleans()):  # all shards know who writes to the tables
        for table in TABLES:
            found += [("push", 90 + n, table, ME, clock, n, n - 1, n, False), ("settle",)]
            n += 1
    for number in range(draw(st.integers(1, 14))):
        what = draw(
            st.sampled_from(["push"] * 6 + ["deliver"] * 4 + ["settle"] * 3 + ["tick", "time"])
        )
        if what != "push":
            found.append((what, draw(st.integers(0, 5)), clock, n))
            if what == "tick":
                n, clock = 1, clock + draw(st.sampled_from([1, 1, 1, 0]))
            continue
        table = draw(st.sampled_from([1, 1, 1, 2, 3]))
        worker = draw(st.sampled_from([ME] * 6 + [LATE]))
        mine = max(1, n + draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
        prev = max(0, mine - 1 - draw(st.sampled_from([0, 0, 0, 1])))
        seed, twice = draw(st.integers(0, 9)), draw(st.integers(0, 15)) == 0
        found.append(("push", number, table, worker, clock, mine, prev, seed, twice))
        n = max(n, mine + 1)
    return found


def do(pair: Pair, step: tuple[Any, ...]) -> None:
    match step:
        case ("push", number, table, worker, clock, n, prev, seed, twice):
            for name in NAMES:
                pair.says(
                    name, push(pair, name, number, table, worker, clock, n, prev, seed, twice)
                )
        case ("deliver", which, *_):
            lines = pair.lines()
            if lines:
                pair.deliver(lines[which % len(lines)])
        case ("tick", _, clock, n):
            for name in NAMES:
                parts = tuple(Part(shard, prev=n - 1) for shard in pair.led_by(name))
                pair.says(name, Request(Kind.TICK, 99, parts, 1, ME, clock))
        case ("time", *_):
            pair.tick()
        case ("settle", *_):
            pair.settle()


def push(
    pair: Pair, name: str, number: int, table: int, worker: WorkerId, clock: int, n: int,
    prev: int, seed: int, twice: bool = False,
) -> Request:  # fmt: skip
    rng, spec = np.random.default_rng(seed), TABLES[table]
    shards = [*pair.led_by(name), *pair.led_by(name)[: 1 if twice else 0]]
    keys, parts, elements = [], [], 0
    for shard in shards:
        own = rng.integers(0, 9, rng.integers(0, 6)).astype(np.uint64)
        size = len(own) * (spec.dim if isinstance(spec, SparseSpec) else 1)
        if isinstance(spec, DenseSpec):
            part = pair.nodes[name].replicas[shard].shard.tables[table]
            own = np.array(part._held.blocks[:1], np.uint64)
            size = part.elements(own)
        keys.append(own)
        parts.append(Part(shard, prev=prev, count=len(own), elements=size))
        elements += size
    values = (np.arange(elements) % 7).astype(spec.dtype)
    keys_all = np.concatenate(keys)
    return Request(
        Kind.PUSH, number, tuple(parts), 1, worker, clock, n, table, keys=keys_all, values=(values,)
    )


@pytest.mark.parametrize("in_use", [True, False])
def test_both_ways_say_send_and_do_the_same(monkeypatch: pytest.MonkeyPatch, in_use: bool) -> None:
    monkeypatch.setattr(quick_replication, "_IN_USE", in_use)
    compare_both_ways()


@given(st.sampled_from([ASP(), ASP(), SSP(1), BSP()]), steps())
@settings(deadline=None, max_examples=12)
def compare_both_ways(mode: Consistency, stream: list[Any]) -> None:
    quick, usual = prepared(mode, quick=True), prepared(mode, quick=False)
    for step in stream:
        do(quick, step)
        do(usual, step)
        assert told(quick) == told(usual)
        assert insides(quick) == insides(usual)
    for pair in (quick, usual):
        pair.settle()
        pair.tick()
        pair.settle()
    assert told(quick) == told(usual)
    assert frames(quick) == frames(usual)
    assert quick.digests() == usual.digests()
    assert insides(quick) == insides(usual)
    assert_alike(quick)


def insides(pair: Pair) -> list[Any]:
    """What replicas know of their logs and of each other."""
    return [
        (name, number, _log(replica), _leading(replica.leading))
        for name, node in pair.nodes.items()
        for number, replica in sorted(node.replicas.items())
    ]


def _log(replica: Replica) -> Any:
    log = replica.log
    held = [_entry(entry) for entry in log.pending()]
    return log.applied, log.last, log.nbytes, log.keys, log.epochs, held, replica._verified


def _leading(leading: Leading | None) -> Any:
    if leading is None:
        return None
    followers = [
        (f.match, f.sent, f.told, f.since_ns, f.attempt) for f in leading.followers.values()
    ]
    return leading.commit, leading._origins, followers, leading.shard.position


def assert_alike(pair: Pair) -> None:
    """Both servers hold the same, byte for byte."""
    first, second = ({n: d for (s, n), d in pair.digests().items() if s == name} for name in NAMES)
    assert first == second
    assert len(first) == 4


def writing(table: int = 1) -> Pair:
    """Both servers' shards have heard of the job as the writer of a table, and of nothing else."""
    pair = prepared(ASP(), quick=True)
    do(pair, ("push", 4, table, ME, 1, 1, 0, 3, False))
    pair.settle()
    pair.tick()
    pair.settle()
    pair.answers.clear()
    pair.appends.clear()
    return pair


class Counted:
    """The native module: by function of the quick way, what became of each call."""

    def __init__(self) -> None:
        self.calls: dict[str, list[bool]] = {}  # was it taken?

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            made = getattr(native, name)(*arguments)
            self.calls.setdefault(name, []).append(made is not None)
            return made

        return call


@pytest.mark.parametrize("table", TABLES)
def test_a_plain_push_is_one_message_each_way_and_three_steps(
    monkeypatch: pytest.MonkeyPatch, table: int
) -> None:
    pair, counted = writing(table), Counted()
    monkeypatch.setattr(quick_replication, "native", counted)
    shards = len(pair.led_by("s1"))
    assert shards > 1
    for n in (2, 3):
        pair.says("s1", push(pair, "s1", 3 + n, table, ME, 1, n, n - 1, 3, False))
        pair.settle()
    first, second = pair.appends
    assert len(first.parts) == len(second.parts) == shards
    twice = [True, True]
    assert counted.calls == {
        "enter_push": twice, "take_entries": twice, "commit_entries": twice
    }  # fmt: skip
    assert [len(answer.parts) for _, answer in pair.answers] == [shards, shards]
    pair.tick()
    pair.settle()
    assert_alike(pair)


def test_where_it_is_not_plain_enough_a_push_is_still_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counting(keys: Any, *arrays: Any) -> Any:
        made.append(len(keys))
        return native.push_each(keys, *arrays)

    monkeypatch.setattr(quick_replication, "_IN_USE", False)
    pair = writing()
    monkeypatch.setattr(plain_push, "native", type("Counted", (), {"push_each": counting}))
    shards = len(pair.led_by("s1"))
    pair.says("s1", push(pair, "s1", 5, 1, ME, 1, 2, 1, 3, False))
    pair.settle()
    assert made == [shards]  # on the primary; the backup has not heard that it is committed
    pair.run_until(lambda: len(made) > 1)
    assert made == [shards, shards]
    assert_alike(pair)


def test_where_one_shard_is_not_plain_all_go_the_usual_way() -> None:
    pair = writing()
    request = push(pair, "s1", 5, 1, ME, 1, 3, 2, 3, False)  # its predecessor is missing
    node, origin = pair.nodes["s1"], Origin("client:1", 5)
    assert append_quickly(request, node.replicas, origin, pair.now_ns) is None
    assert enter_push(request, node.replicas, origin, pair.now_ns) is None
    assert all(not len(node.replicas[number].log) for number in pair.led_by("s1"))


@given(st.integers(0, 3), st.integers(0, 3), st.integers(-1, 2), st.integers(-1, 3),
       st.integers(0, 2), st.booleans())  # fmt: skip
def test_the_quick_question_to_the_ledger_accepts_nothing_that_the_usual_one_does_not(
    n: int, prev: int, incarnation: int, clock: int, held: int, replays: bool
) -> None:
    shard = ShardState(0, 1)
    ledger = opened(shard)
    for number in range(1, held + 1):
        ledger.record_push(0, PushId(1, number, number - 1), number)
    if replays:
        ledger.ranks[0].replayed = 0
    worker = WorkerId(1, 0, 1 + incarnation)
    usual = ledger.check_push(worker, PushId(1 + clock, n, prev), 7)
    assert ledger.accepts(worker, 1 + clock, n, prev) == (usual is ACCEPT)


def opened(shard: ShardState) -> Any:
    text = JobSpec(1, "job", 1, ASP()).to_json().encode()
    shard.prepare(Command(Kind.OPEN_JOB, WorkerId(1, 0, 0), text=text))()  # type: ignore[operator]
    shard.prepare(Command(Kind.FENCE, ME))()  # type: ignore[operator]
    return shard.jobs[1].ledger


class Noted:
    """What an audit would write."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int]] = []  # what, shard, lsn

    def note(self, what: str, shard: int, at: Position, *_: int) -> None:
        self.lines.append((what, shard, at.lsn))


@pytest.mark.parametrize("in_use", [True, False])
def test_an_audit_finds_each_push_at_its_own_shard_and_place(
    monkeypatch: pytest.MonkeyPatch, in_use: bool
) -> None:
    noted, counted = Noted(), Counted()
    for owner, prefixes in (
        (ShardState, ("apply", "commit", "come_to")),
        (JobLedger, ("record_",)),
        (replicas, ("take_entries", "commit_entries")),
        (quick_replication, ("METHODS",)),
    ):
        for name in [name for name in vars(owner) if name.startswith(prefixes)]:
            monkeypatch.setattr(owner, name, vars(owner)[name])  # as it is, to be put back
    monkeypatch.setattr(quick_replication, "_IN_USE", in_use)
    monkeypatch.setattr(quick_replication, "native", counted)
    install(noted)  # type: ignore[arg-type]
    pair = writing()
    noted.lines.clear()
    counted.calls.clear()
    expected: list[tuple[str, int, int]] = []
    for n in (2, 3):
        pair.says("s1", push(pair, "s1", 3 + n, 1, ME, 1, n, n - 1, 3))
        pair.settle()
        expected += lines_of(pair, 1) if n == 3 else []  # the backup hears of the push before
        expected += lines_of(pair, 0)
    pair.tick()
    pair.settle()
    assert noted.lines == [*expected, *lines_of(pair, 0)], "once on the primary, once on the backup"
    taken = [any(counted.calls.get(name, ())) for name in ("take_entries", "commit_entries")]
    assert taken == [in_use, in_use]


def lines_of(pair: Pair, before: int) -> list[tuple[str, int, int]]:
    """What is to be noted of the last push but so many, by whichever of the two."""
    held = pair.nodes["s1"].replicas
    return [("push", number, held[number].log.applied - before) for number in pair.led_by("s1")]


def test_who_replaces_what_is_left_out_sees_each_push(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    record = JobLedger.record_push

    def recording(self: JobLedger, rank: int, push: PushId, digest: int) -> None:
        seen.append(push.n)
        record(self, rank, push, digest)

    pair = writing()
    monkeypatch.setattr(JobLedger, "record_push", recording)
    pair.says("s1", push(pair, "s1", 5, 1, ME, 1, 2, 1, 3))
    pair.settle()
    assert seen == [2] * len(pair.led_by("s1"))

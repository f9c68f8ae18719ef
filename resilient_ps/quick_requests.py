"""The quick way of pushes that nothing stands in the way of. That of pulls: `quick_pulls`.

What a request costs is mostly Python per shard. So where every one of its parts can be answered at
once, the parts are checked one after the other, with the same checks and in the same order as on
the usual way, and then all tables are worked on in one call of the native module, on all cores
where there is much to do. Such a push is one of a primary that is alone and has nothing pending: it
is committed as soon as it is made, so its entry need not be kept.

Where others hold the shards, too, such a push becomes an entry of each in one go, for one message
to each of them (`append_quickly`); it is committed and applied like all entries.

While a large push is still being received, what was checked is an `EarlyPush`: its parts are made
one by one, as they come.

All or nothing: where one part is not plain (a repeat, a gap, BSP's pushes, whatever is wrong),
nothing has been changed, and the whole request goes the usual way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import xxhash

from resilient_ps.barrier import Update
from resilient_ps.engine import native
from resilient_ps.ids import PushId
from resilient_ps.messages import Answer, Command, Keys, Kind, PartAnswer, Request, Status
from resilient_ps.plain_push import PARTS_MAX, PlainPush
from resilient_ps.quick_replication import note_pushes
from resilient_ps.replication.home import Out
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.replica import Replica
from resilient_ps.table_part import TablePart
from resilient_ps.tables.sparse_overlay import SparseOverlay
from resilient_ps.waiting import Origin
from resilient_ps.wire import encode

ByNumber: TypeAlias = Mapping[int, Replica]
Made: TypeAlias = "tuple[Leading, TablePart, PushId]"

KEPT = 8  # of what a part of a push lacks: its image has kept rows
_new = tuple.__new__  # several times faster than a named tuple's own constructor


def answer_quickly(request: Request, by_number: ByNumber) -> Answer | None:
    """The answer of all parts; None: it goes the usual way, and nothing has been changed."""
    if native is None or request.kind is not Kind.PUSH:
        return None
    return _push(request, by_number)


def leading_of(by_number: ByNumber, shard: int) -> Leading | None:
    """The primary of this shard, if it serves."""
    replica = by_number.get(shard)
    leading = None if replica is None else replica.leading
    return leading if leading is not None and leading.commit >= leading.opened else None


class EarlyPush:
    """A push that is accepted, while its values are still on their way.

    Its parts are made as they come (`native.receive_push`): nothing else may be handled between its
    making and `end`. A part that was made is a repeat, should the request come again.
    """

    __slots__ = ("_made", "_request", "arrays", "counts", "until_ns")

    def __init__(self, request: Request, made: list[Made], until_ns: int) -> None:
        self._request = request
        self._made = made
        self.until_ns = until_ns  # its answer may leave until then: see `Send`
        self.counts = [part.count for part in request.parts]
        self.arrays = [table.rows_held.push_arrays for _, table, _ in made]

    def end(self, lacks: Sequence[int]) -> list[Any] | None:
        """Note what was made: buffers of the answer, if that was all. `lacks`: of each part what it
        lacks to go on, or -1 where it was not made."""
        request, made = self._request, self._made
        if any(lacks):
            first = 0
            for (_, table, _), count, lack in zip(made, self.counts, lacks, strict=True):
                if lack > 0:
                    _go_on(request, table, lack, first, first + count)
                first += count
        if min(lacks) < 0:
            all_of_it = zip(made, lacks, strict=True)
            _record_all(request, [None if lack < 0 else each for each, lack in all_of_it])
            return None
        noted = note_pushes(request, made)
        return noted or encode(Answer(request.request, _record_all(request, made)))


def begin_push(request: Request, by_number: ByNumber, until_ns: int) -> EarlyPush | None:
    """A push of sparse tables whose values are on their way; None: it is taken as a whole."""
    if native is None or request.kind is not Kind.PUSH or not request.parts:
        return None
    leading = leading_of(by_number, request.parts[0].shard)
    table = None if leading is None else leading.shard.tables.get(request.table)
    if table is None or not table.width:
        return None
    made = _accepted(request, by_number)
    if made is None or any(not table.width or table.overlay for _, table, _ in made):
        return None
    return EarlyPush(request, made, until_ns)


def _push(request: Request, by_number: ByNumber) -> Answer | None:
    made = _accepted(request, by_number)
    if made is None:
        return None
    counts = [part.count for part in request.parts]
    if not _apply(request, [table for _, table, _ in made], counts):
        return None
    return Answer(request.request, _record_all(request, made))


def _accepted(request: Request, by_number: ByNumber) -> list[Made] | None:
    """What each part is made to, and noted as, if nothing stands in the way of any."""
    if len(request.values) != 1:
        return None
    worker, number, n, values = request.worker, request.table, request.n, request.values[0]
    made: list[Made] = []
    first = 0
    for shard_number, seen, prev, count, elements in request.parts:
        leading = leading_of(by_number, shard_number)
        if leading is None or not leading.commits_alone or leading.shard.position < seen:
            return None
        shard = leading.shard
        table, job = shard.tables.get(number), shard.jobs.get(worker.job)
        if table is None or job is None or table.writer != worker.job or job.ledger.buffers:
            return None
        last = first + count
        if not table.is_pushable(request.keys[first:last], values, elements):
            return None
        if shard.cuts.holds_back(worker.job, request.clock):
            return None
        if not job.barrier.has_room_for(8 * count + elements * values.itemsize):
            return None
        if not job.ledger.accepts(worker, request.clock, n, prev):
            return None
        made.append((leading, table, _new(PushId, (request.clock, n, prev))))
        first = last
    if not made or len({leading.number for leading, *_ in made}) != len(made):
        return None  # what comes second sees what the first one does
    return made


def append_quickly(
    request: Request, by_number: ByNumber, origin: Origin, now_ns: int
) -> list[Out] | None:
    """A push of shards with followers: the entries for these. None: it goes the usual way, and
    nothing has been changed.

    The entries are those of the usual way, and are committed and applied like all.
    """
    if native is None or len(request.values) != 1 or len(request.parts) > PARTS_MAX:
        return None
    made: list[tuple[Leading, Command, PlainPush | None]] = []
    worker, clock, n, number = request.worker, request.clock, request.n, request.table
    keys, values = request.keys, request.values[0]
    rate, settled, text = request.rate, request.settled, request.text
    first = start = 0
    for shard_number, seen, prev, count, elements in request.parts:
        leading = leading_of(by_number, shard_number)
        if leading is None or not leading.appends_plainly or leading.shard.position < seen:
            return None
        last, stop = first + count, start + elements
        command = Command(
            Kind.PUSH, worker, clock, n, prev, number, rate, settled, text,
            keys[first:last], values[start:stop],
        )  # fmt: skip
        first, start = last, stop
        prepared = None
        if not len(leading.log):
            prepared = leading.shard.plain_push(command)
            if prepared is None:
                return None
        made.append((leading, command, prepared))
    if len({leading.number for leading, *_ in made}) != len(made):
        return None
    outs: list[Out] = []
    for leading, command, prepared in made:
        outs += leading.append_plainly(command, prepared, origin, now_ns)
    return outs


def _apply(request: Request, tables: list[TablePart], counts: list[int]) -> bool:
    """Make the steps of all parts. False: that is not possible here, and none was made."""
    keys, values = request.keys, request.values[0]
    if not tables[0].width:
        return _apply_blocks(request, tables, counts)
    arrays = [table.rows_held.push_arrays for table in tables]
    lacks = native.push_parts(keys, values, counts, arrays, _keeping(tables))
    if lacks is None:
        return False
    if any(lacks):
        first = 0
        for table, count, lack in zip(tables, counts, lacks, strict=True):
            last = first + count
            if lack & KEPT and isinstance(table.overlay, SparseOverlay):
                table.overlay.note_kept()
            if lack & ~KEPT:
                _go_on(request, table, lack & ~KEPT, first, last)
            first = last
    return True


def _go_on(request: Request, table: TablePart, lack: int, first: int, last: int) -> None:
    grads = request.values[0][first * table.width : last * table.width]
    table.rows_held.go_on(lack, request.keys[first:last], grads)


def _keeping(tables: list[TablePart]) -> list[tuple[Any, ...] | None]:
    """Where images keep the rows that are about to change; empty: there are none."""
    overlays = [table.overlay for table in tables]
    if not any(overlays):
        return []
    return [each.keep_arrays() if isinstance(each, SparseOverlay) else None for each in overlays]


def _apply_blocks(request: Request, tables: list[TablePart], counts: list[int]) -> bool:
    if not all(not table.width for table in tables):
        return False
    keys, values = request.keys, request.values[0]
    pieces: list[tuple[TablePart, int, int, int, int]] = []
    runs: list[tuple[Any, ...] | None] = []
    first = start = 0
    for table, count, part in zip(tables, counts, request.parts, strict=True):
        last, stop = first + count, start + part.elements
        pieces.append((table, first, last, start, stop))
        runs.append(table.run_to_push(keys[first:last]))
        first, start = last, stop
    if None not in runs and native.push_runs(values, [p.elements for p in request.parts], runs):
        return True
    for table, first, last, start, stop in pieces:
        table.apply(Update(request.n, request.table, keys[first:last], values[start:stop]))
    return True


def _record_all(request: Request, made: Sequence[Made | None]) -> tuple[PartAnswer, ...]:
    """What the parts are answered that were made."""
    answers: list[PartAnswer] = []
    first = 0
    for part, each in zip(request.parts, made, strict=True):
        if each is not None:
            answers.append(_record(request, *each, request.keys[first : first + part.count]))
        first += part.count
    return tuple(answers)


def _record(
    request: Request, leading: Leading, table: TablePart, push: PushId, keys: Keys
) -> PartAnswer:
    """What is left to be done with a push when its step has been made: it happened."""
    shard, worker = leading.shard, request.worker
    digest = xxhash.xxh3_64_intdigest(keys.data, request.table)
    shard.come_to(leading.pass_over())
    shard.jobs[worker.job].ledger.record_push(worker.rank, push, digest)
    return _new(PartAnswer, (shard.number, Status.OK, shard.position, push.n, 0, 0, b""))

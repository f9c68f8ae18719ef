"""The quick way of pushes that nothing stands in the way of. That of pulls: `quick_pulls`.

What a request costs is mostly Python per shard. So where every one of its parts can be answered at
once, the parts are checked one after the other, with the same checks and in the same order as on
the usual way, and then all tables are worked on in one call of the native module, on all cores
where there is much to do. Such a push is one of a primary that is alone and has nothing pending: it
is committed as soon as it is made, so its entry need not be kept.

Where others hold the shards, too, such a push becomes an entry of each in one go, for one message
to each of them (`append_quickly`); it is committed and applied like all entries.

All or nothing: where one part is not plain (a repeat, a gap, BSP's pushes, whatever is wrong),
nothing has been changed, and the whole request goes the usual way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import xxhash

from resilient_ps.barrier import Update
from resilient_ps.engine import native
from resilient_ps.ids import PushId
from resilient_ps.ledger import ACCEPT
from resilient_ps.messages import Answer, Command, Kind, PartAnswer, Request, Status
from resilient_ps.plain_push import PARTS_MAX, PlainPush
from resilient_ps.replication.home import Out
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.replica import Replica
from resilient_ps.table_part import TablePart
from resilient_ps.tables.sparse_overlay import SparseOverlay
from resilient_ps.waiting import Origin

ByNumber: TypeAlias = Mapping[int, Replica]

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


def _push(request: Request, by_number: ByNumber) -> Answer | None:
    if len(request.values) != 1:
        return None
    worker, number, n, values = request.worker, request.table, request.n, request.values[0]
    view = request.keys.data
    made: list[tuple[Leading, TablePart, PushId, int]] = []
    counts: list[int] = []
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
        digest = xxhash.xxh3_64_intdigest(view[first:last], number)
        push = _new(PushId, (request.clock, n, prev))
        if job.ledger.check_push(worker, push, digest) is not ACCEPT:
            return None
        made.append((leading, table, push, digest))
        counts.append(count)
        first = last
    if not made or len({leading.number for leading, *_ in made}) != len(made):
        return None  # what comes second sees what the first one does
    if not _apply(request, [table for _, table, *_ in made], counts):
        return None
    return Answer(request.request, tuple([_record(request, *each) for each in made]))


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
                grads = values[first * table.width : last * table.width]
                table.rows_held.go_on(lack & ~KEPT, keys[first:last], grads)
            first = last
    return True


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


def _record(
    request: Request, leading: Leading, table: TablePart, push: PushId, digest: int
) -> PartAnswer:
    """What is left to be done with a push when its step has been made: it happened."""
    shard, worker = leading.shard, request.worker
    shard.come_to(leading.pass_over())
    shard.jobs[worker.job].ledger.record_push(worker.rank, push, digest)
    return _new(PartAnswer, (shard.number, Status.OK, shard.position, push.n, 0, 0, b""))

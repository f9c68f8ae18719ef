"""The quick way of pulls that nothing stands in the way of.

Theory of operation. What a pull costs is mostly Python per shard, and most pulls are like the one
before: of the same worker, clock and table. So what was found out for one of them (that each shard
is served here, knows the worker, has the table, and that the clock need not wait) is kept as a
*plan*, until anything happens that could change it. Of a plan, the shards' positions and the arrays
of their tables are looked up anew each time, because quick pushes move them. A request that arrived
in one piece, and of which there is a plan, becomes its answer's bytes in one native call
(`native/answering.cpp`); any other one becomes an `Answer`. Rows are copied into the answer, blocks
of dense tables are lent.

All or nothing: where one part is not plain (a pull that has to wait, one that has seen more, what
is wrong), the whole request goes the usual way.

Invariant: between the making of a plan and its use, nothing was handled but quick requests, and
questions that change nothing (`forget`).
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np

from resilient_ps.answers import ANSWER_VALUE_BYTES
from resilient_ps.engine import native
from resilient_ps.ids import Position
from resilient_ps.messages import Answer, PartAnswer, Request, Status, Values
from resilient_ps.quick_requests import ByNumber, leading_of
from resilient_ps.shard import Shard
from resilient_ps.table_part import TablePart
from resilient_ps.tables.dense import DenseShard
from resilient_ps.tables.sparse import SparseShard

PLANS_MAX = 256
QUICK_BYTES_MAX = 1 << 20
"""Answers with more rows than this are made of arrays, which are not copied on their way."""

Held: TypeAlias = "tuple[Shard, SparseShard | DenseShard, TablePart]"

_MEANT = struct.Struct("<QIIQQII")  # as a request's meta begins: up to its table
_new = tuple.__new__  # several times faster than a named tuple's own constructor


class QuickPulls:
    """See the module. `by_number`: all replicas of this server."""

    def __init__(self, by_number: ByNumber) -> None:
        self._by_number = by_number
        self._plans: dict[bytes, dict[int, Held]] = {}

    def forget(self) -> None:
        """Something is about to happen, after which a pull may have to be looked at anew."""
        if self._plans:
            self._plans.clear()

    def answer_bytes(
        self, scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int
    ) -> list[Any] | None:
        """Buffers of the frame of the answer, if `scratch[lo:hi]` is that of a pull that has a
        plan."""
        if not self._plans:
            return None
        limits = meta_limit, payload_limit
        answered: list[Any] | None = native.answer_pull(
            scratch, lo, hi, *limits, self._plans, QUICK_BYTES_MAX, ANSWER_VALUE_BYTES
        )
        return answered

    def answer(self, request: Request) -> Answer | None:
        """The answer of all parts; None: it goes the usual way."""
        if native is None:
            return None
        plan = self._plan(request)
        counts: list[int] = []
        tables: list[TablePart] = []
        places: list[tuple[int, Position]] = []
        for shard_number, seen, _, count, _ in request.parts:
            held = plan.get(shard_number) or self._look(request, shard_number, plan)
            if held is None:
                return None
            shard, _, table = held
            if seen > shard.position or not table.is_pullable(count):
                return None
            counts.append(count)
            tables.append(table)
            places.append((shard_number, shard.position))
        if not tables:
            return None
        if tables[0].width:
            sizes = [count * tables[0].width for count in counts]
            values = _rows(request, tables, counts, sum(sizes))
        else:
            values = _blocks(request, tables, counts)
            sizes = [lent.size for lent in values]
        if not values:
            return None
        answers = [
            _new(PartAnswer, (shard_number, Status.OK, at, 0, count, size, b""))
            for (shard_number, at), count, size in zip(places, counts, sizes, strict=True)
        ]
        return Answer(request.request, tuple(answers), values)

    def _plan(self, request: Request) -> dict[int, Held]:
        """What is known of pulls like this one, by shard."""
        meant = request.clock, request.n, request.table
        key = _MEANT.pack(request.incarnation, *request.worker, *meant)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) == PLANS_MAX:
                self._plans.clear()
            plan = self._plans[key] = {}
        return plan

    def _look(self, request: Request, number: int, plan: dict[int, Held]) -> Held | None:
        """May this shard be pulled from at once? Then it belongs to the plan."""
        leading = leading_of(self._by_number, number)
        if leading is None:
            return None
        shard = leading.shard
        table = shard.readable(request.worker, request.clock, request.table)
        if table is None:
            return None
        held = shard, table.held, table
        plan[number] = held
        return held


def _rows(
    request: Request, tables: list[TablePart], counts: list[int], elements: int
) -> tuple[Values, ...]:
    """The rows of all parts, in one array; nothing if that is not possible."""
    width, dtype = tables[0].width, tables[0].dtype
    if elements * dtype.itemsize > ANSWER_VALUE_BYTES:
        return ()
    arrays: list[Any] = []
    for table in tables:
        if table.width != width:
            return ()
        arrays.append(table.rows_held.pull_arrays)
    out = np.empty(elements, dtype)
    return (out,) if native.pull_parts(request.keys, out, counts, arrays) else ()


def _blocks(request: Request, tables: list[TablePart], counts: list[int]) -> tuple[Values, ...]:
    """The blocks of all parts, an array for each: as they are, not copied."""
    values: list[Values] = []
    first = nbytes = 0
    for table, count in zip(tables, counts, strict=True):
        keys = request.keys[first : first + count]
        first += count
        if table.width or not table.elements_or_none(keys):
            return ()
        values.append(table.pull(keys))
        nbytes += values[-1].nbytes
    return tuple(values) if nbytes <= ANSWER_VALUE_BYTES else ()

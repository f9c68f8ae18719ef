"""May a write grow what a namespace holds? Asked by a primary, before the write becomes an entry.

What is in the log is applied, whatever it creates; so everything counts that *will* be there: rows,
those that pushes that are held back will create, and those of entries that are under way. Counting
them looks at all these keys, so it is done near a limit only: each table has `quick_rows`, up to
which it may grow unseen. These are dealt out so that even all of them together keep within every
allowance, and they are void as soon as a round, or an epoch, begins.

Invariants: of what will be in a table and of `quick_rows`, the latter is larger, or has been made
anew since; the sum of `quick_rows` under a quota is at most the allowance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.messages import Command, Entry, Keys, Kind, PartAnswer, Status
from resilient_ps.namespaces import covers
from resilient_ps.quotas import NOTHING, Quota, Settle, Size, said_in
from resilient_ps.replication.log import Log
from resilient_ps.shard import Shard
from resilient_ps.table_part import TablePart
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.spec import DenseSpec, TableSpec, spec_from_json

DIVIDING = "quotas are being divided anew"
_MEASURES = (("rows", "rows_max"), ("bytes", "bytes_max"))


def refusal(shard: Shard, log: Log, command: Command, *, begins: bool) -> PartAnswer | None:
    """Why this write may not become an entry (yet); None: it may.

    `begins`: a QUOTA is under way. Nothing may grow behind it: what is used stands in it already.
    """
    if command.kind is Kind.PUSH:
        return _of_push(shard, log, command, begins=begins)
    if command.kind is Kind.OPEN_TABLE and command.table not in shard.tables:
        return _of_table(shard, log, command, begins=begins)
    return None


def with_use(shard: Shard, log: Log, command: Command) -> Command:
    """This QUOTA with what is used here, if it settles; else as it is."""
    try:
        said = said_in(command.text)
    except BadInput:
        return command
    if not isinstance(said, Settle):
        return command
    future = _Future(shard, log.pending())
    used = tuple(future.under(path) for path in said.most)
    return replace(command, text=Settle(said.most, used).to_json())


def about_used(shard: Shard, log: Log) -> list[list[Size]]:
    """For each quota what is used, or a little more, and what somebody waits for."""
    told: list[list[Size]] = []
    future: _Future | None = None
    for path, quota in shard.quotas.by_path.items():
        used = NOTHING
        for number, table in shard.tables.items():
            if covers(path, table.spec.name):
                used = used.plus(table.size_with(table.rows + shard.held_keys(number) + log.keys))
        if _is_near(used, quota.allowed):
            future = future or _Future(shard, log.pending())
            used = future.under(path)
        told.append([used, shard.quotas.wants.get(path, NOTHING)])
    return told


def _is_near(used: Size, allowed: Size) -> bool:
    return any(4 * have > 3 * may for have, may in zip(used, allowed, strict=True))


def _of_push(shard: Shard, log: Log, command: Command, *, begins: bool) -> PartAnswer | None:
    table = shard.tables.get(command.table)
    if table is None:
        opens = any(entry.command.kind is Kind.OPEN_TABLE for entry in log.pending())
        return _later(shard, "a table is being opened") if opens else None
    if not table.is_sparse or (not begins and _is_far(shard, log, table, command)):
        return None
    future = _Future(shard, log.pending())
    before = future.of(command.table)
    future.add(command.table, command.keys)
    if future.of(command.table) == before:
        return None
    if begins:
        return _later(shard, DIVIDING)
    no = _judge(shard, future, table.spec.name, "this push", ", then open the worker again")
    if no is None:
        _deal(shard, future)
    return no


def _is_far(shard: Shard, log: Log, table: TablePart, command: Command) -> bool:
    """From the limits: so that nothing has to be counted."""
    if table.quick_rows is None:
        return True
    keys = shard.held_keys(command.table) + log.keys + len(command.keys)
    return table.rows + keys <= table.quick_rows


def _of_table(shard: Shard, log: Log, command: Command, *, begins: bool) -> PartAnswer | None:
    try:
        spec = spec_from_json(command.text.decode(errors="replace"))
    except BadInput:
        return None  # it is refused for that
    if not isinstance(spec, DenseSpec):
        return None
    if begins:
        return _later(shard, DIVIDING)
    shard.forget_quick_rows()  # there will be less for the others
    future = _Future(shard, log.pending())
    future.open(command.table, spec)
    return _judge(shard, future, spec.name, "this dense table", "")


def _later(shard: Shard, text: str) -> PartAnswer:
    return PartAnswer(shard.number, Status.BUSY, shard.position, text=text.encode())


def _judge(shard: Shard, future: _Future, name: str, what: str, then: str) -> PartAnswer | None:
    """Does all that will be there fit? Otherwise it waits, or is refused if that is of no use."""
    quotas = shard.quotas
    first: PartAnswer | None = None
    for path, quota in quotas.by_path.items():
        if not covers(path, name):
            continue
        size = future.under(path)
        lack = size.less(quota.allowed)
        if not lack:
            continue
        if quotas.given and _is_hopeless(lack, quota.short):
            text = f"{_why(path, quota, lack, what)}{then}".encode()
            return PartAnswer(shard.number, Status.QUOTA, shard.position, text=text)
        held = quotas.wants.get(path, NOTHING)
        quotas.wants[path] = Size(max(size.rows, held.rows), max(size.nbytes, held.nbytes))
        first = first or _later(shard, f"more of the quota of namespace {path!r} is asked for")
    return first


def _is_hopeless(lack: Size, short: Size) -> bool:
    """Did the last round show that there is not so much?"""
    return any(0 < least <= lacks for lacks, least in zip(lack, short, strict=True))


def _why(path: str, quota: Quota, lack: Size, what: str) -> str:
    parts = [
        f"{used:,} of {most:,} {measure} ({name}) are used, and {what} takes {lacks:,} more than "
        "are left for its shard"
        for (measure, name), most, used, lacks, least in zip(
            _MEASURES, quota.most, quota.used, lack, quota.short, strict=True
        )
        if 0 < least <= lacks
    ]
    return (
        f"namespace {path!r} is full: {'; '.join(parts)}. Raise the quota (`resilient-ps ns set "
        f"{path}`), or drop tables (`resilient-ps ns show {path}`)"
    )


class _Future:
    """What will be in each table when everything is applied that is held or under way."""

    def __init__(self, shard: Shard, pending: Iterable[Entry]) -> None:
        self._shard = shard
        self._keys: dict[int, list[Keys]] = {}
        self._rows: dict[int, int] = {}  # counted already
        self._opened: dict[int, tuple[str, Size]] = {}
        for job in shard.jobs.values():
            for _, _, update in job.barrier.held():
                self.add(update.table, update.keys)
        for entry in pending:
            command = entry.command
            if command.kind is Kind.PUSH:
                self.add(command.table, command.keys)
            elif command.kind is Kind.OPEN_TABLE and command.table not in shard.tables:
                self._open_text(command)

    def add(self, table: int, keys: Keys) -> None:
        """A push of these keys."""
        if len(keys):
            self._keys.setdefault(table, []).append(keys)
            self._rows.pop(table, None)

    def open(self, number: int, spec: TableSpec) -> None:
        """A new table."""
        if isinstance(spec, DenseSpec):
            self._opened[number] = (spec.name, dense_size(spec, self._shard))

    def _open_text(self, command: Command) -> None:
        with suppress(BadInput):  # it will be refused
            self.open(command.table, spec_from_json(command.text.decode(errors="replace")))

    def of(self, number: int) -> int:
        """Rows of a table."""
        found = self._rows.get(number)
        if found is None:
            found = self._rows[number] = self._count(number)
        return found

    def _count(self, number: int) -> int:
        table = self._shard.tables[number]
        if not table.is_sparse or number not in self._keys:
            return table.rows
        keys = np.concatenate(self._keys[number])
        return table.rows + int(np.unique(keys[table.rows_held.row_numbers(keys) < 0]).size)

    def under(self, path: str) -> Size:
        """Of all tables in a namespace and below it."""
        size = NOTHING
        for number, table in self._shard.tables.items():
            if covers(path, table.spec.name):
                size = size.plus(table.size_with(self.of(number)))
        for name, opened in self._opened.values():
            if covers(path, name):
                size = size.plus(opened)
        return size


def _deal(shard: Shard, future: _Future) -> None:
    """Let every table under a quota grow unseen by its part of what is left."""
    room = {path: q.allowed.less(future.under(path)) for path, q in shard.quotas.by_path.items()}
    counts = {path: sum(1 for _ in _sparse(shard, path)) for path in room}
    for number, table in shard.tables.items():
        if table.quick_rows is not None and table.is_sparse:
            paths = [path for path in room if covers(path, table.spec.name)]
            parts = [_rows_in(table, room[path], counts[path]) for path in paths]
            table.quick_rows = future.of(number) + min(parts) if parts else None


def _rows_in(table: TablePart, room: Size, tables: int) -> int:
    return min(room.rows // tables, room.nbytes // tables // table.row_bytes)


def _sparse(shard: Shard, path: str) -> Iterator[TablePart]:
    for table in shard.tables.values():
        if table.is_sparse and covers(path, table.spec.name):
            yield table


def dense_size(spec: DenseSpec, shard: Shard) -> Size:
    """Of a dense table's part on a shard."""
    part = DenseLayout(spec, shard.shards).shard_slice(shard.number)
    return Size(0, (part.stop - part.start) * bytes_of_element(spec))


def bytes_of_element(spec: DenseSpec) -> int:
    """With its state."""
    optimiser = spec.optimiser
    columns = 1 + optimiser.slots + int(optimiser.counts_steps)
    return columns * int(np.dtype(spec.dtype).itemsize)

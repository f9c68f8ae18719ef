"""Copies of a shard's state, in pieces, while the shard goes on: from a primary to a learner.

Theory of operation. A copy begins at one lsn with everything that is small (HEAD) and with the
pushes that are held back (HELD_PUSH). From there on the learner applies the log like any backup,
and the rows follow in pieces, each captured between two entries as they are then. Nothing is kept
aside for it. What the learner computes for a row that has not come yet is worth nothing, but it
does not matter: the row comes later, with all entries up to then in it, and takes its place. Sparse
rows travel in the order of their creation, so that a row that is created meanwhile comes after
those that were there; once the last one of a table has been captured, new ones come through the
log. Dense elements travel in their own order. A table that is opened after HEAD comes through the
log alone.

What the primary owes the learner (a copy is wrong otherwise, and nobody would notice): one ordered
stream, in which a piece of `lsn` stands behind all entries up to it and before all later ones. So
all of `CopySource.first_pieces` are sent before any entry above their lsn. Held pushes are not
copied but referenced; they cannot change.

Why this gives the same state: ledgers, clocks, learning rates and held pushes are whole from HEAD
on, and change by the log. A row's bytes are those of the source when its piece is taken in, and the
same entries move both from there on. A held push whose clock completes while rows are on their way
is such an entry's work: it is in the rows that are captured later. A table that is dropped is
dropped on both sides, and its pieces end.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from resilient_ps.barrier import BARRIER_BYTES_MAX, Update
from resilient_ps.errors import BadInput, Bug
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import NO_EPOCH, Epoch, WorkerId
from resilient_ps.messages import Command, Copied, Copy, Kind, PartAnswer
from resilient_ps.shard import Shard
from resilient_ps.small_state import Item, items_of, record_of, whole
from resilient_ps.table_part import TablePart

COPY_PIECE_BYTES = 4 << 20
SMALL_TEXT_BYTES = 1_000  # of all pieces but HEAD
HEAD_SPARE_BYTES = 100  # of HEAD, for brackets and counts

Epochs: TypeAlias = tuple[tuple[int, Epoch], ...]
"""The history of a log: each epoch with the lsn of its first entry."""


class CopySource:
    """Makes the pieces of one copy of `shard`. `epochs` is the history of the primary's log."""

    def __init__(
        self,
        shard: Shard,
        epoch: Epoch,
        attempt: int,
        epochs: Epochs,
        *,
        piece_bytes: int = COPY_PIECE_BYTES,
    ) -> None:
        self._shard = shard
        self._epoch = epoch
        self._attempt = attempt
        self._epochs = epochs
        self._piece_bytes = piece_bytes
        self._number = 0
        self._tables: deque[tuple[int, object]] | None = None
        self._at = 0  # how far the first of those tables has been captured
        self._ended = False

    def first_pieces(self) -> list[Copy]:
        """HEAD, in several pieces where it is long, and what is held back. To be called once.

        All are of the present lsn: the primary sends them before any later entry.
        """
        if self._tables is not None:
            raise Bug("the first pieces of a copy are asked for twice")
        tables = sorted(self._shard.tables.items())
        self._tables = deque((n, table.identity) for n, table in tables if table.rows)
        heads = list(_packed(self._items(), self._piece_bytes))
        held = list(self._held_pushes())
        heads[0] = f"[{len(heads)},{len(heads) + len(held)}]" + "," * bool(heads[0]) + heads[0]
        pieces = [self._piece(Copied.HEAD, text=f"[{text}]") for text in heads]
        for table, fields, update in held:
            text = json.dumps(fields)
            piece = self._piece(Copied.HELD_PUSH, table, text)
            piece.keys, piece.values = update.keys, update.values
            pieces.append(piece)
        return pieces

    def _items(self) -> Iterator[Item]:
        for lsn, epoch in self._epochs:
            yield ["epoch", lsn, *epoch]
        shard = self._shard
        yield from items_of(shard.tables, shard.jobs, shard.cuts, shard.quotas)

    def _held_pushes(self) -> Iterator[tuple[int, Item, Update]]:
        for number, job in sorted(self._shard.jobs.items()):
            for clock, rank, update in job.barrier.held():
                yield update.table, [number, rank, clock, update.n, update.rate], update

    def next_piece(self) -> Copy | None:
        """Some rows or elements as they are now, at last END; then None."""
        if self._tables is None:
            raise Bug("a copy begins with its first pieces")
        while self._tables:
            number, identity = self._tables[0]
            table = self._shard.tables.get(number)
            if table is not None and table.identity is identity:
                return self._capture(number, table)
            self._go_on()  # it was dropped meanwhile
        if self._ended:
            return None
        self._ended = True
        return self._piece(Copied.END)

    def _capture(self, number: int, table: TablePart) -> Copy:
        end, keys, values = table.capture(self._at, self._piece_bytes)
        last = end == table.rows
        text = json.dumps([self._at, end, last])
        piece = self._piece(Copied.ROWS if table.is_sparse else Copied.BLOCKS, number, text)
        piece.keys, piece.values = keys, values
        self._at = end
        if last:
            self._go_on()
        return piece

    def _go_on(self) -> None:
        assert self._tables is not None
        self._tables.popleft()
        self._at = 0

    def _piece(self, what: Copied, table: int = 0, text: str = "") -> Copy:
        number, self._number = self._number, self._number + 1
        return Copy(
            self._shard.number,
            self._epoch,
            self._attempt,
            self._shard.lsn,
            number,
            what,
            table,
            text=text.encode(),
        )


def _packed(items: Iterator[Item], bytes_max: int) -> Iterator[str]:
    """Items as JSON, in texts of at most `bytes_max` as far as they are not longer each."""
    texts: list[str] = []
    room = bytes_max - HEAD_SPARE_BYTES
    for item in items:
        text = json.dumps(item)
        if len(text) >= room and texts:
            yield ",".join(texts)
            texts, room = [], bytes_max - HEAD_SPARE_BYTES
        texts.append(text)
        room -= len(text) + 1
    yield ",".join(texts)


class CopyTarget:
    """Builds a shard of the pieces of a copy, `head` being the first. BadInput for what is none.

    Apply the entries of the log to `shard` in between, once it is `ready`. A target that has
    raised is of no use any more.
    """

    def __init__(
        self,
        head: Copy,
        shards: int,
        guards: Guards = ALL_GUARDS,
        *,
        barrier_bytes_max: int = BARRIER_BYTES_MAX,
    ) -> None:
        if head.what is not Copied.HEAD or head.number != 0 or not 0 <= head.shard < shards:
            raise BadInput(
                f"a copy of one of {shards} shards cannot begin with piece {head.number} "
                f"({head.what.name}) of shard {head.shard}"
            )
        self.shard = Shard(head.shard, shards, guards, barrier_bytes_max=barrier_bytes_max)
        self.shard.lsn = head.lsn
        self.shard.serve_in(NO_EPOCH)  # so that its position is right
        self.complete = False
        self.next_number = 1
        self._of = (head.shard, head.epoch, head.attempt)
        self._epochs: list[tuple[int, Epoch]] = []
        counts, *items = _items_of(head)
        self._heads, self._first = _counts(counts)
        self._take_items(items)
        self._check_heads()

    @property
    def ready(self) -> bool:
        """Are all first pieces here? Before, no entry may be applied."""
        return self.next_number >= self._first

    @property
    def epochs(self) -> Epochs:
        """The history of the source's log."""
        return tuple(self._epochs)

    def take(self, piece: Copy) -> None:
        """Take in the next piece; entries up to its lsn have been applied. Raises `BadInput`."""
        self._check_place(piece)
        match piece.what:
            case Copied.HEAD:
                self._take_items(_items_of(piece))
            case Copied.HELD_PUSH:
                self._take_held_push(piece)
            case Copied.ROWS | Copied.BLOCKS:
                self._take_content(piece)
            case Copied.END:
                self._take_end()
        self.next_number += 1
        self._check_heads()

    def _check_place(self, piece: Copy) -> None:
        number = self.next_number
        if piece.keys.dtype != np.uint64 or piece.keys.ndim != 1 or piece.values.ndim != 1:
            raise BadInput(f"piece {piece.number} has arrays of another shape or dtype")
        if (piece.shard, piece.epoch, piece.attempt) != self._of or self.complete:
            raise BadInput(f"piece {piece.number} belongs to another copy, or comes after the end")
        if piece.number != number or piece.lsn != self.shard.lsn:
            raise BadInput(
                f"piece {piece.number} at lsn {piece.lsn} comes instead of {number} at "
                f"{self.shard.lsn}"
            )
        is_head, is_held = piece.what is Copied.HEAD, piece.what is Copied.HELD_PUSH
        if is_head != (number < self._heads) or is_held != (self._heads <= number < self._first):
            raise BadInput(f"piece {number} of a copy is {piece.what.name}, out of order")

    # -- what is small

    def _take_items(self, items: list[Any]) -> None:
        for item in items:
            match item:
                case ["epoch", lsn, incarnation, counter]:
                    self._add_epoch(whole(lsn), Epoch(whole(incarnation), whole(counter)))
                case ["table", number, str(text), lr, writer, rows]:
                    self._open_table(whole(number), text, lr, whole(writer), whole(rows))
                case ["job", number, str(text), intent, applied]:
                    self._open_job(whole(number), text, whole(intent), whole(applied))
                case ["rank", number, rank, *fields]:
                    self._add_rank(whole(number), whole(rank), fields)
                case ["cut", number, str(text), [*awaited]]:
                    jobs = [whole(job) for job in awaited]
                    self.shard.cuts.restore(whole(number), text, jobs)
                case ["quotas" | "quota", *_]:
                    self.shard.quotas.restore(item)
                case _:
                    raise BadInput(f"a copy holds the unknown {str(item)[:80]}")

    def _add_epoch(self, lsn: int, epoch: Epoch) -> None:
        last_lsn, last_epoch = self._epochs[-1] if self._epochs else (0, NO_EPOCH)
        if not last_lsn < lsn <= self.shard.lsn or epoch <= last_epoch:
            raise BadInput(f"a history in which {epoch} begins at {lsn}, of {self.shard.lsn}")
        self._epochs.append((lsn, epoch))

    def _run(self, command: Command) -> None:
        """Open a table or a job under the rules that hold for everybody."""
        change = self.shard.prepare(command)
        if isinstance(change, PartAnswer):
            raise BadInput(f"a copy cannot be taken in: {change.text.decode() or 'it repeats'}")
        change()

    def _open_table(self, number: int, text: str, lr: object, writer: int, rows: int) -> None:
        self._run(Command(Kind.OPEN_TABLE, table=number, text=_encoded(text)))
        table = self.shard.tables[number]
        if not isinstance(lr, float):
            raise BadInput(f"table {number} has no learning rate but {str(lr)[:40]}")
        if lr != table.lr:
            table.set_lr(lr)
        table.writer = writer
        if not table.is_sparse and rows != table.rows:
            raise BadInput(f"table {number} has {table.rows} elements here, not {rows}")
        table.loading = rows > 0

    def _open_job(self, number: int, text: str, intent: int, applied: int) -> None:
        self._run(Command(Kind.OPEN_JOB, WorkerId(number, 0, 0), text=_encoded(text)))
        job = self.shard.jobs[number]
        job.ledger.ranks.clear()
        job.ledger.intent = intent
        job.barrier.applied = applied

    def _add_rank(self, number: int, rank: int, fields: list[Any]) -> None:
        job = self.shard.jobs.get(number)
        if job is None or rank in job.ledger.ranks or not job.ledger.room_for(rank):
            raise BadInput(f"a copy has no room for rank {rank} of job {number}")
        job.ledger.ranks[rank] = record_of(fields)

    def _check_heads(self) -> None:
        """Once all of them are here: as many clocks are applied as are complete."""
        if self.next_number != self._heads:
            return
        for number, job in sorted(self.shard.jobs.items()):
            complete = job.ledger.slowest() if job.ledger.together else 0
            if job.barrier.applied != complete:
                raise BadInput(
                    f"job {number} has applied clock {job.barrier.applied}, but come to {complete}"
                )

    def _take_held_push(self, piece: Copy) -> None:
        *places, rate = _fields_of(piece, 5)
        number, rank, clock, n = [whole(place) for place in places]
        job, table = self.shard.jobs.get(number), self.shard.tables.get(piece.table)
        if job is None or table is None or rank not in job.ledger.ranks:
            raise BadInput(f"a held push of rank {rank} of job {number}, table {piece.table}: none")
        if rate is not None and (not isinstance(rate, float) or piece.keys.size):
            raise BadInput(f"a held change of the learning rate to {str(rate)[:40]}")
        update = Update(n, piece.table, piece.keys, piece.values, rate)
        table.check(update)
        barrier = job.barrier
        open_clock = job.ledger.ranks[rank].ticked + 1
        has_room = barrier.held_bytes + update.nbytes <= barrier.bytes_max
        first_clock = open_clock if job.ledger.is_graph else barrier.applied + 1
        if not has_room or not first_clock <= clock <= open_clock:
            raise BadInput(f"a held push of clock {clock} has no place")
        barrier.hold(rank, clock, update)

    # -- rows and elements

    def _take_content(self, piece: Copy) -> None:
        at, end, last = _fields_of(piece, 3)
        table = self.shard.tables.get(piece.table)
        if table is None or not table.loading or table.is_sparse != (piece.what is Copied.ROWS):
            raise BadInput(f"a copy has {piece.what.name} for table {piece.table}, which is whole")
        if whole(at) != table.loaded or not isinstance(last, bool):
            raise BadInput(f"a piece from {at} on comes where {table.loaded} was to follow")
        table.load(whole(end), piece.keys, piece.values)
        table.loading = not last
        if last and not table.is_sparse and end != table.rows:
            raise BadInput(f"table {piece.table} ends at {end} of {table.rows} elements")

    def _take_end(self) -> None:
        for number, table in sorted(self.shard.tables.items()):
            if table.loading:
                raise BadInput(f"a copy ends before table {number} is whole")
        self.complete = True


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"a copy holds a text that is none ({error})") from error


def _items_of(piece: Copy) -> list[Any]:
    """The items of a HEAD. Raises `BadInput`."""
    items = _parsed(piece, COPY_PIECE_BYTES)
    if not isinstance(items, list) or not items:
        raise BadInput("a HEAD without items")
    return items


def _counts(counts: object) -> tuple[int, int]:
    """How many pieces are HEADs, and how many come before the first rows."""
    match counts:
        case [heads, first]:
            return whole(heads), whole(first)
        case _:
            raise BadInput("a copy that does not say how it begins")


def _fields_of(piece: Copy, count: int) -> list[Any]:
    """The fields of a small piece. Raises `BadInput`."""
    fields = _parsed(piece, SMALL_TEXT_BYTES)
    if not isinstance(fields, list) or len(fields) != count:
        raise BadInput(f"a {piece.what.name} does not have {count} fields")
    return fields


def _parsed(piece: Copy, bytes_max: int) -> Any:
    if len(piece.text) > bytes_max:
        raise BadInput(f"a {piece.what.name} with {len(piece.text)} bytes of text")
    try:
        return json.loads(piece.text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a {piece.what.name} is no JSON ({error})") from error

"""A shard that is built of the images of a checkpoint, whatever the number of their shards.

An image has no log, no epochs and no deduplication: the shard that is built of it stands at lsn 0,
and its ranks go on after the cut's clock under new incarnations. Heads of several images say the
same of tables and jobs, but for what a shard may not have been told; then the others count. The
order of rows is the order in which they are taken in; what comes later replaces what came before.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import NO_EPOCH, WorkerId
from resilient_ps.ledger import RankRecord
from resilient_ps.messages import Command, Keys, Kind, PartAnswer, Values
from resilient_ps.shard import CURSOR_BYTES_MAX, Shard
from resilient_ps.small_state import Item, whole
from resilient_ps.table_part import TablePart

ENCODED_CURSOR_MAX = 2 * CURSOR_BYTES_MAX  # in base64


def owned(keys: Keys, shard: int, shards: int) -> NDArray[np.bool_]:
    """Which of these keys are this shard's: `hashing.shard_of`, for arrays."""
    if shards == 1:
        return np.full(keys.shape, shard == 0)
    x = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    found = ((x >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32)
    return np.asarray(found == np.uint64(shard), np.bool_)


class RestoredShard:
    """Shard `number` of `shards`, taken in piece by piece. Raises `BadInput` for what is none.

    First the heads, then rows (full ones before deltas) and elements, at last `finish`. One that
    has raised is of no use any more.
    """

    def __init__(self, number: int, shards: int, guards: Guards = ALL_GUARDS) -> None:
        self._shard = Shard(number, shards, guards)
        self._number = number
        self._shards = shards

    def take_head(self, tables: list[Item], jobs: list[Item]) -> None:
        """What `ShardImage.head` gave: of one image, or of each that has something for us."""
        for item in tables:
            match item:
                case [number, str(text), lr, writer, rows]:
                    whole(rows)
                    self._open_table(whole(number), text, lr, whole(writer))
                case _:
                    raise BadInput(f"a checkpoint's table cannot be {str(item)[:80]}")
        for item in jobs:
            match item:
                case [number, str(text), clock, [*ranks]]:
                    whole(clock)
                    self._open_job(whole(number), text, ranks)
                case _:
                    raise BadInput(f"a checkpoint's job cannot be {str(item)[:80]}")

    def expect_rows(self, table: int, rows: int, before: Shard | None = None) -> None:
        """About so many will come of this table: a matter of speed.

        `before`: the shard as it was, which nobody uses any more; its tables are of no use then.
        """
        self._part(table).reserve(rows, None if before is None else before.tables.get(table))

    def take_rows(self, table: int, keys: Keys, content: Values, *, all_ours: bool = False) -> None:
        """Rows of sparse table `table`, with values and state of each, 1-D; others' are ignored.

        Keys that are here already get the new content. `all_ours`: there are no others' among them.
        """
        part = self._part(table)
        if content.ndim != 1 or keys.ndim != 1 or keys.dtype != np.uint64:
            raise BadInput(f"rows of table {table}: arrays of another shape or dtype")
        if not part.is_sparse or content.size != keys.size * part.columns:
            raise BadInput(
                f"table {part.spec.name!r}: {keys.size} keys and {content.size} values are no rows"
            )
        if not all_ours:
            ours = owned(keys, self._number, self._shards)
            keys = keys[ours]
            content = content.reshape(-1, part.columns)[ours].reshape(-1)
        if keys.size:
            part.put_rows(keys, content)

    def take_elements(self, table: int, at: int, end: int, content: Values) -> None:
        """Elements `at` to `end - 1` of the whole flattened array; others' are ignored."""
        part = self._part(table)
        if part.is_sparse:
            raise BadInput(f"table {part.spec.name!r} is sparse: it has no elements {at} to {end}")
        part.put_elements(at, end, content)

    def finish(self) -> Shard:
        """The shard, before its first entry."""
        for part in self._shard.tables.values():
            part.settle()
        for job in self._shard.jobs.values():
            if job.ledger.together:  # nothing is held back: so all that is complete is applied
                job.barrier.applied = job.ledger.slowest()
        self._shard.serve_in(NO_EPOCH)
        return self._shard

    # -- heads

    def _run(self, command: Command) -> None:
        """Open a table or a job under the rules that hold for everybody."""
        change = self._shard.prepare(command)
        if isinstance(change, PartAnswer):
            raise BadInput(f"a checkpoint cannot be taken in: {change.text.decode()}")
        change()

    def _open_table(self, number: int, text: str, lr: object, writer: int) -> None:
        if not isinstance(lr, float):
            raise BadInput(f"table {number} has no learning rate but {str(lr)[:40]}")
        held = self._shard.tables.get(number)
        if held is None:
            self._run(Command(Kind.OPEN_TABLE, table=number, text=_encoded(text)))
            held = self._shard.tables[number]
            if lr != held.lr:
                held.set_lr(lr)
        elif held.text != text:
            raise BadInput(f"table {number} is {held.text} in one image, {text} in another")
        held.writer = max(held.writer, writer)

    def _open_job(self, number: int, text: str, ranks: list[Item]) -> None:
        held = self._shard.jobs.get(number)
        if held is None:
            self._run(Command(Kind.OPEN_JOB, WorkerId(number, 0, 0), text=_encoded(text)))
            held = self._shard.jobs[number]
            held.ledger.ranks.clear()
        elif held.text != text:
            raise BadInput(f"job {number} is {held.text} in one image, {text} in another")
        for item in ranks:
            rank, record = _record_of(item)
            known = held.ledger.ranks.get(rank)
            if not held.ledger.room_for(rank):
                raise BadInput(f"job {number} has no room for rank {rank}")
            if known is None or _place(record) > _place(known):
                held.ledger.ranks[rank] = record

    def _part(self, table: int) -> TablePart:
        part = self._shard.tables.get(table)
        if part is None:
            raise BadInput(f"content of table {table}, which the checkpoint does not name")
        return part


def _place(record: RankRecord) -> tuple[int, bool, int, bytes]:
    """Which of two records tells more: a shard may have been joined later than another."""
    return record.ticked, record.live, record.started, record.cursor


def _record_of(item: Item) -> tuple[int, RankRecord]:
    match item:
        case [rank, ticked, bool(live), started, str(text)] if len(text) <= ENCODED_CURSOR_MAX:
            try:
                cursor = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadInput(f"the cursor of rank {rank} is not in base64 ({error})") from error
            record = RankRecord(ticked=whole(ticked), cursor=cursor, live=live)
            record.started = whole(started)
            return whole(rank), record
        case _:
            raise BadInput(f"a checkpoint's rank cannot be {str(item)[:80]}")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"a checkpoint holds a text that is none ({error})") from error

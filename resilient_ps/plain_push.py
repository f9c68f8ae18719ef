"""Pushes that nothing stands in the way of: found by `ShardState.plain_push`, made many at a time.

What a push costs is mostly Python per shard, and calls per table. Those of several shards, which
share nothing, are made in one call of the native module, on all cores where there is much to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from resilient_ps.barrier import Update
from resilient_ps.engine import native
from resilient_ps.ids import PushId
from resilient_ps.ledger import JobLedger
from resilient_ps.messages import Command, PartAnswer
from resilient_ps.shard_answers import Answering
from resilient_ps.table_part import TablePart

PARTS_MAX = 64
"""So many the native module takes at a time."""
_new = tuple.__new__  # several times faster than a named tuple's own constructor


class PlainPush(NamedTuple):
    """A push that is new, and that is applied at once if there is room for its rows.

    Until it is made, nothing else may change its shard.
    """

    shard: Answering
    table: TablePart
    ledger: JobLedger
    command: Command

    def make(self) -> PartAnswer:
        """Make it alone, where no room is needed: of a dense table."""
        command = self.command
        self.table.apply(Update(command.n, command.table, command.keys, command.values))
        return self.note()

    def note(self) -> PartAnswer:
        """The step has been made: from now on it is a repeat. The answer."""
        command = self.command
        digest = xxhash.xxh3_64_intdigest(command.keys.data, command.table)
        push = _new(PushId, (command.clock, command.n, command.prev))
        self.ledger.record_push(command.worker.rank, push, digest)
        return self.shard.ok(command.n)


def make_rows(pushes: Sequence[PlainPush]) -> bool:
    """The optimisers' steps of pushes of different shards, to sparse tables; each is to be noted.

    False: that is not possible in one go, or there is no room for rows; nothing has changed.
    """
    if native is None or len(pushes) > PARTS_MAX:
        return False
    commands = [push.command for push in pushes]
    lacks = native.push_each(
        [command.keys for command in commands],
        [command.values for command in commands],
        [len(command.keys) for command in commands],
        [push.table.rows_held.push_arrays for push in pushes],
    )
    if lacks is None:
        return False
    if any(lacks):
        for push, lack in zip(pushes, lacks, strict=True):
            if lack:
                push.table.rows_held.go_on(lack, push.command.keys, push.command.values)
    return True

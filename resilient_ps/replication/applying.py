"""Committed entries of several shards, applied together.

Shards share nothing: so the first entries of all are applied in one go, then the second ones, and
so on. The plain pushes among them are one step (`plain_push`); it makes no difference but in speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from resilient_ps.guards import ALL_GUARDS
from resilient_ps.messages import Entry, PartAnswer
from resilient_ps.plain_push import PlainPush, make_rows
from resilient_ps.replication.home import Out
from resilient_ps.shard_answers import Change
from resilient_ps.shard_state import ShardState

HEAVY_KEYS = 1 << 14  # what is applied is from so many keys on applied in parallel

Task: TypeAlias = Callable[[], list[Out]]
InParallel: TypeAlias = Callable[[Sequence[Task]], list[list[Out]]]


def one_by_one(tasks: Sequence[Task]) -> list[list[Out]]:
    """The plain way to run tasks."""
    return [task() for task in tasks]


class Due(NamedTuple):
    """Entries of one shard, taken from its log in order. `prepared`: what the first one does.

    `answers` are filled when they are applied.
    """

    shard: ShardState
    entries: list[Entry]
    prepared: Change | PlainPush | None
    answers: list[PartAnswer]


def apply_all(dues: Sequence[Due], in_parallel: InParallel = one_by_one) -> None:
    """Apply them; of each shard there is one at most."""
    if len(dues) == 1:  # as mostly
        for turn in range(len(dues[0].entries)):
            _apply_turn(dues, turn, in_parallel)
        return
    turn = 0
    while left := [due for due in dues if len(due.entries) > turn]:
        _apply_turn(left, turn, in_parallel)
        turn += 1


def _apply_turn(dues: Sequence[Due], turn: int, in_parallel: InParallel) -> None:
    rows: list[tuple[Due, PlainPush]] = []
    others: list[Due] = []
    for due in dues:
        push = _plain(due, turn)
        if push is None:
            others.append(due)
        elif push.table.width:
            rows.append((due, push))
        else:
            due.answers.append(due.shard.commit(push.make, due.entries[turn].at))
    if rows and make_rows([push for _, push in rows]):
        for due, push in rows:
            due.answers.append(due.shard.commit(push.note, due.entries[turn].at))
    else:
        others += [due for due, _ in rows]
    if others:
        _apply_usually(others, turn, in_parallel)


def _plain(due: Due, turn: int) -> PlainPush | None:
    if turn or due.prepared is None:
        shard = due.shard
        return shard.plain_push(due.entries[turn].command) if shard.guards is ALL_GUARDS else None
    return due.prepared if isinstance(due.prepared, PlainPush) else None


def _apply_usually(dues: Sequence[Due], turn: int, in_parallel: InParallel) -> None:
    if len(dues) == 1:
        _apply_one(dues[0], turn)
        return
    keys = sum([len(due.entries[turn].command.keys) for due in dues])
    tasks = [partial(_apply_one, due, turn) for due in dues]
    (in_parallel if keys >= HEAVY_KEYS else one_by_one)(tasks)


def _apply_one(due: Due, turn: int) -> list[Out]:
    shard, entry, change = due.shard, due.entries[turn], None if turn else due.prepared
    if change is None or isinstance(change, PlainPush):
        due.answers.append(shard.apply(entry))
    else:
        due.answers.append(shard.commit(change, entry.at))
    return []

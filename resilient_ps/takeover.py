"""Taking a rank over, in four steps that end the same whoever else has died meanwhile.

(i) `FENCE` on all shards: from then on an older process of the rank is refused everywhere. Each
shard answers the rank's last tick and its cursor. (ii) One tick of clock t anywhere proves that all
shards hold the whole of clock t, so the missing ticks up to the highest, t, are made up for.
(iii) Under BSP, and in tasks, `REDO`: shards that hold something of clock t+1 forget what the
predecessor pushed; under SSP and ASP they keep it, and skip it when it is pushed again. (iv) The
worker runs clock t+1.

Nothing may be forgotten before (ii): of a clock that is complete on one shard, others may still
hold the pushes without the tick.

The steps are written as a generator: it yields the calls of one step, gets every shard's answer,
and yields the next. Workers run it when they start; the coordinator runs it for a rank that leaves.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from resilient_ps.ids import WorkerId
from resilient_ps.messages import Kind, PartAnswer


@dataclass(frozen=True, slots=True)
class Step:
    """One request to some shards, as part of a script."""

    kind: Kind
    shards: tuple[int, ...]
    worker: WorkerId
    clock: int = 0
    n: int = 0  # of the intent that it is part of, if any
    table: int = 0
    settled: bool = False
    text: bytes = b""


class Settled(NamedTuple):
    """Where a rank stands after a takeover: its last complete clock, and that clock's cursor."""

    ticked: int
    cursor: bytes


Answers: TypeAlias = dict[int, PartAnswer]
"""By shard: of the last step's calls, the later ones winning."""

Script: TypeAlias = Generator[list[Step], Answers, Settled]


def take_over(worker: WorkerId, shards: tuple[int, ...], *, redo: bool, intent: int = 0) -> Script:
    """Steps (i) to (iii); `redo` under BSP and in tasks.

    As part of an intent the steps carry its number: shards that have executed the intent only
    answer them, so that a new coordinator can finish what its predecessor began.
    """
    fenced = yield [Step(Kind.FENCE, shards, worker, n=intent)]
    ticked = max(answer.value for answer in fenced.values())
    cursor = next(a.text for _, a in sorted(fenced.items()) if a.value == ticked)
    lowest = min(answer.value for answer in fenced.values())
    for clock in range(lowest + 1, ticked + 1):
        behind = tuple(shard for shard in shards if fenced[shard].value < clock)
        yield [Step(Kind.TICK, behind, worker, clock, intent, settled=True, text=cursor)]
    begun = tuple(s for s in shards if fenced[s].count and fenced[s].value == ticked)
    if redo and begun:
        yield [Step(Kind.REDO, begun, worker, ticked + 1, intent)]
    return Settled(ticked, cursor)


def start_worker(
    worker: WorkerId, shards: tuple[int, ...], job_text: bytes, *, redo: bool
) -> Script:
    """Make the job known to all shards, then take the rank over."""
    yield [Step(Kind.OPEN_JOB, shards, worker, text=job_text)]
    return (yield from take_over(worker, shards, redo=redo))


def leave(number: int, worker: WorkerId, shards: tuple[int, ...], *, redo: bool) -> Script:
    """Intent `number`: take the rank over, then strike it off after its settled tick."""
    settled = yield from take_over(worker, shards, redo=redo, intent=number)
    yield [Step(Kind.LEAVE, shards, worker, n=number)]
    return settled


def join(number: int, worker: WorkerId, shards: tuple[int, ...]) -> Script:
    """Intent `number`: the rank is live; the highest of the shards' lowest safe clocks counts.

    What it yields at the end as `ticked` is the clock before the joiner's first. The joiner takes
    its rank over like everybody, and thereby makes up for the empty clocks below its first.
    """
    joined = yield [Step(Kind.JOIN, shards, worker, n=number)]
    return Settled(max(answer.value for answer in joined.values()) - 1, b"")

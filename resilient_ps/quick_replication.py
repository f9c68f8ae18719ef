"""The quick way of plain pushes from a primary's request to its backups and back.

What a replicated push costs is mostly Python per shard, three times: the primary makes entries of
it, backups take them in and apply those before, and the primary applies and answers them. Each of
the three is one call of the native module for all shards of a message (`native/replicating.cpp`),
which does to the same objects what `Leading`, `Replica` and `ShardState` do. Plain is what a worker
sends that waits for each push: one entry of a shard at a time, with nothing before it.

All or nothing: where one part is not plain, nothing has been changed, and the whole message goes
the usual way. So it does where somebody has replaced a method that is left out here (`METHODS`),
unless it is known to watch what happens here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import xxhash

from resilient_ps import quick_frames
from resilient_ps.coordinator.records import Member
from resilient_ps.engine import native
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ledger import JobLedger
from resilient_ps.messages import (
    COMMAND_BYTES,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Command,
    Entry,
    Held,
    Kind,
    Request,
    Status,
)
from resilient_ps.replication.parcels import LIMITS
from resilient_ps.replication.replica import Replica
from resilient_ps.shard import Reply
from resilient_ps.shard_state import ShardState
from resilient_ps.waiting import Origin

ByNumber: TypeAlias = Mapping[int, Replica]


def methods() -> tuple[object, ...]:
    """What the native module does without calling it."""
    return ShardState.commit, ShardState.come_to, JobLedger.record_push


METHODS = methods()
"""As they are to be. Who replaces them, and watches the functions below as well, sets it anew."""


def _set_up() -> bool:
    if native is None or not quick_frames.IN_USE:
        return False
    types = (AppendPart, AppendedPart, Entry, Command, Reply)
    native.set_up_replicating(
        {kind.__name__: kind for kind in types}
        | {
            "push": Kind.PUSH,
            "held": Held.HELD,
            "ok": Status.OK,
            "all_guards": ALL_GUARDS,
            "digest": xxhash.xxh3_64_intdigest,
            "command_bytes": COMMAND_BYTES,
        }
    )
    return True


_IN_USE = _set_up()


def _may() -> bool:
    return _IN_USE and methods() == METHODS


def enter_push(
    request: Request, by_number: ByNumber, origin: Origin, now_ns: int
) -> dict[str, Append] | None:
    """A push of shards with followers becomes an entry of each: by server, what it is sent."""
    if request.kind is not Kind.PUSH or len(request.values) != 1 or not _may():
        return None
    if request.keys.nbytes + request.values[0].nbytes > LIMITS.payload_bytes:
        return None
    sent = native.enter_push(request, by_number, origin, now_ns)
    return None if sent is None else {s: Append(tuple(parts)) for s, parts in sent.items()}


def take_entries(append: Append, by_number: ByNumber) -> Appended | None:
    """A backup takes in what it is sent, and applies what is committed: its answer."""
    said = native.take_entries(append.parts, by_number) if _may() else None
    return None if said is None else Appended(said)


def commit_entries(
    appended: Appended, by_number: ByNumber, member: Member, now_ns: int
) -> list[Reply] | None:
    """A primary hears what a follower holds, and applies what all do: what is to be answered."""
    if not _may():
        return None
    replies: list[Reply] | None = native.commit_entries(appended.parts, by_number, member, now_ns)
    return replies


def note_pushes(request: Request, made: Sequence[tuple[Any, ...]]) -> list[bytes] | None:
    """A push of shards without followers, of which all parts have been made, has happened: the
    bytes of its answer. `made`: tuples that begin with the `Leading` of each part's shard."""
    answer: list[bytes] | None = native.note_pushes(request, made) if _may() else None
    return answer

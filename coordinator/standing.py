"""How a shard stands: which of its in-sync members live, and what is still to come.

A member lives while the server of its name is registered with its process: a restarted server is
another process, with empty memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.coordinator.records import Member, ShardRecord

State: TypeAlias = Literal["ok", "moving", "under-replicated", "leaderless", "lost"]
"""The worst that is true of a shard. `lost`: no in-sync member lives, though it had a primary."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`living`: in-sync members that live. `learning`: desired servers that live, not in sync."""

    state: State
    living: tuple[Member, ...]
    learning: tuple[str, ...]


def standing_of(record: ShardRecord, processes: Mapping[str, int], copies: int) -> Standing:
    """How the shard stands where `processes` live, by server, and `copies` are asked for."""
    living = tuple(m for m in record.in_sync if processes.get(m.server) == m.process)
    held = {member.server for member in living}
    learning = tuple(s for s in record.desired if s in processes and s not in held)
    return Standing(_state(record, living, held, copies), living, learning)


def never_led(record: ShardRecord) -> bool:
    """Has it had no primary yet, so that nothing was ever written to it?"""
    return not record.primary and record.epoch.counter == 0


def _state(record: ShardRecord, living: tuple[Member, ...], held: set[str], copies: int) -> State:
    if not living and not never_led(record):
        return "lost"
    if record.leader not in living:
        return "leaderless"
    if len(living) < copies:
        return "under-replicated"
    settled = held == set(record.desired) and record.desired[:1] == (record.primary,)
    return "ok" if settled and len(living) == len(record.in_sync) else "moving"

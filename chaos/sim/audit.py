"""What servers said, and what etcd held, for checkers: answers and records, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Event, KeyValue, WatchBatch
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.ids import Epoch
from resilient_ps.messages import Answer, Status

_new = tuple.__new__  # several times faster than a named tuple's own constructor

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.process import Process


class Answered(NamedTuple):
    """One part of an answer of a server, when it was handed to the network.

    `deadline_ns`: until when the server's lease was provably valid at that moment, on its own
    clock, as `local_ns` is. `granted_ns`: until when etcd kept it, in the world's time; 0: it had
    ended.
    """

    world_ns: int
    local_ns: int
    server: str
    process_id: int
    shard: int
    status: Status
    epoch: Epoch
    lsn: int
    deadline_ns: int
    granted_ns: int


@dataclass(slots=True)
class Audit:
    """`expired`: answers that were thrown away because their sender's lease was over.

    `records`: every value that a shard's record had in etcd, and since when, in order. `on_event`
    is called with every other change, as it happens.
    """

    answers: list[Answered] = field(default_factory=list)
    expired: int = 0
    on_event: list[Callable[[int, Event], None]] = field(default_factory=list)
    _written: list[tuple[int, KeyValue]] = field(default_factory=list)
    _records: list[tuple[int, ShardRecord]] = field(default_factory=list)

    def note(self, world_ns: int, batch: WatchBatch, keys: ClusterKeys) -> None:
        """A change of etcd: keep what it wrote of shards."""
        for event in batch.events:
            if event.item.key.startswith(keys.shards):
                if event.kind == "put":
                    self._written.append((world_ns, event.item))
            elif self.on_event:
                for listener in self.on_event:
                    listener(world_ns, event)

    @property
    def records(self) -> list[tuple[int, ShardRecord]]:
        """All that was written so far."""
        for world_ns, item in self._written[len(self._records) :]:
            self._records.append((world_ns, ShardRecord.from_bytes(item.value, item.key)))
        return self._records


def answered(process: Process, answer: Answer) -> list[Answered]:
    """The records of one answer of a server."""
    world, membership = process.world, getattr(process.machine, "membership", None)
    deadline_ns = granted_ns = 0
    if membership is not None:
        deadline_ns = membership.deadline_ns
        granted_ns = world.store.kv.lease_deadline_ns(membership.record.lease)
    world_ns = world.now_ns
    local_ns = process.clock.local(world_ns)
    host, number = process.host, process.process_id
    found = []
    for part in answer.parts:
        epoch, lsn = part.at
        what = (part.shard, part.status, epoch, lsn, deadline_ns, granted_ns)
        found.append(_new(Answered, (world_ns, local_ns, host, number, *what)))
    return found

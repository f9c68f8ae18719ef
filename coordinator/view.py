"""What a process knows of its cluster: the records below the cluster's prefix, kept up to date.

Fed by a full read and a watch. A value that cannot be read is reported once and left out; what was
known of its key before stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any, cast

from resilient_ps.coordinator.keys import ClusterKeys, Located
from resilient_ps.coordinator.kv import Compare, KeyValue, WatchBatch, absent, unchanged
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    DrainRecord,
    IntentRecord,
    JobRecord,
    Record,
    RestoreRecord,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.task_records import GraphRecord
from resilient_ps.errors import BadInput

_RECORDS: dict[str, type[Record]] = {
    "config": ClusterConfig,
    "server": ServerRecord,
    "shard": ShardRecord,
    "ring": RingRecord,
    "drain": DrainRecord,
    "namespace": NamespaceRecord,
    "job": JobRecord,
    "intent": IntentRecord,
    "checkpoint": CheckpointRecord,
    "restore": RestoreRecord,
    "graph": GraphRecord,
}


_RING = Located("ring")
_TASKS = frozenset({"graph", "lanes", "holder", "job"})
_LAYOUT = frozenset({"config", "server", "shard", "ring", "drain"})
_OF_SHARDS = frozenset({"shard", "leader"})


class ClusterView:
    """The present records of one cluster.

    `layout` grows with every change of what decides where shards are to be, `changes` with every
    one of a shard's record or leader key: who looks often looks at `changed_since` alone.
    `config`: how the cluster was created; None before that. `restore`: what the present incarnation
    began with; None: with nothing, for the first one.
    """

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.revision = 0
        self.layout = 0
        self.changes = 0
        self.config: ClusterConfig | None = None
        self.restore: RestoreRecord | None = None
        self.task_changes: set[Located] = set()
        self.problems: list[str] = []  # what could not be read; the owner logs and clears them
        self.items: dict[bytes, KeyValue] = {}
        self._records: dict[str, dict[Located, Record]] = {kind: {} for kind in _RECORDS}
        self._sorted: dict[str, list[Any]] = {}  # by kind, where nothing has changed since
        self._open: list[IntentRecord] | None = None  # intents, where none has changed since
        self._changed: dict[int, int] = {}  # by shard, the latest last: what `changes` was then

    def load(self, items: Iterable[KeyValue], revision: int) -> None:
        """Everything anew: what is not among `items` does not exist."""
        present = {item.key: item for item in items}
        for key in sorted(set(self.items) - set(present)):
            self._remove(key)
        for item in present.values():
            self._put(item)
        self.revision = revision

    def apply(self, batch: WatchBatch) -> None:
        """The changes of one revision."""
        for event in batch.events:
            if event.kind == "put":
                self._put(event.item)
            else:
                self._remove(event.item.key)
        self.revision = batch.revision

    def _put(self, item: KeyValue) -> None:
        self.items[item.key] = item
        located = self.keys.locate(item.key)
        self._note(located)
        if located is None:
            return
        kind = _RECORDS.get(located.kind)
        if kind is None:
            return
        self._touch(located)
        try:
            record = kind.from_bytes(item.value, item.key)
        except BadInput as error:
            self.problems.append(str(error))
            return
        self._records[located.kind][located] = record
        self._keep_alone(located, record)

    def _remove(self, key: bytes) -> None:
        self.items.pop(key, None)
        located = self.keys.locate(key)
        self._note(located)
        if located is not None and located.kind in _RECORDS:
            self._records[located.kind].pop(located, None)
            self._keep_alone(located, None)
            self._touch(located)

    def _keep_alone(self, located: Located, record: Record | None) -> None:
        """Of these there is one at most, and it is looked at all the time."""
        if located.kind == "config":
            self.config = cast("ClusterConfig | None", record)
        elif located.kind == "restore":
            self.restore = cast("RestoreRecord | None", record)

    def _note(self, located: Located | None) -> None:
        """Something of this shard, or graph of tasks, has changed, if it is of one."""
        if located is not None and located.kind in _TASKS:
            self.task_changes.add(located)
        if located is not None and located.kind in _OF_SHARDS:
            self.changes += 1
            self._changed.pop(located.number, None)
            self._changed[located.number] = self.changes

    def changed_since(self, changes: int) -> list[int]:
        """The shards whose record or leader key has changed since `changes` was this."""
        latest_first = reversed(self._changed.items())
        return [shard for shard, _ in takewhile(lambda noted: noted[1] > changes, latest_first)]

    def _touch(self, located: Located) -> None:
        self.layout += located.kind in _LAYOUT
        self._sorted.pop(located.kind, None)
        if located.kind == "intent":
            self._open = None

    def _all(self, kind: str) -> list[Any]:
        found = self._sorted.get(kind)
        if found is None:
            records = self._records[kind]
            found = self._sorted[kind] = [records[at] for at in sorted(records)]
        return found

    def _one(self, located: Located) -> Record | None:
        return self._records[located.kind].get(located)

    def as_seen(self, key: bytes) -> Compare:
        """A guard that holds while the key is as it is known here."""
        held = self.items.get(key)
        return absent(key) if held is None else unchanged(key, held.mod_revision)

    @property
    def servers(self) -> list[ServerRecord]:
        """The live servers, by name."""
        return self._all("server")

    @property
    def shards(self) -> list[ShardRecord]:
        """The shards' records, by number: fewer than the configured number before placement."""
        return self._all("shard")

    def shard(self, number: int) -> ShardRecord | None:
        """One shard's record."""
        return cast("ShardRecord | None", self._one(Located("shard", number=number)))

    @property
    def processes(self) -> dict[str, int]:
        """The live servers, and which process each one is."""
        return {record.server: record.process for record in self.servers}

    @property
    def ring(self) -> RingRecord | None:
        """The servers that are to hold shards; None before the first placement."""
        return cast("RingRecord | None", self._one(_RING))

    @property
    def drains(self) -> list[str]:
        """The servers that are to hold nothing any more, by name."""
        return sorted(at.name for at in self._records["drain"])

    @property
    def intents(self) -> list[IntentRecord]:
        """All intents, in the order of their numbers."""
        return self._all("intent")

    @property
    def jobs(self) -> list[JobRecord]:
        """All jobs, by name."""
        return self._all("job")

    @property
    def open_intents(self) -> list[IntentRecord]:
        """Intents that have not been executed on all shards, in the order of their numbers."""
        if self._open is None:
            self._open = [intent for intent in self.intents if intent.state == "open"]
        return self._open

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        """All published checkpoints, in the order of their numbers: the newest last."""
        return self._all("checkpoint")

    @property
    def namespaces(self) -> dict[str, NamespaceRecord]:
        """The namespaces that have a record, by name, in order."""
        records = self._records["namespace"]
        return {at.name: cast("NamespaceRecord", records[at]) for at in sorted(records)}

    @property
    def graphs(self) -> list[str]:
        """The graphs of tasks, by name."""
        return sorted(at.name for at in self._records["graph"])

    def graph(self, name: str) -> GraphRecord | None:
        """A graph's record, by name."""
        return cast("GraphRecord | None", self._one(Located("graph", name)))

    def job(self, name: str) -> JobRecord | None:
        """A job's record, by name."""
        return cast("JobRecord | None", self._one(Located("job", name)))

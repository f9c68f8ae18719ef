"""What a process knows of its cluster: the records below the cluster's prefix, kept up to date.

Fed by a full read and a watch. A value that cannot be read is reported once and left out; what was
known of its key before stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from resilient_ps.coordinator.keys import ClusterKeys, Located
from resilient_ps.coordinator.kv import KeyValue, WatchBatch
from resilient_ps.coordinator.records import (
    ClusterConfig,
    IntentRecord,
    JobRecord,
    Record,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.errors import BadInput

_RECORDS: dict[str, type[Record]] = {
    "config": ClusterConfig,
    "server": ServerRecord,
    "shard": ShardRecord,
    "job": JobRecord,
    "intent": IntentRecord,
}


class ClusterView:
    """The present records of one cluster."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.revision = 0
        self.problems: list[str] = []  # what could not be read; the owner logs and clears them
        self.items: dict[bytes, KeyValue] = {}
        self._records: dict[Located, Record] = {}

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
        kind = None if located is None else _RECORDS.get(located.kind)
        if located is None or kind is None:
            return
        try:
            self._records[located] = kind.from_bytes(item.value, item.key)
        except BadInput as error:
            self.problems.append(str(error))

    def _remove(self, key: bytes) -> None:
        self.items.pop(key, None)
        located = self.keys.locate(key)
        if located is not None:
            self._records.pop(located, None)

    def _all(self, kind: str) -> list[Record]:
        return [self._records[at] for at in sorted(self._records) if at.kind == kind]

    @property
    def config(self) -> ClusterConfig | None:
        """How the cluster was created; None before that."""
        return cast("ClusterConfig | None", self._records.get(Located("config")))

    @property
    def servers(self) -> list[ServerRecord]:
        """The live servers, by name."""
        return cast("list[ServerRecord]", self._all("server"))

    @property
    def shards(self) -> list[ShardRecord]:
        """The shards' records, by number: fewer than the configured number before placement."""
        return cast("list[ShardRecord]", self._all("shard"))

    @property
    def open_intents(self) -> list[IntentRecord]:
        """Intents that have not been executed on all shards, in the order of their numbers."""
        intents = cast("list[IntentRecord]", self._all("intent"))
        return [intent for intent in intents if intent.state == "open"]

    def job(self, name: str) -> JobRecord | None:
        """A job's record, by name."""
        return cast("JobRecord | None", self._records.get(Located("job", name)))

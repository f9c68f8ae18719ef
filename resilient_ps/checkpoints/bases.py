"""What the base checkpoint of an open cut holds of this server's shards: its manifest and indexes.

Without it a checkpoint can be made as well, only larger: what cannot be read, or does not verify,
is no base.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilient_ps.checkpoints.refs import Refs
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.machine import Effect, Log
from resilient_ps.storage.blobs import BlobAnswered, BlobCall, BlobFailed, BlobGot
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import read_index, read_manifest
from resilient_ps.storage.shard_index import ShardIndex

_MANIFEST = -1


class Bases:
    """See the module. For one base at a time: `use` it, then `want` shards."""

    def __init__(self, refs: Refs) -> None:
        self._refs = refs
        self._id = ""
        self._manifest: Manifest | None = None
        self._found: dict[int, ShardIndex | None] = {}
        self._wanted: set[int] = set()
        self._reading: dict[int, int] = {}  # reference -> shard, or the manifest

    def use(self, base: str, records: Sequence[CheckpointRecord]) -> list[Effect]:
        """Read this checkpoint's manifest. "" or one that has no good record: there is no base."""
        if base == self._id:
            return []
        self.forget()
        self._id = base
        for record in records:
            if record.id == base and record.state == "good":
                read = read_manifest(record.manifest, record.nbytes, record.sha256)
                return [BlobCall(self._ref(_MANIFEST), read)]
        return []

    def forget(self) -> None:
        """There is no open cut any more: give memory back, take no notice of answers."""
        self._id, self._manifest = "", None
        self._found.clear()
        self._wanted.clear()
        self._reading.clear()

    def want(self, shard: int) -> list[Effect]:
        """This shard's index will be asked for."""
        if shard in self._wanted:
            return []
        self._wanted.add(shard)
        if _MANIFEST in self._reading.values():
            return []
        return self._read(shard)

    def is_known(self, shard: int) -> bool:
        """Is it known what the base has of a shard that was wanted?"""
        return shard in self._found

    def index(self, shard: int) -> ShardIndex | None:
        """The base's image of this shard; None: there is none."""
        return self._found.get(shard)

    def on_blob(self, event: BlobAnswered | BlobFailed) -> list[Effect] | None:
        """What became of a call; None if it is none of these."""
        what = self._reading.pop(event.ref, None)
        if what is None:
            return None
        decoded, effects = None, list[Effect]()
        if isinstance(event, BlobFailed):
            fields = {"checkpoint": self._id, "error": str(event.error)}
            effects.append(Log("warning", "a base checkpoint cannot be read", fields))
        elif isinstance(event.result, BlobGot):
            decoded = event.result.decoded
        if what != _MANIFEST:
            self._found[what] = decoded
            return effects
        self._manifest = decoded
        for shard in sorted(self._wanted):
            effects += self._read(shard)
        return effects

    def _read(self, shard: int) -> list[Effect]:
        if self._manifest is None or shard >= self._manifest.shards:
            self._found[shard] = None
            return []
        return [BlobCall(self._ref(shard), read_index(self._manifest, shard))]

    def _ref(self, what: int) -> int:
        ref = self._refs.draw()
        self._reading[ref] = what
        return ref

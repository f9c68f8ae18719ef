"""Deletes the objects of checkpoints that are given up or not kept any more: one at a time.

Only what etcd says is closed is touched, and only in the folder of that checkpoint: so it does not
matter how late a deletion arrives, nor whether we are still the coordinator then. What the
manifests of checkpoints that stay name is left where it is: they are all read before anything is
deleted. What remains is looked at again when other checkpoints have gone. The manifest of the one
that goes is deleted by its name, first: a listing that lags need not show it, and a checkpoint
whose manifest was left behind would come back when etcd is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from resilient_ps.checkpoints.fetching import may_mend
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, Log
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobList,
    BlobRequest,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    SweepUploads,
)
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId, checkpoint_prefix, manifest_name
from resilient_ps.storage.reading import read_manifest
from resilient_ps.storage.retention import plan_sweep

PAUSE_FIRST_NS = 5 * 10**9
PAUSE_MOST_NS = 600 * 10**9
UNREADABLE_MOST = 3  # a manifest that could not be read so often is damaged
UPLOADS_OLDER_S = 300
KNOWN_MOST = 20_000  # manifests that are remembered: more than can be kept


@dataclass(slots=True)
class _Work:
    """The checkpoint whose folder is being emptied."""

    id: CheckpointId
    uploads: bool  # throw unfinished uploads away as well
    after: str = ""  # listed up to here
    batches: list[tuple[str, ...]] = field(default_factory=list)
    listed: bool = False  # to the end
    left: int = 0  # objects that are needed by others


class Sweeping:
    """See the module. `emptied` are those of which nothing is left, until they are taken."""

    def __init__(self, cluster: str, refs: Refs) -> None:
        self.emptied: set[CheckpointId] = set()
        self.unreadable: dict[CheckpointId, str] = {}  # manifests that do not verify, and why
        self.trouble = ""
        self._cluster = cluster
        self._refs = refs
        self._ref = 0
        self._work: _Work | None = None
        self._reading: CheckpointId | None = None
        self._shared: dict[CheckpointId, Manifest] = {}  # what others' folders they name
        self._staying: set[CheckpointId] = set()
        self._failed: dict[CheckpointId, int] = {}
        self._needed: dict[CheckpointId, frozenset[str]] = {}  # looked at when these stayed
        self._pause_ns = PAUSE_FIRST_NS
        self._not_before_ns = 0

    def drop(self) -> None:
        """Answers that are still to come are of no interest."""
        self._ref, self._work, self._reading = 0, None, None
        self.emptied.clear()
        self._needed.clear()

    @property
    def idle(self) -> bool:
        """May another one begin?"""
        return self._work is None

    def is_parked(self, checkpoint: CheckpointId, staying: Sequence[CheckpointRecord]) -> bool:
        """Was it looked at already, with the same others staying?"""
        return self._needed.get(checkpoint) == frozenset(record.id for record in staying)

    def begin(self, checkpoint: CheckpointId, *, uploads: bool) -> None:
        """Empty the folder of this one: its cut is closed, and it is not to stay."""
        manifest = manifest_name(self._cluster, checkpoint)
        self._work = _Work(checkpoint, uploads, batches=[(manifest,)])

    def advance(
        self, staying: Sequence[CheckpointRecord], now_ns: int, *, unused_only: bool
    ) -> list[Effect]:
        """Go on. `staying`: *all* records of checkpoints that are not to be deleted."""
        work = self._work
        if work is None or self._ref or now_ns < self._not_before_ns:
            return []
        self._staying = {CheckpointId.parse(record.id) for record in staying}
        unread = [record for record in staying if self._is_unread(record)]
        if unread and unused_only:
            self._reading = CheckpointId.parse(unread[0].id)
            return self._ask(_read_shared(unread[0], self._cluster))
        if work.batches:
            return self._ask(DeleteBlobs(work.batches[0]))
        if not work.listed:
            prefix = checkpoint_prefix(self._cluster, work.id)
            return self._ask(ListBlobs(prefix, work.after))
        if work.uploads:
            return self._ask(
                SweepUploads(checkpoint_prefix(self._cluster, work.id), UPLOADS_OLDER_S)
            )
        return self._end(work, staying)

    def owns(self, ref: int) -> bool:
        """Is this the reference of the call under way?"""
        return ref == self._ref != 0

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """What became of the call under way; call `advance` then."""
        self._ref = 0
        reading, self._reading = self._reading, None
        work = self._work
        if work is None:
            return []
        if isinstance(event, BlobFailed):
            return self._on_failed(reading, event.error, now_ns)
        self.trouble, self._pause_ns = "", PAUSE_FIRST_NS
        match event.result:
            case BlobGot(_, _, _, Manifest() as shared):
                if len(self._shared) >= KNOWN_MOST:
                    self._shared.clear()
                self._shared[shared.id] = shared
                self._failed.pop(shared.id, None)
            case BlobList() as found:
                self._take_names(work, found)
            case _ if work.batches:
                work.batches.pop(0)
            case _:
                work.uploads = False
        return []

    def _is_unread(self, record: CheckpointRecord) -> bool:
        id = CheckpointId.parse(record.id)
        return id not in self._shared and id not in self.unreadable

    def _take_names(self, work: _Work, found: BlobList) -> None:
        names = [item.name for item in found.items]
        shared = [self._shared[id] for id in sorted(self._staying & set(self._shared))]
        sweep = plan_sweep(self._cluster, names, shared, {work.id}, lambda each: each == work.id)
        work.batches = list(sweep.batches)
        work.left += len(names) - sum(len(batch) for batch in work.batches)
        work.listed = not found.more or not names
        work.after = names[-1] if names else work.after

    def _end(self, work: _Work, staying: Sequence[CheckpointRecord]) -> list[Effect]:
        self._work = None
        if work.left:
            self._needed[work.id] = frozenset(record.id for record in staying)
            return []
        self._needed.pop(work.id, None)
        self.emptied.add(work.id)
        return [Log("info", "checkpoint's objects deleted", {"checkpoint": str(work.id)})]

    def _on_failed(
        self, reading: CheckpointId | None, error: ResilientPsError, now_ns: int
    ) -> list[Effect]:
        self.trouble = str(error)
        self._not_before_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, PAUSE_MOST_NS)
        if reading is None or may_mend(error):
            return []
        count = self._failed[reading] = self._failed.get(reading, 0) + 1
        if count < UNREADABLE_MOST:
            return []
        self.unreadable[reading] = self.trouble
        what = {"checkpoint": str(reading), "error": self.trouble}
        return [Log("error", "manifest cannot be read", what)]

    def _ask(self, request: BlobRequest) -> list[Effect]:
        self._ref = self._refs.draw()
        return [BlobCall(self._ref, request)]


def _read_shared(record: CheckpointRecord, cluster: str) -> GetBlob:
    """Read and verify a manifest; of it only the objects in others' folders are kept."""
    whole = read_manifest(record.manifest, record.nbytes, record.sha256)
    decode = whole.decode
    assert decode is not None, "a manifest is decoded"

    def read(raw: bytes) -> Manifest:
        manifest: Manifest = decode(raw)
        own = checkpoint_prefix(cluster, manifest.id)
        others = tuple(each for each in manifest.objects if not each.name.startswith(own))
        none: Mapping[str, int] = {}
        return replace(
            manifest, clocks=none, tables=(), jobs=(), ring=(), indexes=(), objects=others
        )

    return replace(whole, decode=read)

"""After a restore: tables, jobs and counters of the checkpoint's manifest are written into etcd.

The shards load meanwhile, and the store is told what the incarnation has begun with (`lineage`).
When nothing is left to be written the restore record says `registered`, and workers may resume. A
coordinator that dies leaves the rest to its successor, which finds out what is left
(`restored_records`).
"""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.checkpoints.fetching import Fetching, Wanted
from resilient_ps.checkpoints.lineage import Began
from resilient_ps.checkpoints.refs import ROLLBACK_REFS, Refs
from resilient_ps.checkpoints.restored import WHY_CHARS
from resilient_ps.checkpoints.restored_records import changes_left
from resilient_ps.coordinator.kv import Op, Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import RestoreRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, Log
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import read_manifest

REGISTER_REF = ROLLBACK_REFS[2]
CHANGES_AT_ONCE = 40


class Registration:
    """See the module. `timer`: by which `advance` is called again. `stored`: is there a store?"""

    def __init__(
        self, view: ClusterView, mandate: Mandate, refs: Refs, timer: str, *, stored: bool
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._refs = refs
        self._timer = timer
        self._stored = stored
        self._began: Began | None = None
        self._reading: Fetching | None = None
        self._manifest: tuple[str, Manifest] | None = None  # and its SHA-256

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._reading = self._manifest = self._began = None

    @property
    def trouble(self) -> str:
        """Why the store cannot be used at the moment; "" if it can."""
        told = [part.trouble for part in (self._reading, self._began) if part is not None]
        return next((trouble for trouble in told if trouble), "")

    @property
    def left(self) -> bool:
        """Is there something to be registered still?"""
        config, restore = self._view.config, self._view.restore
        present = config is not None and restore is not None
        return (
            present
            and restore is not None
            and config is not None
            and restore.incarnation == config.incarnation
            and not restore.registered
        )

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call of ours?"""
        return any(part is not None and part.owns(ref) for part in (self._reading, self._began))

    def advance(self, now_ns: int) -> list[Effect]:
        """Read the manifest, then write what is left."""
        restore = self._view.restore
        if not self.left or restore is None or self._mandate.busy(REGISTER_REF):
            return []
        if not self._stored:
            return self._register(restore, now_ns)
        if self._began is None or self._began.incarnation != restore.incarnation:
            self._began = Began(self._view.keys.cluster, restore, self._refs, self._timer)
        return [*self._began.advance(now_ns), *self._register(restore, now_ns)]

    def _register(self, restore: RestoreRecord, now_ns: int) -> list[Effect]:
        if not restore.checkpoint:
            return self._write(restore, None)
        if self._manifest is not None and self._manifest[0] == restore.sha256:
            return self._write(restore, self._manifest[1])
        if self._reading is None:
            request = read_manifest(restore.manifest, restore.nbytes, restore.sha256)
            self._reading = Fetching(self._refs, [Wanted(request, restore.nbytes)], self._timer)
        return self._reading.advance(now_ns)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """The manifest, or why it is not there; or that it is said what has begun."""
        if self._began is not None and self._began.owns(event.ref):
            return [*self._began.on_blob(event, now_ns), *self.advance(now_ns)]
        assert self._reading is not None
        effects = self._reading.on_blob(event, now_ns)
        failed = self._reading.failed
        if failed is not None:
            self._reading = None
            return self._give_up(failed)
        got = self._reading.take()
        if got is None:
            return effects
        self._reading = None
        restore = self._view.restore
        if restore is not None and isinstance(got.decoded, Manifest):
            self._manifest = (restore.sha256, got.decoded)
        return self.advance(now_ns)

    def _write(self, restore: RestoreRecord, manifest: Manifest | None) -> list[Effect]:
        view, keys = self._view, self._view.keys
        try:
            changes = changes_left(manifest, keys, view.items)[:CHANGES_AT_ONCE]
        except Damaged as error:
            return self._give_up(error)
        guards = [view.as_seen(keys.config), view.as_seen(keys.restore)]
        told: list[Effect] = []
        if changes:
            ops: list[Op] = [change.op for change in changes]
            guards += [change.guard(view.items) for change in changes]
        elif self._began is not None and not self._began.done:
            return []
        else:
            ops = [Put(keys.restore, replace(restore, registered=True).to_bytes())]
            what = {"incarnation": restore.incarnation, "checkpoint": restore.checkpoint or "-"}
            told = [Log("info", "tables and jobs are registered", what)]
        txn = self._mandate.order(*ops, guards=tuple(guards))
        return [*told, *self._mandate.ask(REGISTER_REF, txn)]

    def _give_up(self, error: ResilientPsError) -> list[Effect]:
        """It cannot be read: the record says so, and another one is chosen."""
        view, keys, restore = self._view, self._view.keys, self._view.restore
        if restore is None or restore.damaged:
            return []
        record = replace(restore, damaged=str(error)[:WHY_CHARS])
        guards = (view.as_seen(keys.config), view.as_seen(keys.restore))
        txn = self._mandate.order(Put(keys.restore, record.to_bytes()), guards=guards)
        return self._mandate.ask(REGISTER_REF, txn)

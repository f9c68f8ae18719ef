"""Writes the manifest of a checkpoint whose images are written: last, and only if there is none.

The indexes are read back and verified first: what has not arrived whole is not published. A put
whose answer was lost is recognised by reading back what there is: the name of a manifest has the
nonce of its cut's intent, so whatever stands there was made of the same images, by us or by a
coordinator before us. While the store cannot be reached, everything is tried again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from resilient_ps.checkpoints.assembling import Imaged
from resilient_ps.checkpoints.fetching import Fetching, Wanted, may_mend
from resilient_ps.checkpoints.images import Failure, FailureKind
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, SetTimer
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobExists,
    BlobFailed,
    BlobGot,
    BlobPut,
    Bytes,
    GetBlob,
    PutBlob,
)
from resilient_ps.storage.manifest import MANIFEST_BYTES_MAX, Manifest
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.portions import verify
from resilient_ps.storage.shard_index import ObjectInfo, ShardIndex

TIMER = "coordinator/checkpoints/store"
PAUSE_FIRST_NS = 250_000_000
PAUSE_MOST_NS = 10_000_000_000
PATIENCE_NS = 600_000_000_000  # a store that is away for so long: the checkpoint is given up


@dataclass(frozen=True, slots=True)
class Published:
    """A manifest that stands in the store."""

    manifest: Manifest
    nbytes: int
    sha256: str

    @classmethod
    def of(cls, manifest: Manifest, data: Bytes) -> Self:
        """What was read from, or written to, the store."""
        return cls(manifest, len(data), hashlib.sha256(data).hexdigest())


class Publishing:
    """Of one checkpoint. `made` makes the manifest of what was read."""

    def __init__(
        self,
        name: str,
        checkpoint: CheckpointId,
        indexes: Sequence[ObjectInfo],
        made: Callable[[Sequence[Imaged]], Manifest],
        refs: Refs,
        now_ns: int,
    ) -> None:
        self.published: Published | None = None
        self._name = name
        self._id = checkpoint
        self._indexes = indexes
        self._made = made
        self._refs = refs
        self._begun_ns = now_ns
        wanted = [Wanted(read_index(info), info.nbytes) for info in indexes]
        self._reading = Fetching(refs, wanted, TIMER)
        self._read: list[Imaged] = []
        self._body = b""  # of the manifest, when it is made
        self._ref = 0  # of the put, or of reading back
        self._reads_back = False
        self._pause_ns = PAUSE_FIRST_NS
        self._not_before_ns = 0
        self._failure: Failure | None = None
        self.trouble = ""  # why the store does not do it at the moment

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call under way?"""
        return ref == self._ref or self._reading.owns(ref)

    def failure(self, now_ns: int) -> Failure | None:
        """Why it is of no use to go on; None while it is."""
        if self._failure is None and self.published is None:
            if self._reading.failed is not None:
                self._fail("image", str(self._reading.failed))
            elif now_ns - self._begun_ns >= PATIENCE_NS:
                self._fail("store", self.trouble or self._reading.trouble or "it does not answer")
        return self._failure

    def advance(self, now_ns: int) -> list[Effect]:
        """Do what comes next, if nothing is under way."""
        if self._failure is not None or self.published is not None or self._ref:
            return []
        if not self._reading.done:
            return self._read_on(now_ns)
        if now_ns < self._not_before_ns:
            return [SetTimer(TIMER, self._not_before_ns)]
        return self._put_or_read_back()

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """What became of a call of ours."""
        if self._reading.owns(event.ref):
            return [*self._reading.on_blob(event, now_ns), *self.advance(now_ns)]
        self._ref = 0
        if isinstance(event, BlobFailed):
            return self._on_failed(event.error, now_ns)
        match event.result:
            case BlobPut():
                made = Manifest.from_json(self._body, self._name)
                self._take(made, self._body)
            case BlobGot(data, _, _, Manifest() as manifest):
                self._take_theirs(manifest, data)
        return self.advance(now_ns)

    def _read_on(self, now_ns: int) -> list[Effect]:
        while (got := self._reading.take()) is not None:
            assert isinstance(got.decoded, ShardIndex)
            self._read.append(Imaged(self._indexes[len(self._read)], got.decoded))
        if not self._reading.done:
            return self._reading.advance(now_ns)
        try:
            self._body = self._made(self._read).to_json()
        except ResilientPsError as error:
            self._fail("image", str(error))
        self._read = []
        return self.advance(now_ns)

    def _put_or_read_back(self) -> list[Effect]:
        self._ref = self._refs.draw()
        if self._reads_back:
            return [BlobCall(self._ref, read_manifest_back(self._name))]
        return [BlobCall(self._ref, PutBlob(self._name, self._body, "create"))]

    def _on_failed(self, error: ResilientPsError, now_ns: int) -> list[Effect]:
        if isinstance(error, BlobExists) and not self._reads_back:
            self._reads_back = True
            return self.advance(now_ns)
        if not may_mend(error):
            self._fail("store", str(error))
            return []
        self.trouble = str(error)
        self._not_before_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, PAUSE_MOST_NS)
        return self.advance(now_ns)

    def _take_theirs(self, manifest: Manifest, data: Bytes) -> None:
        """What stands there already: ours, if it has our nonce."""
        if manifest.id != self._id:
            self._fail("image", f"object {self._name} is the manifest of checkpoint {manifest.id}")
        else:
            self._take(manifest, data)

    def _take(self, manifest: Manifest, data: Bytes) -> None:
        self.trouble = ""
        self.published = Published.of(manifest, data)

    def _fail(self, kind: FailureKind, why: str) -> None:
        self._failure = Failure(kind, why)


def read_index(info: ObjectInfo) -> GetBlob:
    """Read and verify the index that a server says it has written."""

    def read(raw: bytes) -> ShardIndex:
        verify(info, raw)
        return ShardIndex.from_json(raw, info.name)

    return GetBlob(info.name, most=info.nbytes, decode=read)


def read_manifest_back(name: str) -> GetBlob:
    """Read a manifest of which nothing is known but its name; `decoded` is the `Manifest`."""
    return GetBlob(name, most=MANIFEST_BYTES_MAX, decode=lambda raw: Manifest.from_json(raw, name))

"""Which checkpoint to go back to: the newest one that will do and that is all there.

Candidates are looked at from the newest on. A candidate's manifest and the indexes of all its
shards are read and verified, and of every object that it needs the last byte, which tells that it
is there and not cut off. The rest is verified by whoever loads it. What is not as it was written is
skipped, with the reason. A store that cannot be reached is waited for.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from resilient_ps.checkpoints.fetching import Fetching, Wanted
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.checkpoints.wish import Wish
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed, BlobGot, GetBlob
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.reading import read_index, read_manifest
from resilient_ps.storage.shard_index import ObjectInfo

CALLS_MAX = 16
MANIFEST_BYTES = 1 << 20  # what a manifest or an index is reckoned with
SKIPPED_MAX = 1_000


class Candidate(NamedTuple):
    """A checkpoint as etcd knows it, or by its name alone (`nbytes` -1)."""

    id: CheckpointId
    name: str  # of the manifest
    nbytes: int = -1
    sha256: str = ""


class Chosen(NamedTuple):
    """A checkpoint, and what identifies its manifest."""

    manifest: Manifest
    name: str
    nbytes: int
    sha256: str


class Skipped(NamedTuple):
    """A candidate that is `damaged`, or that this version cannot read."""

    id: CheckpointId
    why: str
    damaged: bool = True


class Choosing:
    """See the module. When it is `over`, `chosen` is the checkpoint, or None. `imported_only`:
    of those that were imported only these will do; None: any."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        wish: Wish,
        refs: Refs,
        timer: str,
        *,
        imported_only: Collection[CheckpointId] | None = None,
    ) -> None:
        self.chosen: Chosen | None = None
        self.over = False
        self.skipped: list[Skipped] = []
        self.read: list[Chosen] = []  # all manifests that could be read, whether they will do
        self._left = deque(sorted(candidates, key=lambda each: each.id, reverse=True))
        self._wish = wish
        self._imported_only = imported_only
        self._refs = refs
        self._timer = timer
        self._looking: _Look | None = None

    @property
    def rest(self) -> list[Candidate]:
        """Those that were not looked at, from the newest on."""
        return list(self._left)

    @property
    def trouble(self) -> str:
        """Why the store cannot be read at the moment; "" if it can."""
        return "" if self._looking is None else self._looking.fetching.trouble

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call of ours?"""
        return self._looking is not None and self._looking.fetching.owns(ref)

    def advance(self, now_ns: int) -> list[Effect]:
        """Begin, and go on after a pause."""
        if self.over:
            return []
        if self._looking is None and not self._begin_next():
            return []
        assert self._looking is not None
        return self._looking.fetching.advance(now_ns)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        look = self._looking
        assert look is not None
        effects = look.fetching.on_blob(event, now_ns)
        if look.fetching.failed is not None:
            self._skip(look.candidate, look.fetching.failed)
            return self.advance(now_ns)
        try:
            while (got := look.fetching.take()) is not None:
                self._take(look, got)
        except Damaged as error:
            self._skip(look.candidate, error)
            return self.advance(now_ns)
        if look.fetching.done:
            self._next_stage(look)
            return self.advance(now_ns)
        return [*effects, *look.fetching.advance(now_ns)]

    def _begin_next(self) -> bool:
        if not self._left or len(self.skipped) >= SKIPPED_MAX:
            self.over = True
            return False
        self._looking = _Look(self._left.popleft(), self._refs, self._timer)
        return True

    def _skip(self, candidate: Candidate, error: ResilientPsError) -> None:
        damaged = not isinstance(error, ForeignFormat)
        self.skipped.append(Skipped(candidate.id, str(error), damaged))
        self._looking = None

    def _take(self, look: _Look, got: BlobGot) -> None:
        if isinstance(got.decoded, Manifest):
            sha256 = hashlib.sha256(got.data).hexdigest()
            look.chosen = Chosen(got.decoded, look.candidate.name, len(got.data), sha256)
            if got.decoded.id != look.candidate.id:
                raise Damaged(f"object {look.candidate.name} is the manifest of {got.decoded.id}")
            self.read.append(look.chosen)
        elif look.stage == 2:
            _check_size(look.objects[look.fetching.taken - 1], got)

    def _accepts(self, manifest: Manifest) -> bool:
        only = self._imported_only
        if only is not None and manifest.imported and manifest.id not in only:
            return False
        return self._wish.accepts(manifest.id, manifest.clocks, manifest.created_s)

    def _next_stage(self, look: _Look) -> None:
        assert look.chosen is not None
        manifest = look.chosen.manifest
        if not look.stage and not self._accepts(manifest):
            self._looking = None
            return
        look.stage += 1
        if look.stage == 1:
            look.read([read_index(manifest, shard) for shard in range(manifest.shards)])
        elif look.stage == 2 and manifest.objects:
            look.objects = manifest.objects
            look.read([_last_byte(info) for info in manifest.objects])
        else:
            self.chosen, self.over, self._looking = look.chosen, True, None


class _Look:
    """At one candidate. Stages: its manifest, its indexes, its objects."""

    def __init__(self, candidate: Candidate, refs: Refs, timer: str) -> None:
        self.candidate = candidate
        self.stage = 0
        self.chosen: Chosen | None = None
        self.objects: Sequence[ObjectInfo] = ()
        self._refs = refs
        self._timer = timer
        self.read([read_manifest(candidate.name, candidate.nbytes, candidate.sha256)])

    def read(self, requests: Sequence[GetBlob]) -> None:
        wanted = [Wanted(request, MANIFEST_BYTES) for request in requests]
        self.fetching = Fetching(self._refs, wanted, self._timer, calls_max=CALLS_MAX)


def _last_byte(info: ObjectInfo) -> GetBlob:
    return GetBlob(info.name, max(0, info.nbytes - 1), min(1, info.nbytes), 1)


def _check_size(info: ObjectInfo, got: BlobGot) -> None:
    if got.size != info.nbytes or len(got.data) != min(1, info.nbytes):
        raise Damaged(
            f"object {info.name} has {got.size} bytes instead of {info.nbytes}: it was cut off, or "
            "replaced"
        )

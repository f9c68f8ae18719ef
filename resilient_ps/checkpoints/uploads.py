"""Objects on their way into the store: bounded in number and in bytes, paced, tried again.

The store has tried several times itself before a put fails here; a few more attempts with growing
pauses let an image survive a short outage. What the store refuses is not tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from resilient_ps.checkpoints.refs import Refs
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobPut,
    PutBlob,
    StoreRefused,
)

ATTEMPTS = 4
PAUSE_NS = 1_000_000_000  # after the first failure; doubled after each
BILLION = 1_000_000_000


class Written(NamedTuple):
    """An object of this shard's image is in the store, or need not be."""

    shard: int
    name: str
    put: BlobPut
    lasted_ns: int


class GivenUp(NamedTuple):
    """An object of this shard's image cannot be written."""

    shard: int
    why: str


@dataclass(slots=True)
class _Upload:
    shard: int  # -1: nobody wants it any more
    request: PutBlob
    held_bytes: int
    expected_bytes: int  # to be sent
    begun_ns: int
    attempts: int = 0
    again_ns: int = 0


class Uploads:
    """See the module. `bytes_per_s` 0: as fast as the store takes them."""

    def __init__(self, refs: Refs, concurrency: int, bytes_per_s: int) -> None:
        self._refs = refs
        self._concurrency = concurrency
        self._bytes_per_s = bytes_per_s
        self._under_way: dict[int, _Upload] = {}
        self._pausing: list[_Upload] = []
        self._free_at_ns = 0  # when the pace allows the next one
        self._shrinking = 1.0  # what is sent of what is held

    @property
    def held_bytes(self) -> int:
        """Bytes in memory for what is under way."""
        return sum([each.held_bytes for each in (*self._under_way.values(), *self._pausing)])

    @property
    def pausing(self) -> bool:
        """Is anything to be tried again after a pause?"""
        return bool(self._pausing)

    def has_slot(self, now_ns: int, *, alone: bool = False) -> bool:
        """May another one begin? `alone`: only when no other is under way."""
        begun = len(self._under_way) + len(self._pausing)
        return begun < (1 if alone else self._concurrency) and now_ns >= self._free_at_ns

    def start(self, shard: int, request: PutBlob, held_bytes: int, now_ns: int) -> BlobCall:
        """Write this object of a shard's image, which holds so many bytes in memory."""
        expected_bytes = int(held_bytes * self._shrinking)
        self._free_at_ns = max(self._free_at_ns, now_ns) + self._lasts_ns(expected_bytes)
        return self._call(_Upload(shard, request, held_bytes, expected_bytes, now_ns))

    def _lasts_ns(self, nbytes: int) -> int:
        return nbytes * BILLION // self._bytes_per_s if self._bytes_per_s else 0

    def _call(self, upload: _Upload) -> BlobCall:
        ref = self._refs.draw()
        upload.attempts += 1
        self._under_way[ref] = upload
        return BlobCall(ref, upload.request)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> Written | GivenUp | None:
        """What became of one; None if it is to be tried again, or nobody asks."""
        upload = self._under_way.pop(event.ref, None)
        if upload is None or upload.shard < 0:
            return None
        if isinstance(event, BlobAnswered):
            assert isinstance(event.result, BlobPut)
            self._learn(upload, event.result.nbytes)
            lasted_ns = now_ns - upload.begun_ns
            return Written(upload.shard, upload.request.name, event.result, lasted_ns)
        if upload.attempts >= ATTEMPTS or isinstance(event.error, StoreRefused):
            return GivenUp(
                upload.shard,
                f"object {upload.request.name} cannot be written, after {upload.attempts} "
                f"attempts: {event.error}",
            )
        upload.again_ns = now_ns + (PAUSE_NS << (upload.attempts - 1))
        self._pausing.append(upload)
        return None

    def again(self, now_ns: int) -> list[BlobCall]:
        """Try those again whose pause is over."""
        due = [upload for upload in self._pausing if upload.again_ns <= now_ns]
        self._pausing = [upload for upload in self._pausing if upload.again_ns > now_ns]
        return [self._call(upload) for upload in due]

    def forget(self, shard: int) -> None:
        """Nobody wants this shard's any more; what is under way stays so, and holds its memory."""
        self._pausing = [upload for upload in self._pausing if upload.shard != shard]
        for upload in self._under_way.values():
            if upload.shard == shard:
                upload.shard = -1

    def _learn(self, upload: _Upload, nbytes: int) -> None:
        """It was compressed, or there before: the next one may come earlier, or has to wait."""
        self._free_at_ns += self._lasts_ns(nbytes) - self._lasts_ns(upload.expected_bytes)
        self._shrinking = (self._shrinking + nbytes / max(1, upload.held_bytes)) / 2

"""One shard's image on its way into the store: what is written of it, and its index.

Theory of operation. An image that is reached gives pieces of its tables; several are packed into an
object, and written. What need not be written:

* A chunk that the base has at the same place, byte for byte (it is hashed before it is sent). Rows
  keep their places, so that what nobody touches repeats from checkpoint to checkpoint.
* A sparse table of which few rows were touched since the base: all its chunks in the base stay, and
  a *delta* of the touched rows is added. When deltas come to half of the table, or there are many,
  it is written in full again.

Only the base that the cut pins is used: nothing else is sure to stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from resilient_ps.checkpoints.progress import ImageProgress, ImageState
from resilient_ps.errors import Bug
from resilient_ps.image import ImagePiece, ShardImage
from resilient_ps.storage.blobs import BlobPut, PutBlob
from resilient_ps.storage.chunks import CHUNK_BYTES, ObjectBody, Packed, raw_bytes_of
from resilient_ps.storage.names import CheckpointId, chunks_name, index_name
from resilient_ps.storage.shard_index import (
    ChunkKey,
    ChunkPlace,
    ObjectInfo,
    ShardIndex,
)
from resilient_ps.tables.spec import DenseSpec, SparseSpec, spec_from_json

DELTA_BYTES_MOST = 0.5  # of a table, in sum
GENERATIONS_MOST = 8
KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """Where an image is written, and by whom."""

    cluster: str
    id: CheckpointId
    shard: int
    shards: int
    process: int


class ImageWriting:
    """See the module. `begin` until it says True, then `capture` until it gives 0.

    What there is to write comes out of `next_object`, at last the index; `on_put` is told of it.
    """

    def __init__(self, image: ShardImage, place: ImagePlace, object_bytes: int) -> None:
        self.image = image
        self.place = place
        self.begun = False
        self.captured = False  # nothing more comes of the image
        self.failed = ""
        self._store_failed = False
        self.index_info: ObjectInfo | None = None  # of the index, once it is written
        self._index_begun = False
        self._done_bytes = 0
        self._total_bytes = 0
        self._object_bytes = object_bytes
        self._base: ShardIndex | None = None
        self._base_cut = 0  # 0: what was touched since then cannot be known
        self._deltas: dict[int, int] = {}  # table -> generation
        self._of_base: dict[ChunkKey, ChunkPlace] = {}
        self._known: dict[ChunkKey, str] = {}  # their digests
        self._filling: list[ImagePiece] = []
        self._full: deque[tuple[ImagePiece, ...]] = deque()
        self._under_way = 0  # objects
        self._chunks: list[tuple[ObjectInfo, ChunkPlace]] = []
        self._uploaded_bytes = 0

    # -- what is written

    @property
    def is_capturing(self) -> bool:
        """Is there something to be had of the image, or to be found out?"""
        is_whole = self.image.reached and not self.image.failed
        return is_whole and not self.captured and not self.failed

    def begin(self, base: ShardIndex | None) -> bool:
        """Decide how each table is written: a step of about a millisecond, True at the end."""
        if base is not None and base.shards == self.place.shards and self._base is None:
            self._base = base
            # not deltas: one of an earlier generation would not replace those that followed it
            self._of_base = {chunk.key: chunk for chunk in base.chunks if chunk.kind != "delta"}
            self._known = {key: chunk.xxh128 for key, chunk in self._of_base.items()}
            of_base = CheckpointId.parse(self.image.cut.base)
            if of_base.incarnation == self.place.id.incarnation:
                self._base_cut = of_base.number
        if self._base_cut and not self.image.survey(self._base_cut):
            return False
        self.begun = True
        for number, text, *_, rows in self.image.head()[0]:
            row_bytes = _row_bytes(spec_from_json(text))
            changed = self._delta_rows(number, text, rows, row_bytes)
            self._total_bytes += row_bytes * (rows if changed is None else changed)
        self.image.start(dict.fromkeys(self._deltas, self._base_cut))
        return True

    def _delta_rows(self, number: int, text: str, rows: int, row_bytes: int) -> int | None:
        """How many rows a delta has; None: the table is written in full."""
        if not self._base_cut or self._base is None:
            return None
        had = [table for table in self._base.tables if table.number == number]
        if not had or had[0].spec != text or not had[0].rows:
            return None
        changed = self.image.delta_rows(number, self._base_cut)
        if changed is None:
            return None
        chunks = [chunk for chunk in self._base.chunks if chunk.table == number]
        generation = 1 + max([chunk.generation for chunk in chunks])
        delta_bytes = sum([c.raw_bytes for c in chunks if c.kind == "delta"]) + changed * row_bytes
        if generation > GENERATIONS_MOST or delta_bytes > DELTA_BYTES_MOST * rows * row_bytes:
            return None
        self._deltas[number] = generation
        self._chunks += [(self._base.objects[chunk.object], chunk) for chunk in chunks]
        return changed

    # -- pieces and objects

    def capture(self) -> int:
        """Take the next piece of the image: its bytes; 0 if there is none, once and for all."""
        piece = self.image.next_piece(CHUNK_BYTES)
        if piece is None:
            if not self.image.failed:
                self.captured = True
                self._fill_up()
            return 0
        nbytes = raw_bytes_of(piece)
        if _bytes_of(self._filling) + nbytes > self._object_bytes:
            self._fill_up()
        self._filling.append(piece)
        return nbytes

    def _fill_up(self) -> None:
        if self._filling:
            self._full.append(tuple(self._filling))
            self._filling = []

    @property
    def waiting_bytes(self) -> int:
        """What is held of pieces that `next_object` has not given yet."""
        return _bytes_of(self._filling) + sum([_bytes_of(pieces) for pieces in self._full])

    def next_object(self, n: int) -> tuple[PutBlob, int] | None:
        """What is to be written next, and the bytes it holds; `n` is a number of its own.

        The index comes when all objects are there.
        """
        place = self.place
        if self._full and not self.failed:
            pieces = self._full.popleft()
            self._under_way += 1
            name = chunks_name(place.cluster, place.id, place.shard, place.process, n)
            return PutBlob(name, ObjectBody(pieces, self._known)), _bytes_of(pieces)
        if self._index_begun or self._under_way or self.failed or not self.captured:
            return None
        self._index_begun = True
        raw = self._index().to_json()
        name = index_name(place.cluster, place.id, place.shard, place.process)
        return PutBlob(name, raw), len(raw)

    def on_put(self, name: str, put: BlobPut) -> None:
        """It is written, or nothing of it had to be."""
        info = ObjectInfo(name, put.nbytes, put.sha256)
        self._uploaded_bytes += put.nbytes
        if self._index_begun:
            self.index_info = info
            return
        self._under_way -= 1
        for packed in put.info:
            self._chunks.append(self._placed(packed, info))
            self._done_bytes += packed.raw_bytes

    def _placed(self, packed: Packed, info: ObjectInfo) -> tuple[ObjectInfo, ChunkPlace]:
        key = packed.key
        if packed.offset >= 0:
            generation = self._deltas[key.table] if key.kind == "delta" else 0
            return info, ChunkPlace(
                *key, generation, 0, packed.offset, packed.nbytes, packed.raw_bytes, packed.xxh128
            )
        chunk = self._of_base.get(key)
        if self._base is None or chunk is None:
            raise Bug(f"a chunk is left out that the base does not have: {key}")
        return self._base.objects[chunk.object], chunk

    def _index(self) -> ShardIndex:
        place = self.place
        objects = sorted({info.name: info for info, _ in self._chunks}.items())
        numbers = {name: i for i, (name, _) in enumerate(objects)}
        chunks = [replace(chunk, object=numbers[info.name]) for info, chunk in self._chunks]
        chunks.sort(key=lambda c: (c.table, c.generation, c.kind, c.at))
        return ShardIndex.of_head(
            (place.shard, place.shards, place.id.number),
            self.image.head(),
            tuple([info for _, info in objects]),
            tuple(chunks),
        )

    # -- ends

    def fail(self, why: str, *, store: bool) -> None:
        """Give up, for this reason; is the store to blame?"""
        self.failed, self._store_failed = why, store
        self.drop()

    def drop(self) -> None:
        """Give memory back: nobody wants this image any more."""
        self.image.close()
        self._filling = []
        self._full.clear()

    def progress(self) -> ImageProgress:
        """For the coordinator."""
        state: ImageState = "writing" if self.image.reached else "waiting"
        if self.failed:
            state = "failed"
        elif self.index_info is not None:
            state = "done"
        return ImageProgress(
            self.place.shard,
            state,
            self.image.waits_for() if state == "waiting" else "",
            self.failed,
            self._store_failed,
            self._done_bytes,
            self._total_bytes,
            sum([chunk.nbytes for _, chunk in self._chunks]),
            self._uploaded_bytes,
            self.index_info,
        )


def _row_bytes(spec: SparseSpec | DenseSpec) -> int:
    """Bytes of a row with its state and key, or of an element with its state."""
    item_bytes = np.dtype(spec.dtype).itemsize
    if isinstance(spec, DenseSpec):
        return item_bytes * (1 + spec.optimiser.slots)
    return item_bytes * (spec.dim + spec.optimiser.state_columns(spec.dim)) + KEY_BYTES


def _bytes_of(pieces: Iterable[ImagePiece]) -> int:
    return sum([raw_bytes_of(piece) for piece in pieces])

"""A server's part in a checkpoint: the images of its shards are written to the object store.

Theory of operation. While the view shows an open cut, the machine looks every few milliseconds at
the server's replicas for an image of it (a replica makes one if the cut's entry names this server),
and less often the longer there has been nothing to do.
When the image is reached, it is captured in small steps, so that requests are answered in between;
a few objects are under way at a time (while pushes come in only one, with rests: see `pace`), and
what is held in memory for them is bounded. Shards are captured one after the other: each image
keeps old rows aside until it is whole. When an object cannot be written the image has failed, and
the coordinator decides what follows.

Invariants: an image of a cut that is not open (as far as we know) is dropped; at most
`HELD_BYTES_MAX` of content are held for it; an index is put when all its objects are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from resilient_ps.checkpoints.bases import Bases
from resilient_ps.checkpoints.image_writing import ImagePlace, ImageWriting
from resilient_ps.checkpoints.pace import Pace
from resilient_ps.checkpoints.progress import told_text
from resilient_ps.checkpoints.refs import IMAGING_BLOBS, Refs
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.uploads import GivenUp, Uploads, Written
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.image import ShardImage
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.replication.replica import Replica
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed, BlobPut
from resilient_ps.storage.chunks import CHUNK_BYTES, OBJECT_BYTES
from resilient_ps.storage.names import CheckpointId

TIMER = "imaging"
FIRST_NS = 5_000_000  # how often it is looked whether an image is there, where there is none yet
WATCH_NS = 20_000_000  # and whether it is reached
WATCH_MOST_NS = 200_000_000  # and how seldom, where nothing has come of it for long
PATIENCE = 8  # it is looked again after one part in so many of the time that nothing has moved for
STEP_NS = 2_000_000  # between two steps: captures of at most CHUNK_BYTES, or looks at a table
HELD_BYTES_MAX = 64 << 20


class _OpenCut(NamedTuple):
    number: int
    id: CheckpointId
    attempt: int  # how many have failed before


class Imaging:
    """See the module. `replicas` are the server's, by shard; `process` is its incarnation id."""

    def __init__(
        self,
        cluster: str,
        process: int,
        view: ClusterView,
        replicas: Mapping[int, Replica],
        settings: CheckpointSettings,
    ) -> None:
        self._cluster = cluster
        self._process = process
        self._view = view
        self._replicas = replicas
        refs = Refs(IMAGING_BLOBS)
        self._bases = Bases(refs)
        self._uploads = Uploads(refs, settings.upload_concurrency, settings.upload_bytes_per_s)
        self._pace = Pace(settings.upload_share, settings.every_s)
        self._object_bytes = _object_bytes(settings.upload_concurrency)
        self._objects = 0  # begun by this process: a name is never used again
        self._open: _OpenCut | None = None  # the newest one
        self._writings: dict[int, ImageWriting] = {}  # by shard
        self._due_ns = 0  # when the timer is, if it is set
        self._moved_ns = 0  # when something has happened last

    # -- events

    def look(self, now_ns: int) -> list[Effect]:
        """The view has changed."""
        before, self._open = self._open, self._open_cut()
        if self._open != before:
            self._moved_ns = now_ns
        number = 0 if self._open is None else self._open.number
        for shard, writing in sorted(self._writings.items()):
            if writing.image.cut.number != number:
                self._drop(shard)
        if not self._writings:
            self._bases.forget()
        return self._tick(now_ns)

    def on_timer(self, now_ns: int) -> list[Effect]:
        """The timer is due: find images, capture, write."""
        self._due_ns = 0
        effects = self._find(now_ns)
        if not effects and not self._writings and not self._uploads.pausing:
            return self._tick(now_ns)  # as mostly: it waits for the shards
        captured = self._capture()
        effects += self._uploads.again(now_ns)
        effects += self._write(now_ns)
        if captured or effects:
            self._moved_ns = now_ns
        return [*effects, *self._tick(now_ns)]

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """What became of a call."""
        effects = self._bases.on_blob(event)
        if effects is not None:
            return effects
        match self._uploads.on_blob(event, now_ns):
            case Written(shard, name, put, lasted_ns):
                self._pace.rest(lasted_ns, now_ns)
                effects = self._on_written(shard, name, put)
            case GivenUp(shard, why):
                effects = self._give_up(shard, why, store=True)
            case None:
                effects = []
        self._moved_ns = now_ns
        return [*effects, *self._write(now_ns), *self._tick(now_ns)]

    def _on_written(self, shard: int, name: str, put: BlobPut) -> list[Effect]:
        writing = self._writings[shard]
        writing.on_put(name, put)
        if writing.index_info is None:
            return []
        writing.drop()
        progress = writing.progress()
        fields = {
            "shard": shard,
            "cut": writing.image.cut.number,
            "stored_bytes": progress.stored_bytes,
            "uploaded_bytes": progress.uploaded_bytes,
        }
        return [Log("info", "the image of a shard is written", fields)]

    def told(self, cut: int) -> str:
        """The answer to the coordinator that asks for this cut."""
        of_cut = [
            writing.progress()
            for _, writing in sorted(self._writings.items())
            if writing.image.cut.number == cut
        ]
        return told_text(cut, of_cut)

    def _tick(self, now_ns: int) -> list[Effect]:
        if self._open is None:
            return []
        pause_ns = (now_ns - self._moved_ns) // PATIENCE
        least_ns = WATCH_NS if self._writings else FIRST_NS
        at_ns = now_ns + min(max(pause_ns, least_ns), WATCH_MOST_NS)
        shard = self._capturing() if self._writings else None
        if shard is not None and self._has_room():
            hurries = not self._writings[shard].begun and not self._is_gentle(now_ns)
            at_ns = now_ns + (0 if hurries else STEP_NS)
        if 0 < self._due_ns <= at_ns:
            return []
        self._due_ns = at_ns
        return [SetTimer(TIMER, at_ns)]

    # -- which images there are

    def _open_cut(self) -> _OpenCut | None:
        for intent in reversed(self._view.open_intents):
            if intent.kind == "cut":
                try:
                    plan = CutPlan.of(intent)
                    if plan is not None:
                        return _OpenCut(intent.number, CheckpointId.parse(plan.id), plan.attempt)
                except BadInput:  # the coordinator gives it up
                    continue
        return None

    def _find(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for shard in sorted(self._replicas):
            held = self._replicas[shard].shard
            image = None if held is None else held.image
            writing = self._writings.get(shard)
            if image is None and writing is None:
                continue
            if writing is not None and writing.image is not image and not writing.captured:
                self._drop(shard)  # an abort, a newer cut, or the replica is gone
                writing = None
            if image is not None and (writing is None or writing.image is not image):
                effects += self._take_up(shard, image, now_ns)
            elif writing is not None and not writing.captured and writing.image.failed:
                effects += self._give_up(shard, writing.image.failed, store=False)
        return effects

    def _take_up(self, shard: int, image: ShardImage, now_ns: int) -> list[Effect]:
        config = self._view.config
        if self._open is None or config is None or image.cut.number != self._open.number:
            return []
        self._drop(shard)
        if not self._writings:
            self._pace.begin(self._entries(), now_ns, hurried=self._open.attempt > 0)
        place = ImagePlace(self._cluster, self._open.id, shard, config.shards, self._process)
        self._writings[shard] = ImageWriting(image, place, self._object_bytes)
        effects = self._bases.use(image.cut.base, self._view.checkpoints)
        return [*effects, *self._bases.want(shard)]

    def _drop(self, shard: int) -> None:
        writing = self._writings.pop(shard, None)
        if writing is not None:
            writing.drop()
            self._uploads.forget(shard)

    def _give_up(self, shard: int, why: str, *, store: bool) -> list[Effect]:
        writing = self._writings[shard]
        if writing.failed:
            return []
        writing.fail(why, store=store)
        self._uploads.forget(shard)
        fields = {"shard": shard, "cut": writing.image.cut.number, "why": why}
        return [Log("warning", "an image cannot be made", fields)]

    # -- capture, in steps

    def _capturing(self) -> int | None:
        """The shard whose image is captured now, or next."""
        for shard, writing in sorted(self._writings.items()):
            if writing.is_capturing and self._bases.is_known(shard):
                return shard
        return None

    def _capture(self) -> bool:
        """One step: about a millisecond of looking, or one piece. Was there one to be made?"""
        shard = self._capturing()
        if shard is None:
            return False
        writing = self._writings[shard]
        if not writing.begun:
            writing.begin(self._bases.index(shard))
        elif self._has_room():
            writing.capture()
        else:
            return False
        return True

    def _has_room(self) -> bool:
        waiting = sum([writing.waiting_bytes for writing in self._writings.values()])
        return self._uploads.held_bytes + waiting + CHUNK_BYTES <= HELD_BYTES_MAX

    # -- objects and indexes

    def _write(self, now_ns: int) -> list[Effect]:
        """Begin to write what is ready, as far as there is room."""
        gentle = self._is_gentle(now_ns)
        if gentle and not self._pace.has_rested(now_ns):
            return []
        effects: list[Effect] = []
        for shard, writing in sorted(self._writings.items()):
            while self._uploads.has_slot(now_ns, alone=gentle):
                ready = writing.next_object(self._objects + 1)
                if ready is None:
                    break
                self._objects += 1
                effects.append(self._uploads.start(shard, *ready, now_ns))
        return effects

    def _is_gentle(self, now_ns: int) -> bool:
        self._pace.count(self._entries(), now_ns)
        if any(server.stopping for server in self._view.servers):
            return False  # it waits for the checkpoint, but not for long
        kept = [writing.image.overlay_share for writing in self._writings.values()]
        return self._pace.is_gentle(max(kept, default=0.0), now_ns)

    def _entries(self) -> int:
        """How many have been applied in all shards."""
        shards = [replica.shard for replica in self._replicas.values()]
        return sum([shard.lsn for shard in shards if shard is not None])


def _object_bytes(concurrency: int) -> int:
    """Whole chunks, so that as many objects as may be under way have room, and one more."""
    chunks = min(OBJECT_BYTES, HELD_BYTES_MAX // (concurrency + 1)) // CHUNK_BYTES
    return max(1, chunks) * CHUNK_BYTES

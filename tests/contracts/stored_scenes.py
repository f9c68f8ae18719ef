"""Scenes of checkpoints whose objects lie in a real store: for tests that strike at a step.

The worlds are those of the simulator, with everything in virtual time; only what the model of the
object store would do is done by a directory or by an S3 server. A crash before a call means that
the store never hears of it, a crash after it that nobody hears its answer.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "sim"), str(TESTS / "unit" / "checkpoints")]

import conducting  # noqa: E402
from blob_stores import listed  # noqa: E402
from checkpoint_scene import LIMIT_S, SECOND_NS, SEED, Scene, Step, Victim  # noqa: E402

from resilient_ps.chaos.sim import bucket  # noqa: E402
from resilient_ps.checkpoints.housekeeping import unswept  # noqa: E402
from resilient_ps.checkpoints.settings import CheckpointSettings  # noqa: E402
from resilient_ps.coordinator.kv import Answer, Delete, KvCall, Put, Request, Txn  # noqa: E402
from resilient_ps.errors import Unavailable  # noqa: E402
from resilient_ps.guards import ALL_GUARDS, Guards  # noqa: E402
from resilient_ps.storage.blobs import (  # noqa: E402
    BlobCall,
    BlobGot,
    BlobMissing,
    BlobPut,
    BlobRequest,
    BlobResult,
    Blobs,
    DeleteBlobs,
    GetBlob,
    PutBlob,
)
from resilient_ps.storage.memory import MemoryBlobs  # noqa: E402
from resilient_ps.storage.requests import encode, sha256_of, size_of  # noqa: E402

__all__ = [
    "FIRST_CONDUCTED",
    "LIMIT_S",
    "SECOND_NS",
    "SEED",
    "ConductedWorld",
    "HastyBlobs",
    "Step",
    "StoredBlobs",
    "StoredScene",
    "Victim",
    "kind",
]

CONDUCTED = CheckpointSettings(keep_last=1)
FIRST_CONDUCTED = 4  # the number of the checkpoint that stands when coordinators begin to die


class StoredBlobs(MemoryBlobs):
    """A real store with the face of the model. Nobody else may write below its prefix."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__()
        self._blobs = blobs
        self._names: list[str] | None = None  # as listed since the last write

    def apply(self, request: BlobRequest, now_s: int) -> BlobResult:
        if isinstance(request, PutBlob | DeleteBlobs):
            self._names = None
        return self._blobs.do(request)

    def names(self) -> list[str]:
        if self._names is None:
            self._names = sorted(item.name for item in listed(self._blobs, ""))
        return self._names

    def peek(self, name: str) -> bytes | None:
        try:
            got = self._blobs.do(GetBlob(name))
        except BlobMissing:
            return None
        assert isinstance(got, BlobGot)
        return bytes(got.data)

    def crash(self) -> None:
        """A process dies: puts are whole, or not at all, so there is nothing to forget."""

    def damage(self, name: str, data: bytes | None) -> None:
        self.apply(DeleteBlobs((name,)) if data is None else PutBlob(name, data), 0)


class HastyBlobs(StoredBlobs):
    """Answers puts of chunks at once, and sends them only when the manifest has been written.

    As a product would that does not wait for its objects: as long as nobody dies, nobody notices.
    """

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs)
        self._unsent: list[PutBlob] = []
        self._manifest = False

    def apply(self, request: BlobRequest, now_s: int) -> BlobResult:
        self._send()
        if not isinstance(request, PutBlob) or not request.name.endswith(".chunks"):
            self._manifest = isinstance(request, PutBlob) and "manifest" in request.name
            return super().apply(request, now_s)
        encoded = encode(request.body)
        raw = b"".join(encoded.pieces)
        self._unsent.append(PutBlob(request.name, raw))
        return BlobPut("unsent", size_of((raw,)), sha256_of((raw,)), encoded.info)

    def peek(self, name: str) -> bytes | None:
        self._send()
        return super().peek(name)

    def crash(self) -> None:
        """What was not sent is gone."""
        self._unsent.clear()

    def _send(self) -> None:
        if self._manifest:
            for put in self._unsent:
                super().apply(put, 0)
            self._unsent.clear()


class StoredScene(Scene):
    """A cluster at work, with one checkpoint, all in this store. Steps are told of etcd, too,
    before it is asked to write; who asks is the coordinator."""

    def __init__(self, blobs: MemoryBlobs, guards: Guards = ALL_GUARDS) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bucket, "MemoryBlobs", lambda *, list_lag_s: blobs)
            super().__init__(guards)
        assert self.world.bucket.blobs is blobs
        self._apply = self.world.kv.apply
        setattr(self.world.kv, "apply", self._before_etcd)  # noqa: B010

    def _before_etcd(self, request: Request, now_ns: int) -> Answer:
        puts = request.success if isinstance(request, Txn) else ()
        told = [self._noun(op.key) for op in puts if isinstance(op, Put | Delete)]
        name = self.cluster.coordinator() if any(told) else ""
        if name:
            process = self.cluster.servers[name].process
            self._step("before", "etcd: " + ", ".join(sorted({*told} - {""})), process)
            if process.killed:
                raise Unavailable("the process died before it had sent everything")
        return self._apply(request, now_ns)

    def _noun(self, key: bytes) -> str:
        keys = self.cluster.keys
        nouns = {keys.checkpoints: "checkpoint", keys.intents: "intent"}
        return next((noun for prefix, noun in nouns.items() if key.startswith(prefix)), "")


def kind(step: Step) -> tuple[str, str]:
    """When, and what, whichever shard and however many objects it is about."""
    return step.when, re.sub(r"\d+[- ]?", "", step.what)


class ConductedWorld(conducting.World):
    """A world for conductors, in this store; `told` is what each of their steps was.

    After each step it reads all checkpoints that etcd calls good: see `conducting.audit`.
    """

    def __init__(self, blobs: MemoryBlobs) -> None:
        super().__init__(settings=CONDUCTED)
        self.blobs = blobs
        self.told: list[str] = []
        self.start()
        self.make()
        self.make()  # the older one goes, with its objects
        assert self.run_until(lambda: len(self.checkpoints()) == 1, 20)
        assert [record.number for record in self.checkpoints()] == [FIRST_CONDUCTED]
        self.told.clear()

    def step(self, coordinator: conducting.Coordinator, effect: Any) -> None:
        if coordinator.alive:
            self.told.append(_told(effect))
        super().step(coordinator, effect)

    def swept(self) -> bool:
        """One checkpoint is left, with its objects, and no others."""
        records = self.checkpoints()
        if len(records) != 1 or any(unswept(intent) for intent in self.intents()):
            return False
        return self.blobs.names() == self.objects_of(records[0])


def _told(effect: Any) -> str:
    match effect:
        case KvCall(request=Txn()):
            return "etcd"
        case BlobCall(request=request):
            return type(request).__name__
    return type(effect).__name__

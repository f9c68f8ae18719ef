"""The checkpoints of a cluster as they lie in a store: found, chosen, and read, without etcd.

Names come from a listing here, because there is nobody to ask; what a listing shows too early or
too late is sorted out by reading the manifests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Self

from resilient_ps.checkpoints.choosing import Chosen
from resilient_ps.errors import NotFound
from resilient_ps.storage.blobs import BlobGot, BlobInfo, BlobList, Blobs, GetBlob, ListBlobs
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import (
    CheckpointId,
    checkpoint_prefix,
    checkpoints_prefix,
    locate,
    manifest_name,
    markers_prefix,
)
from resilient_ps.storage.reading import read_index, read_manifest
from resilient_ps.storage.shard_index import ShardIndex

READERS = 8
CHECKPOINTS_MOST = 10_000
CLUSTERS_MOST = 1_000
_BEHIND = "0"  # the character behind "/": skips all that is below a name


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint in a store: its manifest, or why it cannot be used."""

    id: CheckpointId
    manifest: Manifest | None
    state: Literal["complete", "incomplete", "damaged", "unknown format"] = "complete"
    why: str = ""


class StoredCheckpoints:
    """The checkpoints of one cluster in one store. Close it, or use it in a `with`."""

    def __init__(self, blobs: Blobs, cluster: str) -> None:
        self.blobs = blobs
        self.cluster = cluster
        self._prefix = checkpoints_prefix(cluster)

    # -- which there are

    def ids(self) -> list[CheckpointId]:
        """Of all that have any objects, the newest first: complete or not."""
        return sorted(self._first_of_each(), reverse=True)

    def listed(self) -> list[Listed]:
        """All, the newest first; manifests are read, and nothing else is verified.

        Of checkpoints that were deleted, objects may be left which later ones share: not listed.
        """
        found = self.look(self.ids())
        shared = {name for each in found if each.manifest for name in _prefixes(each.manifest)}
        return [
            each
            for each in found
            if each.state != "incomplete" or checkpoint_prefix(self.cluster, each.id) not in shared
        ]

    def objects(self, prefix: str) -> Iterator[BlobInfo]:
        """All objects whose names begin so, as the store lists them."""
        after, more = "", True
        while more:
            found = self.blobs.do(ListBlobs(prefix, after))
            assert isinstance(found, BlobList)
            yield from found.items
            more = found.more and bool(found.items)
            after = found.items[-1].name if found.items else ""

    def look(self, ids: Sequence[CheckpointId]) -> list[Listed]:
        """Read the manifests of these."""
        with ThreadPoolExecutor(READERS) as readers:
            return list(readers.map(self._listed, ids))

    def incarnation(self) -> int:
        """The highest that a marker names; 0 where there is none."""
        highest = 0
        for each in self.objects(markers_prefix(self.cluster)):
            located = locate(self.cluster, each.name)
            if located is not None and located.kind == "marker":
                highest = max(highest, located.incarnation)
        return highest

    def manifest(self, checkpoint: CheckpointId) -> Manifest:
        """Raises `NotFound`, naming what there is, and `Damaged` or `ForeignFormat`."""
        listed = self._listed(checkpoint)
        if listed.manifest is not None:
            return listed.manifest
        others = ", ".join(str(each) for each in self.ids()[:8])
        raise NotFound(f"{listed.why}; checkpoints: {others or self.nothing()}")

    def identified(self, manifest: Manifest) -> Chosen:
        """With what identifies its manifest: as a restore names a checkpoint."""
        name = manifest_name(self.cluster, manifest.id)
        got = self.blobs.do(GetBlob(name))
        assert isinstance(got, BlobGot)
        return Chosen(manifest, name, len(got.data), hashlib.sha256(got.data).hexdigest())

    def is_known(self) -> bool:
        """Is there anything of the cluster in the store?"""
        return self.cluster in clusters(self.blobs)

    def nothing(self) -> str:
        """There is no checkpoint of the cluster: which clusters have some?"""
        others = ", ".join(clusters(self.blobs)) or "-"
        return f"none of cluster {self.cluster!r}; clusters in this store: {others}"

    def _listed(self, checkpoint: CheckpointId) -> Listed:
        name = manifest_name(self.cluster, checkpoint)
        try:
            got = self.blobs.do(read_manifest(name))
            assert isinstance(got, BlobGot)
            manifest: Manifest = got.decoded
        except NotFound:
            why = f"checkpoint {checkpoint} has no manifest: it was never completed"
            return Listed(checkpoint, None, "incomplete", why)
        except Damaged as error:
            return Listed(checkpoint, None, "damaged", str(error))
        except ForeignFormat as error:
            return Listed(checkpoint, None, "unknown format", str(error))
        if (manifest.id, manifest.cluster) != (checkpoint, self.cluster):
            found = f"{manifest.id} of cluster {manifest.cluster!r}"
            why = f"object {name}: it is the manifest of {found}"
            return Listed(checkpoint, None, "damaged", why)
        return Listed(checkpoint, manifest)

    def _first_of_each(self) -> Iterator[CheckpointId]:
        after = ""
        for _ in range(CHECKPOINTS_MOST):
            found = self.blobs.do(ListBlobs(self._prefix, after, 1))
            assert isinstance(found, BlobList)
            if not found.items:
                return
            name = found.items[0].name
            below = name.removeprefix(self._prefix).partition("/")[0]
            located = locate(self.cluster, f"{self._prefix}{below}/manifest.json")
            if located is not None and located.id is not None:
                yield located.id
            after = f"{self._prefix}{below}{_BEHIND}"

    # -- what is in them

    def index(self, manifest: Manifest, shard: int) -> ShardIndex:
        """The index of a shard's image, verified. Raises `Damaged`."""
        index: ShardIndex = ask(self.blobs, read_index(manifest, shard))
        return index

    def indexes(self, manifest: Manifest) -> list[ShardIndex]:
        """Those of all shards, read in parallel."""
        with ThreadPoolExecutor(READERS) as readers:
            return list(readers.map(lambda n: self.index(manifest, n), range(manifest.shards)))

    def close(self) -> None:
        """Give the store's connections back."""
        self.blobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prefixes(manifest: Manifest) -> set[str]:
    """What the names of the checkpoints begin with whose objects this one uses."""
    return {each.name.rsplit("/", 2)[0] + "/" for each in manifest.objects}


def clusters(blobs: Blobs) -> list[str]:
    """The names of all clusters that have anything in a store."""
    found: list[str] = []
    after = ""
    for _ in range(CLUSTERS_MOST):
        listed = blobs.do(ListBlobs("", after, 1))
        assert isinstance(listed, BlobList)
        if not listed.items:
            break
        cluster, below, _ = listed.items[0].name.partition("/")
        if below:
            found.append(cluster)
        after = cluster + _BEHIND
    return sorted(found)


def ask(blobs: Blobs, request: GetBlob) -> Any:
    """What a reading decodes to. Raises `Damaged` where the object is not there, or is another."""
    try:
        got = blobs.do(request)
    except NotFound as error:
        raise Damaged(f"object {request.name} is missing: use another checkpoint") from error
    assert isinstance(got, BlobGot)
    return got.decoded

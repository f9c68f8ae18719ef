"""Reads a whole checkpoint, and says of each object whether it is what was written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from resilient_ps.client.stored import READERS, StoredCheckpoints, ask
from resilient_ps.storage.blobs import GetBlob
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.reading import Verified, plan_verify
from resilient_ps.storage.shard_index import ShardIndex

_T = TypeVar("_T")


@dataclass(slots=True)
class Verdict:
    """`damages`: one line for each object that is not what was written."""

    id: CheckpointId
    objects: int = 0
    nbytes: int = 0
    chunks: int = 0
    damages: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.damages


def verify(
    stored: StoredCheckpoints,
    manifest: Manifest,
    on_bytes: Callable[[int], object] = lambda nbytes: None,
) -> Verdict:
    """Read every object of a checkpoint: its size, its SHA-256, and every chunk in it.

    Goes on behind what is damaged. Raises what the store refuses.
    """
    verdict = Verdict(manifest.id)
    indexes = []
    for shard, found in enumerate(_all_of(lambda n: stored.index(manifest, n), manifest.shards)):
        if isinstance(found, ShardIndex):
            indexes.append(found)
            verdict.objects += 1
            verdict.nbytes += manifest.indexes[shard].nbytes
        else:
            verdict.damages.append(found)
        on_bytes(manifest.indexes[shard].nbytes)
    requests = plan_verify(manifest, indexes)
    sizes = {each.name: each.nbytes for each in manifest.objects}

    def look(number: int) -> Verified:
        request: GetBlob = requests[number]
        try:
            verified: Verified = ask(stored.blobs, request)
        finally:
            on_bytes(sizes[request.name])
        return verified

    for outcome in _all_of(look, len(requests)):
        if isinstance(outcome, Verified):
            verdict.objects += 1
            verdict.nbytes += outcome.nbytes
            verdict.chunks += outcome.chunks
        else:
            verdict.damages.append(outcome)
    return verdict


def bytes_of(manifest: Manifest) -> int:
    """What `verify` reads."""
    return sum([each.nbytes for each in (*manifest.indexes, *manifest.objects)])


def _all_of(look: Callable[[int], _T], count: int) -> list[_T | str]:
    """What `look` gives for each number, or why it is damaged."""

    def one(number: int) -> _T | str:
        try:
            return look(number)
        except (Damaged, ForeignFormat) as error:
            return str(error)

    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(one, range(count)))

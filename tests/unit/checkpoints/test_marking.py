"""Listings of the store, where a cluster may have very many objects."""

from __future__ import annotations

from resilient_ps.checkpoints.marking import Listing, manifests_of
from resilient_ps.checkpoints.refs import ROLLBACK_BLOBS, Refs
from resilient_ps.machine import Effect
from resilient_ps.storage.blobs import BlobAnswered, BlobCall, ListBlobs, PutBlob
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, chunks_name, manifest_name


def listed(listing: Listing, blobs: MemoryBlobs) -> list[str]:
    """What it finds, page by page."""
    effects: list[Effect] = listing.advance(0)
    while effects:
        (call,) = effects
        assert isinstance(call, BlobCall)
        assert isinstance(call.request, ListBlobs)
        page = ListBlobs(call.request.prefix, call.request.after, 7)
        effects = listing.on_blob(BlobAnswered(call.ref, blobs.apply(page, 0)), 0)
    assert listing.over
    return listing.names


def test_the_newest_manifest_is_found_behind_any_number_of_objects() -> None:
    blobs, ids = MemoryBlobs(), [CheckpointId(1, number, "0" * 8) for number in (1, 2, 9)]
    for id in ids:
        for n in range(1, 31):
            blobs.apply(PutBlob(chunks_name("c", id, 0, 1, n), b"x"), 0)
        blobs.apply(PutBlob(manifest_name("c", id), b"x"), 0)
    refs = Refs(ROLLBACK_BLOBS)
    listing = manifests_of("c", refs, "t")
    listing._names_max = 10
    assert listed(listing, blobs) == [manifest_name("c", id) for id in ids]

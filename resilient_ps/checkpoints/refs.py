"""Which part of a node an answer of the object store, or of etcd, belongs to: by its reference.

Blob references and etcd references are numbered apart. A part draws its own from its range, by
counting; the node hands every answer to the part in whose range it lies.
"""

from __future__ import annotations

# answers of the object store
CONDUCTOR_BLOBS = range(1_000_000, 2_000_000)  # indexes, manifests, sweeping
ROLLBACK_BLOBS = range(2_000_000, 3_000_000)  # markers, choosing a checkpoint, bootstrap
IMAGING_BLOBS = range(3_000_000, 4_000_000)  # chunks and indexes of this server's images
LOADING_BLOBS = range(4_000_000, 5_000_000)  # what this server restores from

# answers of etcd
CUT_REF = 40  # the conductor's own: one of each kind is under way at a time
PUBLISH_REF = 41
RETENTION_REF = 42
TIDY_REF = 43
CONDUCTOR_REFS = frozenset({CUT_REF, PUBLISH_REF, RETENTION_REF, TIDY_REF})
JOBS_REF = 44  # what the conductor reads itself
FAREWELL_REF = 45  # a stopping server's wish for a checkpoint
ROLLBACK_REFS = range(50, 60)
LOADING_REFS = range(60, 70)


class Refs:
    """Counts through a range, and begins it again: no call is under way for so long."""

    def __init__(self, within: range) -> None:
        self._within = within
        self._next = within.start

    def draw(self) -> int:
        """A reference that no call under way has."""
        ref = self._next
        self._next = ref + 1 if ref + 1 < self._within.stop else self._within.start
        return ref

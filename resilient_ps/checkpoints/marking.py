"""Incarnation markers: objects that are created once, each for one incarnation of a cluster.

Whoever begins an incarnation creates its marker first. As markers are never deleted, incarnations
only grow, even where etcd has been lost. Of several who want the same number one gets it: a marker
says by its nonce whose it is, also when the answer to the creation was lost. Which of them count is
`lineage`.
"""

from __future__ import annotations

import json
from typing import Literal

from resilient_ps.checkpoints.fetching import PAUSE_FIRST_NS, PAUSE_MOST_NS, may_mend
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, SetTimer
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobExists,
    BlobFailed,
    BlobGot,
    BlobList,
    BlobMissing,
    BlobRequest,
    Bytes,
    GetBlob,
    ListBlobs,
    PutBlob,
)
from resilient_ps.storage.names import (
    MANIFEST,
    checkpoints_prefix,
    locate,
    marker_name,
    markers_prefix,
)

MARKER_BYTES_MAX = 4_096


class Calling:
    """One call to the store at a time, made again while that may help."""

    def __init__(self, refs: Refs, timer: str) -> None:
        self.trouble = ""
        self.failed: ResilientPsError | None = None
        self._refs = refs
        self._timer = timer
        self._ref = 0
        self._request: BlobRequest | None = None
        self._at_ns = 0
        self._pause_ns = PAUSE_FIRST_NS

    def owns(self, ref: int) -> bool:
        """Is this the reference of our call?"""
        return ref == self._ref and ref > 0

    def _ask(self, request: BlobRequest) -> list[Effect]:
        self._request, self._ref = request, self._refs.draw()
        return [BlobCall(self._ref, request)]

    def advance(self, now_ns: int) -> list[Effect]:
        """Try again, when the pause is over."""
        if self._ref or self._request is None:
            return []
        if now_ns < self._at_ns:
            return [SetTimer(self._timer, self._at_ns)]
        return self._ask(self._request)

    def _pause(self, error: ResilientPsError, now_ns: int) -> list[Effect]:
        """After a failure that another attempt may not meet."""
        if not may_mend(error):
            self.failed, self._request = error, None
            return []
        self.trouble, self._at_ns = str(error), now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, PAUSE_MOST_NS)
        return [SetTimer(self._timer, self._at_ns)]

    def _answered(self) -> None:
        self._ref, self._request, self.trouble = 0, None, ""
        self._pause_ns = PAUSE_FIRST_NS


class Listing(Calling):
    """All names below a prefix that end so, in order: `names`, when it is `over`."""

    def __init__(
        self, prefix: str, refs: Refs, timer: str, *, ending: str = "", names_max: int = 100_000
    ) -> None:
        super().__init__(refs, timer)
        self.over = False
        self.names: list[str] = []
        self._prefix = prefix
        self._ending = ending
        self._names_max = names_max
        self._request = ListBlobs(prefix)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        self._ref = 0
        if isinstance(event, BlobFailed):
            return self._pause(event.error, now_ns)
        assert isinstance(event.result, BlobList)
        self._answered()
        names = [item.name for item in event.result.items]
        self.names += [name for name in names if name.endswith(self._ending)]
        if not event.result.more or not names or len(self.names) >= self._names_max:
            self.over = True
            return []
        return self._ask(ListBlobs(self._prefix, after=names[-1]))


class Marking(Calling):
    """Creates the marker of one incarnation. `taken`: by us, by another one, or not known yet."""

    def __init__(
        self, cluster: str, incarnation: int, nonce: str, why: str, refs: Refs, timer: str
    ) -> None:
        super().__init__(refs, timer)
        self.incarnation = incarnation
        self.taken: Literal["", "ours", "theirs"] = ""
        self._nonce = nonce
        self._name = marker_name(cluster, incarnation)
        body = {"cluster": cluster, "incarnation": incarnation, "nonce": nonce, "why": why[:1000]}
        self._put = PutBlob(self._name, (json.dumps(body) + "\n").encode(), "create")
        self._request = self._put

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        self._ref = 0
        if isinstance(event, BlobFailed):
            if isinstance(event.error, BlobExists):  # our own, perhaps: see whose it is
                return self._ask(GetBlob(self._name, most=MARKER_BYTES_MAX))
            if isinstance(event.error, BlobMissing):  # reads lag behind
                self._request = self._put
                self._at_ns = now_ns + self._pause_ns
                return [SetTimer(self._timer, self._at_ns)]
            return self._pause(event.error, now_ns)
        self._answered()
        is_ours = not isinstance(event.result, BlobGot) or self._nonce_of(event.result.data)
        self.taken = "ours" if is_ours else "theirs"
        return []

    def _nonce_of(self, raw: Bytes) -> bool:
        try:
            return bool(json.loads(bytes(raw))["nonce"] == self._nonce)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False


def highest(cluster: str, names: list[str]) -> int:
    """The highest incarnation that has a marker among these objects; 0 if there is none."""
    located = (locate(cluster, name) for name in names)
    return max((at.incarnation for at in located if at is not None), default=0)


def manifests_of(cluster: str, refs: Refs, timer: str) -> Listing:
    """Lists the manifests of a cluster, which may have very many other objects."""
    return Listing(checkpoints_prefix(cluster), refs, timer, ending=f"/{MANIFEST}")


def markers_of(cluster: str, refs: Refs, timer: str) -> Listing:
    """Lists the markers of a cluster."""
    return Listing(markers_prefix(cluster), refs, timer)

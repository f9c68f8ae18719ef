"""Which incarnations of a cluster have begun, with what, and which checkpoints that leaves behind.

A marker says that an incarnation was *taken*, not that it began: of servers that race to create a
cluster all but one leave a marker behind that nobody lives in, and so does a rollback that is
called off between its marker and its transaction. So there is a second object beside the marker,
`<incarnation>.began`, which says what the incarnation began with. The coordinator creates it
when the configuration names the incarnation, and before the restore record is `registered`: before
any worker goes on, and before any checkpoint is made in it. Hence the rule:

* an incarnation after the first counts if, and only if, it has its `.began`;
* a marker without one is burnt, or its incarnation has done nothing yet. Nobody adopts it, and
  the next incarnation is above it all the same.

(A cluster's first incarnation that begins empty has no restore record, and needs no `.began`.)

The *line* of a cluster goes back from its last incarnation: all checkpoints of that, then, of
the incarnation that it began from, those up to the one that it began with, and so on. What lies
beside the line is a future that was given up, or was imported by somebody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from resilient_ps.checkpoints.choosing import Candidate
from resilient_ps.checkpoints.marking import MARKER_BYTES_MAX, Calling, Listing, markers_of
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.coordinator.records import RestoreRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobExists,
    BlobFailed,
    BlobGot,
    BlobMissing,
    GetBlob,
    PutBlob,
)
from resilient_ps.storage.names import (
    CheckpointId,
    NameKind,
    began_name,
    checkpoints_prefix,
    locate,
)

LIST_AGAIN_NS = 60_000_000_000  # after the store has refused for good


class Began(Calling):
    """Creates the object that says what an incarnation began with. Whoever is first is right."""

    def __init__(self, cluster: str, restore: RestoreRecord, refs: Refs, timer: str) -> None:
        super().__init__(refs, timer)
        self.incarnation = restore.incarnation
        self.done = False
        self._request = PutBlob(
            began_name(cluster, restore.incarnation),
            (json.dumps(_document(cluster, restore)) + "\n").encode(),
            "create",
        )

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        self._ref = 0
        if isinstance(event, BlobFailed) and not isinstance(event.error, BlobExists):
            return self._pause(event.error, now_ns)
        self._answered()
        self.done = True
        return []


def _document(cluster: str, restore: RestoreRecord) -> dict[str, Any]:
    """`checkpoint`: "" for the initial state; `own`: it is one of this cluster's."""
    return {
        "cluster": cluster,
        "incarnation": restore.incarnation,
        "checkpoint": restore.checkpoint,
        "own": restore.manifest.startswith(checkpoints_prefix(cluster)),
        "why": restore.why[:1000],
    }


class Lineage(Calling):
    """Parts checkpoints into those on the `line` and `others`, when it is `over`.

    `names`: what lies below the prefix of the markers. It reads what incarnations began with only
    as far back as there are checkpoints.
    """

    def __init__(
        self,
        cluster: str,
        names: Sequence[str],
        found: Iterable[Candidate],
        refs: Refs,
        timer: str,
    ) -> None:
        super().__init__(refs, timer)
        self.marked = incarnations(cluster, names, "marker")
        self.line: list[Candidate] = []
        self.beginnings: set[CheckpointId] = set()  # of the incarnations on it
        self.over = False
        self._cluster = cluster
        self._begun = incarnations(cluster, names, "began")
        self._found = list(found)
        lived = self._begun | {each.id.incarnation for each in self._found} & self.marked
        self._at = max(lived, default=0)
        self._follow(None)

    @property
    def others(self) -> list[Candidate]:
        """Those that are not on the line."""
        line = set(self.line)
        return [each for each in self._found if each not in line]

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        self._ref = 0
        if isinstance(event, BlobFailed):
            if isinstance(event.error, BlobMissing):  # it was listed: reads lag behind
                self._at_ns = now_ns + self._pause_ns
                return [SetTimer(self._timer, self._at_ns)]
            return self._pause(event.error, now_ns)
        assert isinstance(event.result, BlobGot)
        self._answered()
        try:
            began = _began(bytes(event.result.data))
        except BadInput:
            self._take_all_before()
            return []
        if began is not None:
            self.beginnings.add(began)
        if began is None:
            self.over = True
        elif began.incarnation in self.marked and began.incarnation < self._at:
            self._at = began.incarnation
            self._follow(began)
        else:  # somebody imported it: it has no line
            self.line += [each for each in self._found if each.id == began]
            self.over = True
        return self.advance(now_ns)

    def _follow(self, last: CheckpointId | None) -> None:
        """Take those of one incarnation, up to the last one that counts; see where it came from."""
        self.line += [
            each
            for each in self._found
            if each.id.incarnation == self._at and (last is None or each.id.number <= last.number)
        ]
        if not self._older():
            self.over = True
        elif self._at in self._begun:
            self._request = GetBlob(began_name(self._cluster, self._at), most=MARKER_BYTES_MAX)
        else:
            self._take_all_before()

    def _older(self) -> list[Candidate]:
        return [
            each
            for each in self._found
            if each.id.incarnation < self._at and each.id.incarnation in self.marked
        ]

    def _take_all_before(self) -> None:
        """It is not known what this incarnation began with."""
        self.line += self._older()
        self.over = True


def _began(raw: bytes) -> CheckpointId | None:
    """The cluster's own checkpoint that it was, None if it was none. Raises `BadInput`."""
    try:
        match json.loads(raw):
            case {"checkpoint": str(id), "own": bool(own)}:
                return CheckpointId.parse(id) if id and own else None
    except (ValueError, RecursionError):
        pass
    raise BadInput("what an incarnation began with cannot be read")


def incarnations(cluster: str, names: Sequence[str], kind: NameKind) -> set[int]:
    """Those that have a marker, or that have begun, among these objects."""
    located = (locate(cluster, name) for name in names)
    return {at.incarnation for at in located if at is not None and at.kind == kind}


class LaterLife:
    """Has the cluster lived on, in the store, beyond what etcd says? Looked at once per election.

    So it is where etcd was restored from an old snapshot. Cannot be told while the store is away:
    the answer comes when it is back.
    """

    def __init__(self, view: ClusterView, refs: Refs, timer: str) -> None:
        self._view = view
        self._refs = refs
        self._timer = timer
        self._listing: Listing | None = None
        self._last = 0  # the highest incarnation that has begun
        self._not_before_ns = 0

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._listing, self._last, self._not_before_ns = None, 0, 0

    @property
    def incarnation(self) -> int:
        """That of the later life; 0 if there is none, as far as is known."""
        config = self._view.config
        return self._last if config is not None and self._last > config.incarnation else 0

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call of ours?"""
        return self._listing is not None and self._listing.owns(ref)

    def advance(self, now_ns: int) -> list[Effect]:
        """Ask, once."""
        if self._listing is None and now_ns >= self._not_before_ns:
            self._listing = markers_of(self._view.keys.cluster, self._refs, self._timer)
        listing = self._listing
        if listing is None or listing.over:
            return []
        if listing.failed is not None:
            self._listing, self._not_before_ns = None, now_ns + LIST_AGAIN_NS
            why = {"why": str(listing.failed)}
            return [Log("warning", "cannot compare etcd with the store", why)]
        return listing.advance(now_ns)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """What the store has."""
        listing = self._listing
        assert listing is not None
        effects = listing.on_blob(event, now_ns)
        if listing.over:
            begun = incarnations(self._view.keys.cluster, listing.names, "began")
            self._last, listing.names = max(begun, default=0), []
        return effects

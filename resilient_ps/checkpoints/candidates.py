"""The checkpoint that one rollback goes back to: where it is looked for, and in which order.

* An operator names one, or what it has to be like: among all that etcd knows, then in the store.
* A shard was lost, or a checkpoint cannot be loaded: among those that lie behind the present state,
  then what that began with, then whatever else there is: a future that was given up is better than
  nothing. But a cluster that has begun empty goes back to that.
* The cluster has lived on beyond what etcd says: on the line of its last incarnation (see
  `lineage`), then among what etcd knows and what other incarnations have left. What somebody
  imported is nobody's past: neither checkpoints of incarnations that the cluster never had, nor
  those made of files, unless an incarnation has begun with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from resilient_ps.checkpoints.choosing import Candidate, Choosing, Chosen, Skipped
from resilient_ps.checkpoints.lineage import Lineage
from resilient_ps.checkpoints.marking import Listing, manifests_of, markers_of
from resilient_ps.checkpoints.refs import Refs
from resilient_ps.checkpoints.restored import beginning, candidates, is_past, past
from resilient_ps.checkpoints.wish import Wish
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput, ResilientPsError
from resilient_ps.machine import Effect
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed
from resilient_ps.storage.names import CheckpointId, locate

Part: TypeAlias = Choosing | Listing | Lineage


def is_named(details: dict[str, Any]) -> bool:
    """Will nothing else do than a checkpoint that is as it was asked for?"""
    automatic = any(each in details for each in ("lost", "damaged", "later"))
    return bool(details.get("checkpoint")) and not automatic


def given(details: dict[str, Any]) -> Candidate:
    """The checkpoint that an operator names, which etcd need not know. Raises `BadInput`."""
    match details:
        case {"checkpoint": str(id), "manifest": [str(name), int(nbytes), str(sha256)]}:
            return Candidate(CheckpointId.parse(id), name, nbytes, sha256)
        case _:
            raise BadInput("a manifest is given as [name, bytes, sha256]")


def manifests_among(cluster: str, names: Sequence[str]) -> list[Candidate]:
    """The checkpoints whose manifests are among these objects."""
    located = ((name, locate(cluster, name)) for name in names)
    return [
        Candidate(at.id, name)
        for name, at in located
        if at is not None and at.kind == "manifest" and at.id is not None
    ]


class Search:
    """See the module. When it is `over`, `chosen` is the checkpoint, or None.

    `details`: of the rollback's intent. Raises `BadInput` if they cannot be.
    """

    def __init__(self, view: ClusterView, details: dict[str, Any], refs: Refs, timer: str) -> None:
        self.over = False
        self.chosen: Chosen | None = None
        self.skipped: list[Skipped] = []  # newer ones that are no good
        self._view = view
        self._details = details
        self._wish = Wish.parse(str(details["checkpoint"]))
        self._refs = refs
        self._timer = timer
        self._markers: list[str] | None = None
        self._lineage: Lineage | None = None
        self._looked_everywhere = False
        cluster = view.keys.cluster
        self._part: Part = (
            markers_of(cluster, refs, timer)
            if "later" in details
            else self._choosing(self._known())
        )

    @property
    def trouble(self) -> str:
        """Why the store cannot be used at the moment."""
        return "" if self.over else self._part.trouble

    @property
    def failed(self) -> ResilientPsError | None:
        """Why the store will never tell; None while it may."""
        return None if isinstance(self._part, Choosing) else self._part.failed

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call of ours?"""
        return not self.over and self._part.owns(ref)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        return self._part.on_blob(event, now_ns)

    def advance(self, now_ns: int) -> list[Effect]:
        """Go on as far as it goes at the moment."""
        while self._part.over and not self.over:
            self._next()
        if self.over:
            return []
        effects = self._part.advance(now_ns)
        return self.advance(now_ns) if self._part.over else effects

    def _next(self) -> None:
        cluster, part = self._view.keys.cluster, self._part
        match part:
            case Choosing():
                self.chosen = part.chosen
                self.skipped += part.skipped
                if self.chosen is not None or self._looked_everywhere:
                    self.over = True
                elif self._lineage is not None:
                    self._look_everywhere(self._beside(self._lineage))
                else:
                    self._part = manifests_of(cluster, self._refs, self._timer)
            case Lineage():
                self._lineage = part
                self._part = self._choosing(part.line)
            case Listing() if "later" not in self._details:
                self._look_everywhere(self._rest(part.names))
            case Listing() if self._markers is None:
                self._markers = part.names
                self._part = manifests_of(cluster, self._refs, self._timer)
            case Listing():
                found = manifests_among(cluster, part.names)
                self._part = Lineage(cluster, self._markers, found, self._refs, self._timer)

    def _look_everywhere(self, found: list[Candidate]) -> None:
        self._looked_everywhere = True
        self._part = self._choosing(found)

    def _choosing(self, found: list[Candidate]) -> Choosing:
        only = None
        if self._lineage is not None:
            only = self._lineage.beginnings | {each.id for each in beginning(self._view)}
        return Choosing(found, self._wish, self._refs, self._timer, imported_only=only)

    def _known(self) -> list[Candidate]:
        """What etcd knows. Where no operator has asked, only what lies behind the present state."""
        details = self._details
        if "manifest" in details:
            return [given(details)]
        damaged = {str(details.get("damaged", ""))}
        if is_named(details):
            return candidates(self._view.checkpoints, damaged)
        found = candidates(past(self._view), damaged)
        return found or [c for c in beginning(self._view) if str(c.id) not in damaged]

    def _rest(self, names: list[str]) -> list[Candidate]:
        """What else there is in the store: what etcd knows was looked at."""
        known = {record.id for record in self._view.checkpoints}
        found = manifests_among(self._view.keys.cluster, names)
        unknown = [each for each in found if str(each.id) not in known]
        if is_named(self._details):
            return unknown
        restore = self._view.restore
        if restore is not None and not restore.checkpoint:
            return [each for each in unknown if is_past(self._view, each.id)]
        looked = self._looked() | {str(self._details.get("damaged", ""))}
        return [*unknown, *candidates(self._view.checkpoints, looked)]

    def _beside(self, lineage: Lineage) -> list[Candidate]:
        """What is not on the line."""
        found = [each for each in lineage.others if each.id.incarnation in lineage.marked]
        found += [*candidates(self._view.checkpoints), *beginning(self._view)]
        looked, unlike = self._looked(), {each.id: each for each in reversed(found)}
        return [each for id, each in sorted(unlike.items()) if str(id) not in looked]

    def _looked(self) -> set[str]:
        return {str(each.id) for each in self.skipped}

"""How a cluster begins, and how it begins again: bootstrap, rollback, and what follows them.

The coordinator's side of restores, as one part of `coordinator.controller`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilient_ps.checkpoints.bootstrap import Bootstrap, RestoreWish
from resilient_ps.checkpoints.lineage import LaterLife
from resilient_ps.checkpoints.refs import ROLLBACK_BLOBS, Refs
from resilient_ps.checkpoints.registration import Registration
from resilient_ps.checkpoints.rollback import TIMER, Rollback
from resilient_ps.coordinator.loss import Losses
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import ClusterConfig
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed

__all__ = ["TIMER", "Recovery"]


class Recovery:
    """See the module. `stored`: is there an object store?"""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        draw: DrawBits,
        wall_s: Callable[[], int],
        config: Callable[[], ClusterConfig],
        *,
        stored: bool,
        loss_ns: int,
        wish: RestoreWish,
        shards_asked_for: int,
    ) -> None:
        refs = Refs(ROLLBACK_BLOBS)
        losses = Losses(view, loss_ns)
        self._stored = stored
        self._later = LaterLife(view, refs, TIMER)
        self._rollback = Rollback(
            view, mandate, losses, self._later, refs, draw, wall_s, stored=stored
        )
        self._registration = Registration(view, mandate, refs, TIMER, stored=stored)
        self._bootstrap = Bootstrap(
            view,
            mandate,
            wish,
            config,
            refs,
            draw,
            wall_s,
            TIMER,
            shards_asked_for=shards_asked_for,
        )

    @property
    def stored(self) -> bool:
        """Is there an object store, in which the cluster may have lived before?"""
        return self._stored

    def create(self, now_ns: int) -> list[Effect]:
        """There is no configuration, and there is a store."""
        return self._bootstrap.advance(now_ns)

    def advance(self, now_ns: int) -> list[Effect]:
        """We are the coordinator: do what is missing."""
        self._bootstrap.drop()
        effects = self._later.advance(now_ns) if self._stored else []
        effects += self._rollback.advance(now_ns)
        return [*effects, *self._registration.advance(now_ns)]

    @property
    def busy(self) -> bool:
        """Is the cluster being rolled back, or registered, so that nothing else is to be begun?
        While a rollback waits for the store, which may be for long, everything goes on, unless
        the cluster has a later life: then nothing does."""
        going_back = self._rollback.open is not None and not self._rollback.trouble
        return going_back or self._registration.left or self._later.incarnation > 0

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._later.drop()
        self._rollback.drop()
        self._registration.drop()

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store: to whoever asked, if it still waits."""
        if self._later.owns(event.ref):
            return [*self._later.on_blob(event, now_ns), *self._rollback.advance(now_ns)]
        for part in (self._bootstrap, self._rollback, self._registration):
            if part.owns(event.ref):
                return part.on_blob(event, now_ns)
        return []

    def status(self) -> dict[str, Any]:
        """For `resilient-ps status`."""
        return {
            "rollback": self._rollback.status(),
            "registering": self._registration.left,
            "trouble": self._bootstrap.trouble or self._registration.trouble,
        }

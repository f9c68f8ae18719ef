"""An S3 store with troubles of its own, at the level of HTTP. One trouble at a time."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from resilient_ps.chaos.faults.links import Effect, StoreTrouble
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.scene import Lines, Scene, Skipped

STORE = "store"
SLOW_BYTES_PER_S = 1_000_000
HIDDEN_S = 20.0, 60.0  # longer than checkpoints are kept: only those that go are listed


class _Troubled(ABC):
    """Happened when a request was struck."""

    def __init__(self, scene: Scene, planned: Planned) -> None:
        self.scene = scene
        self.planned = planned
        self.struck: tuple[str, ...] = ()
        self.chance = random.Random(planned.how)
        self._lines: Lines | None = None
        self._before = self._after = Effect()

    @abstractmethod
    def trouble(self) -> StoreTrouble: ...

    def inject(self) -> None:
        lines = self.scene.lines
        if lines is None or "s3" not in self.scene.offers:
            raise Skipped("no S3 store behind the proxy")
        self.scene.claims.claim(STORE)
        self._lines = lines
        self._before = lines.store_effect()
        self.struck = (STORE,)
        lines.trouble_store(self.trouble())

    def heal(self) -> None:
        if self._lines is None:
            return
        self._lines.trouble_store(StoreTrouble())
        self._after = self._lines.store_effect()
        self._lines = None
        self.scene.claims.release(STORE)

    def evidence(self) -> str:
        struck = self._after.pieces - self._before.pieces
        requests = self._after.connections - self._before.connections
        return f"{struck} of {requests} requests struck" if struck > 0 else ""


class Slow(_Troubled):
    """All bodies together pass at 1 MB/s."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(bytes_per_s=SLOW_BYTES_PER_S)


class Errors(_Troubled):
    """A third to nearly all requests are answered 500 or 503."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(error_share=self.chance.uniform(0.3, 0.95))


class Timeouts(_Troubled):
    """Some to most requests are not answered while it lasts."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(timeout_share=self.chance.uniform(0.2, 0.8))


class Truncates(_Troubled):
    """Some to most answers break off in the middle of their body."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(truncate_share=self.chance.uniform(0.2, 0.8))


class LosesAnswers(_Troubled):
    """Some to most requests are carried out, and the connection ends without an answer."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(lost_answer_share=self.chance.uniform(0.2, 0.8))


class StaleList(_Troubled):
    """What was put in the last minute, or half of it, is in no listing."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(hide_new_s=self.chance.uniform(*HIDDEN_S))


class NoConditions(_Troubled):
    """If-Match and If-None-Match of puts are not looked at."""

    def trouble(self) -> StoreTrouble:
        return StoreTrouble(ignore_conditions=True)


FAULTS = {
    "store-slow": Slow,
    "store-errors": Errors,
    "store-timeouts": Timeouts,
    "store-truncates": Truncates,
    "store-loses-answers": LosesAnswers,
    "store-stale-list": StaleList,
    "store-no-conditions": NoConditions,
}

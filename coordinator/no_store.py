"""What a coordinator without an object store does about checkpoints: it says that none can be made.

What a predecessor with a store has begun is given up, so that no shard keeps an image for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from resilient_ps.coordinator.cuts import is_wish
from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.coordinator.kv import Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import IntentRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.machine import Effect, Log
from resilient_ps.messages import PartAnswer, Told

NO_STORE_REF = 28


class NoStore:
    """A `CutConductor` that conducts none."""

    def __init__(self, view: ClusterView, mandate: Mandate) -> None:
        self._view = view
        self._mandate = mandate

    def advance(self, now_ns: int) -> list[Effect]:
        """Refuse the first wish."""
        wishes = [intent for intent in self._view.open_intents if is_wish(intent)]
        return self._refuse(wishes[0]) if wishes else []

    def drop(self) -> None:
        """Nothing is kept."""

    def hear(self, told: Told, now_ns: int) -> list[Effect]:
        """Nothing was asked."""
        return []

    def status(self, now_ns: int) -> JsonObject:
        """There is no store."""
        return {"store": False}

    def awaits_telling(self, number: int) -> bool:
        """No shard is told of a cut."""
        return False

    def to_abort(self) -> int:
        """What somebody else has begun."""
        cuts = [i for i in self._view.open_intents if i.kind == "cut" and not is_wish(i)]
        return cuts[0].number if cuts else 0

    def on_cut_told(
        self, number: int, answers: Mapping[int, PartAnswer], now_ns: int
    ) -> list[Effect]:
        """None is."""
        return []

    def on_cut_aborted(self, number: int, now_ns: int) -> list[Effect]:
        """It has ended on all shards."""
        cuts = [intent for intent in self._view.open_intents if intent.number == number]
        return self._refuse(cuts[0]) if cuts else []

    def _refuse(self, intent: IntentRecord) -> list[Effect]:
        key = self._view.keys.intent(intent.number)
        why = (
            f"server {self._mandate.server}, the coordinator, has no object store: start every "
            "server with the same --store"
        )
        record = replace(intent, state="aborted", result={"why": why})
        txn = self._mandate.order(Put(key, record.to_bytes()), guards=(self._view.as_seen(key),))
        effects = self._mandate.ask(NO_STORE_REF, txn)
        told = Log("warning", "no checkpoint", {"intent": intent.number, "why": why})
        return [told, *effects] if effects else []

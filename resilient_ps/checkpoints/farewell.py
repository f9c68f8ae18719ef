"""A server that is told to stop asks for a checkpoint, if anything has happened since the last one.

It has announced its end, and so do others that are told at about the same time: that is waited
for. If others that stay hold all that it holds, it goes then: its shards live on. If it is the last
one to hold a shard, it serves on until the checkpoint is made, or its time is over: so that a
cluster that is stopped as a whole can go on where it was. A second signal ends the waiting.
"""

from __future__ import annotations

from collections.abc import Collection

from resilient_ps.checkpoints.clocks import clocks_told, spans_told
from resilient_ps.checkpoints.planning import newest, next_number
from resilient_ps.checkpoints.policy import has_moved
from resilient_ps.checkpoints.refs import FAREWELL_REF
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.kv import KvAnswered, KvCall, KvFailed, Put, Txn, TxnResult
from resilient_ps.coordinator.records import IntentRecord, Member, counter_bytes
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.shard import Shard

TIMER = "farewell"
LOOK_NS = 100_000_000
SECOND_NS = 10**9
OTHERS_NS = 500_000_000  # for others, told to stop with us, to announce it
HOPS_MOST = 100  # from a wish through failed attempts to the one that is made


class Farewell:
    """See the module. One per server; it is used once."""

    def __init__(self, view: ClusterView, me: Member, settings: CheckpointSettings) -> None:
        self._view = view
        self._me = me
        self._patience_ns = int(settings.on_stop_s * SECOND_NS)
        self._until_ns = 0  # 0: not begun
        self._others_until_ns = 0
        self._wish = 0  # the number of our intent, once it is written
        self._trying = 0  # the one that is being written

    def begin(self, served: Collection[Shard], now_ns: int) -> list[Effect]:
        """We are told to stop: ask for a checkpoint, if there is anything to be kept."""
        if self._until_ns or not self._patience_ns:
            self._until_ns = now_ns  # asked to stop again: no more waiting
            return []
        self._until_ns = now_ns
        if not has_moved(self._view, spans_told(clocks_told(served)), newest(self._view)):
            return []
        asking = self._ask()
        if not asking:
            return []
        self._until_ns = now_ns + self._patience_ns
        self._others_until_ns = min(now_ns + OTHERS_NS, self._until_ns)
        waiting = Log("info", "asks for a checkpoint", {"most_s": self._patience_ns / SECOND_NS})
        return [waiting, *asking, SetTimer(TIMER, now_ns + LOOK_NS)]

    def waits(self, served: Collection[Shard], now_ns: int) -> bool:
        """Is the end to be put off for a while? `served`: the shards that we are primary of."""
        if now_ns >= self._until_ns or (self._wish and self._is_served()):
            return False
        return now_ns < self._others_until_ns or self._is_last_holder(served)

    def on_timer(self, served: Collection[Shard], now_ns: int) -> list[Effect]:
        """Look again."""
        if not self.waits(served, now_ns):
            return []
        asking = [] if self._wish else self._ask()  # the view may have changed since it failed
        return [*asking, SetTimer(TIMER, now_ns + LOOK_NS)]

    def on_kv(self, event: KvAnswered | KvFailed) -> list[Effect]:
        """The wish is written, or somebody else has taken its number."""
        match event:
            case KvAnswered(_, TxnResult() as result) if result.succeeded:
                self._wish = self._trying
                return []
            case _:
                return self._ask()

    def _ask(self) -> list[Effect]:
        view, keys = self._view, self._view.keys
        try:
            number = next_number(view)
        except BadInput:
            return []  # nobody can ask for anything
        if number == self._trying:
            return []  # our view has not changed: it would fail again
        self._trying = number
        details = {"why": "a server stops", "by": self._me.server}
        record = IntentRecord(number, "cut", "", 0, 0, "open", details=details)
        counter, key = keys.counter("intents"), keys.intent(number)
        puts = (Put(counter, counter_bytes(number)), Put(key, record.to_bytes()))
        return [KvCall(FAREWELL_REF, Txn((view.as_seen(counter), view.as_seen(key)), puts))]

    def _is_last_holder(self, served: Collection[Shard]) -> bool:
        """Has any of our shards no in-sync member elsewhere that stays?"""
        staying = {Member(s.server, s.process) for s in self._view.servers if not s.stopping}
        staying.discard(self._me)
        records = [self._view.shard(shard.number) for shard in served]
        return any(record is not None and not staying & {*record.in_sync} for record in records)

    def _is_served(self) -> bool:
        """Has our wish become a checkpoint, or has it come to nothing?"""
        intents = {intent.number: intent for intent in self._view.intents}
        number = self._wish
        for _ in range(HOPS_MOST):
            intent = intents.get(number)
            if intent is None:
                return number < max(intents, default=0)  # forgotten, or not seen yet
            following = intent.result.get("retried_as")
            if not isinstance(following, int):
                return intent.state != "open" and intent.result.get("retry") is not True
            number = following
        return True

"""Which checkpoints and intents are not kept any more, and the transactions that say so.

A checkpoint that is to go is first marked as "deleting", by a transaction that only the coordinator
can make: from then on nobody begins to use it. Then its objects are deleted (`sweeping`), and its
record last. The objects of an attempt that was given up are deleted a while after its intent was
closed, and once more later: a server that did not hear of it at once may have written more.
"""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.checkpoints.planning import unmarked
from resilient_ps.checkpoints.refs import RETENTION_REF, TIDY_REF, Refs
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.sweeping import Sweeping
from resilient_ps.coordinator.cuts import is_pending
from resilient_ps.coordinator.kv import Compare, Delete, Op, Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import CheckpointRecord, IntentRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.guards import Guards
from resilient_ps.machine import Effect, Log
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.retention import KeepPolicy, Recorded, to_delete

SECOND_NS = 10**9
FIRST_PASS_NS = 5 * SECOND_NS  # after an attempt was seen to be given up
LAST_PASS_NS = 600 * SECOND_NS
REST_NS = SECOND_NS // 2  # how long it looks at nothing, where the view has not changed
CHANGED_AT_ONCE = 16  # records in one transaction
CLOSED_KEPT = 32  # closed intents that whoever waits for them may still want to read
UNSWEPT_KEPT = 128  # attempts whose objects could not be deleted: the store is away, for instance
DONE_KEPT = 8  # of those, the last ones that became checkpoints: they tell what it costs


class Housekeeping:
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        settings: CheckpointSettings,
        refs: Refs,
        guards: Guards,
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._keep = KeepPolicy(settings.keep_last, settings.keep_hourly, settings.keep_daily)
        self._unused_only = guards.sweep_unused_only
        self._sweeping = Sweeping(view.keys.cluster, refs)
        self._given_up: dict[CheckpointId, tuple[int, int]] = {}  # since when; passes made
        self._at_rest: tuple[int, bool] | None = None  # in which view there was nothing to do
        self._rest_until_ns = 0

    @property
    def trouble(self) -> str:
        """Why nothing can be deleted at the moment; "" when there is nothing to say."""
        return self._sweeping.trouble

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._sweeping.drop()
        self._given_up.clear()
        self._at_rest = None

    def advance(self, now_ns: int, *, needs_marks: bool) -> list[Effect]:
        """Do what is missing. `needs_marks`: see `planning.unmarked`."""
        seen = (self._view.revision, needs_marks)
        if seen == self._at_rest and now_ns < self._rest_until_ns:
            return []
        effects = self._retain()
        if self._sweeping.idle:
            self._choose(now_ns)
        effects += self._sweep(now_ns)
        effects += self._tidy(needs_marks=needs_marks)
        asked = self._mandate.busy(RETENTION_REF) or self._mandate.busy(TIDY_REF)
        at_rest = not effects and not asked and self._sweeping.idle
        self._at_rest, self._rest_until_ns = (seen if at_rest else None), now_ns + REST_NS
        return effects

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """The object store has answered."""
        if not self._sweeping.owns(event.ref):
            return []
        self._at_rest = None
        return [*self._sweeping.on_blob(event, now_ns), *self._sweep(now_ns)]

    # -- which checkpoints stay

    def _staying(self) -> list[CheckpointRecord]:
        return [record for record in self._view.checkpoints if record.state != "deleting"]

    def _in_use(self) -> set[CheckpointId]:
        """What the shards began with, and what the open attempt builds upon."""
        restore = self._view.restore
        names = [] if restore is None else [restore.checkpoint]
        names += [str(i.details.get("base", "")) for i in self._view.open_intents]
        return {id for id in (_id(name) for name in names) if id is not None}

    def _retain(self) -> list[Effect]:
        """Mark what is not to be kept any more, or cannot be read."""
        view = self._view
        if self._mandate.busy(RETENTION_REF) or not view.checkpoints:
            return []
        records = {id: r for r in self._staying() if (id := _id(r.id)) is not None}
        changed: list[CheckpointRecord] = []
        for id, why in sorted(self._sweeping.unreadable.items()):
            if id in records and records[id].state == "good":
                changed.append(replace(records[id], state="damaged", why=why[:500]))
        recorded = [Recorded(id, r.created_s, r.state == "good") for id, r in records.items()]
        for id in [] if changed else to_delete(recorded, self._keep, self._in_use()):
            changed.append(replace(records[id], state="deleting"))
        return self._write(changed[:CHANGED_AT_ONCE])

    def _write(self, changed: list[CheckpointRecord]) -> list[Effect]:
        if not changed:
            return []
        view, keys = self._view, self._view.keys
        puts = [Put(keys.checkpoint(record.number), record.to_bytes()) for record in changed]
        guards = [view.as_seen(keys.restore), view.as_seen(keys.config)]
        guards += [view.as_seen(put.key) for put in puts]
        logs = [
            Log("info", f"checkpoint is {r.state}", {"checkpoint": r.id, "why": r.why})
            for r in changed
        ]
        txn = self._mandate.order(*puts, guards=tuple(guards))
        return [*logs, *self._mandate.ask(RETENTION_REF, txn)]

    # -- what is swept

    def _choose(self, now_ns: int) -> None:
        """The next checkpoint whose folder is to be emptied."""
        staying, in_use = self._staying(), self._in_use()
        for record in self._view.checkpoints:
            id = _id(record.id)
            if record.state != "deleting" or id is None or id in self._sweeping.emptied | in_use:
                continue
            if not self._sweeping.is_parked(id, staying):
                return self._sweeping.begin(id, uploads=True)
        in_use |= {id for record in staying if (id := _id(record.id)) is not None}
        for id in self._abandoned(now_ns):
            if id in in_use:  # a rollback has found its manifest
                continue
            if not self._sweeping.is_parked(id, staying) and id not in self._sweeping.emptied:
                return self._sweeping.begin(id, uploads=self._given_up[id][1] > 0)
        return None

    def _abandoned(self, now_ns: int) -> list[CheckpointId]:
        """The attempts that were given up, and whose time to be swept has come."""
        found = [id for intent in self._view.intents if (id := unswept(intent)) is not None]
        for gone in set(self._given_up) - set(found):
            del self._given_up[gone]
        due = []
        for id in found:
            since_ns, passes = self._given_up.setdefault(id, (now_ns, 0))
            wait_ns = LAST_PASS_NS if passes else FIRST_PASS_NS
            if now_ns - since_ns >= wait_ns:
                due.append(id)
        return due

    def _sweep(self, now_ns: int) -> list[Effect]:
        staying = self._staying()
        effects = self._sweeping.advance(staying, now_ns, unused_only=self._unused_only)
        for id in sorted(self._sweeping.emptied & set(self._given_up)):
            since_ns, passes = self._given_up[id]
            if not passes:  # that was the first one
                self._given_up[id] = (since_ns, 1)
                self._sweeping.emptied.discard(id)
        return effects

    # -- what is forgotten

    def _tidy(self, *, needs_marks: bool) -> list[Effect]:
        """Records whose objects are gone, and intents that nobody reads any more."""
        if self._mandate.busy(TIDY_REF):
            return []
        view, keys = self._view, self._view.keys
        ops: list[Op] = []
        for record in view.checkpoints:
            if record.state == "deleting" and _id(record.id) in self._sweeping.emptied:
                ops.append(Delete(keys.checkpoint(record.number)))
        for intent in view.intents:
            if unswept(intent) in self._sweeping.emptied and unswept(intent) is not None:
                swept = replace(intent, result={**intent.result, "swept": True})
                ops.append(Put(keys.intent(intent.number), swept.to_bytes()))
        ops += [] if needs_marks else unmarked(view)
        ops += [Delete(keys.intent(number)) for number in forgettable(view.intents)]
        ops = ops[:CHANGED_AT_ONCE]
        if not ops:
            return []
        guards: list[Compare] = [view.as_seen(op.key) for op in ops]
        return self._mandate.ask(TIDY_REF, self._mandate.order(*ops, guards=tuple(guards)))


def unswept(intent: IntentRecord) -> CheckpointId | None:
    """The checkpoint that a given-up attempt would have become, while objects of it may exist."""
    if intent.kind != "cut" or intent.state != "aborted" or intent.result.get("swept") is True:
        return None
    return _id(str(intent.details.get("id", "")))


def forgettable(intents: list[IntentRecord]) -> list[int]:
    """The numbers of closed cuts that need not be kept, oldest first.

    Of very many attempts whose objects could not be deleted, the oldest are forgotten as well:
    what there may be of them is then for `resilient-ps checkpoint gc` to find.
    """
    closed = [intent for intent in intents if intent.kind == "cut" and intent.state != "open"]
    done = [intent.number for intent in closed if intent.state == "done"]
    left = [intent.number for intent in closed if unswept(intent) is not None]
    kept = {*done[-DONE_KEPT:], *left[-UNSWEPT_KEPT:]}
    kept |= {intent.number for intent in closed[-CLOSED_KEPT:]}
    return [i.number for i in closed if i.number not in kept and not is_pending(i)]


def _id(text: str) -> CheckpointId | None:
    """Of a text in etcd; None for what is none."""
    try:
        return CheckpointId.parse(text)
    except BadInput:
        return None

"""The coordinator's way back to a checkpoint: a shard is lost, etcd is old, or an operator asks.

Theory of operation. An intent of the kind "rollback" says why and to what (`details`). The
coordinator chooses the checkpoint (`candidates`), writes into the intent which incarnation is to be
next and by which nonce its marker is known, creates the marker (`marking`), and then makes ONE
transaction: the next incarnation in the configuration, what it begins with (`RestoreRecord`), and
all open intents closed. A rollback for a lost shard compares once more that the shard's record is
unchanged and that nobody leads it. Without a store there is no marker, and only the initial state.

What remains is in etcd: a coordinator that dies leaves the intent, and its successor begins it
again. What follows the transaction is `Registration`'s.

An intent's details: `checkpoint`: a wish (see `wish`), or "" for the initial state; `why`; `lost`:
shards, where it was not an operator who asked; `damaged`: a checkpoint that could not be loaded;
`later`: an incarnation that has begun, and that etcd does not know (see `lineage.LaterLife`);
`manifest`: [name, bytes, sha256] of the manifest, for a checkpoint that etcd does not know;
`marker` and `nonce`, once they are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from resilient_ps.checkpoints import marking
from resilient_ps.checkpoints.candidates import Search, is_named
from resilient_ps.checkpoints.choosing import Chosen, Skipped
from resilient_ps.checkpoints.lineage import LaterLife
from resilient_ps.checkpoints.marking import Listing, Marking, highest
from resilient_ps.checkpoints.refs import ROLLBACK_REFS, Refs
from resilient_ps.checkpoints.restored import (
    checkpoint_record,
    marked,
    restore_record,
    with_skipped,
)
from resilient_ps.coordinator.kv import Compare, Op, Put, absent
from resilient_ps.coordinator.loss import Losses
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import (
    IntentRecord,
    RestoreRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.standing import never_led
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect, Log
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed
from resilient_ps.storage.names import CheckpointId

TIMER = "rollback"
INTENT_REF, COMMIT_REF = ROLLBACK_REFS[0], ROLLBACK_REFS[1]
LOST_SHOWN = 20
CLOSED_AT_ONCE = 60


class Rollback:
    """See the module. `stored`: is there an object store?"""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        losses: Losses,
        later: LaterLife,
        refs: Refs,
        draw: DrawBits,
        wall_s: Callable[[], int],
        *,
        stored: bool,
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._losses = losses
        self._later = later
        self._refs = refs
        self._draw = draw
        self._wall_s = wall_s
        self._stored = stored
        self._work: _Work | None = None

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._work = None
        self._losses.drop()

    @property
    def open(self) -> IntentRecord | None:
        """The rollback that is to be carried out."""
        found = [intent for intent in self._view.open_intents if intent.kind == "rollback"]
        return found[0] if found else None

    @property
    def trouble(self) -> str:
        """Why the store cannot be used at the moment; "" if it can, or is not used."""
        return "" if self._work is None else self._work.trouble

    def status(self) -> dict[str, Any] | None:
        """What is being done; None where nothing is."""
        intent = self.open
        if intent is None:
            return None
        return {"intent": intent.number, **intent.details, "waits_for": self.trouble}

    def advance(self, now_ns: int) -> list[Effect]:
        """Propose one where it has to be, and carry it out."""
        lost = self._losses.found(now_ns)
        if self._mandate.busy(INTENT_REF) or self._mandate.busy(COMMIT_REF):
            return []
        intent = self.open
        if intent is None:
            self._work = None
            return self._propose(lost)
        try:
            return self._carry_out(intent, now_ns)
        except BadInput as error:  # details that cannot be
            return self._abort(intent, str(error))

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call to the store that is ours?"""
        asking = None if self._work is None else self._work.asking
        return asking is not None and asking.owns(ref)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        work = self._work
        assert work is not None
        assert work.asking is not None
        before = work.trouble
        effects = work.asking.on_blob(event, now_ns)
        if work.trouble and not before:
            effects.append(Log("warning", "rollback waits for the store", {"why": work.trouble}))
        return [*effects, *self.advance(now_ns)]

    # -- proposing

    def _propose(self, lost: list[int]) -> list[Effect]:
        restore, later = self._view.restore, self._later.incarnation
        if later:
            config = self._view.config
            assert config is not None
            why = (
                f"the store has incarnation {later} of this cluster, etcd only {config.incarnation}"
                ": etcd was restored from an old snapshot"
            )
            details: dict[str, Any] = {"checkpoint": "latest", "why": why, "later": later}
        elif lost:
            shown = ", ".join(str(number) for number in lost[:LOST_SHOWN])
            why = f"shards were lost, with all that held them in sync: {shown}"
            details = {"checkpoint": "latest", "why": why, "lost": lost[:1]}
        elif restore is not None and self._is_to_be_replaced(restore):
            why = f"checkpoint {restore.checkpoint} cannot be loaded: {restore.damaged}"
            details = {"checkpoint": "latest", "why": why, "damaged": restore.checkpoint}
        else:
            return []
        view, keys = self._view, self._view.keys
        counter = keys.counter("intents")
        held = view.items.get(counter)
        number = read_counter(None if held is None else held.value, counter) + 1
        record = IntentRecord(number, "rollback", "", 0, 0, "open", {}, details)
        key = keys.intent(number)
        guards = (view.as_seen(counter), absent(key), view.as_seen(keys.config))
        puts = (Put(counter, counter_bytes(number)), Put(key, record.to_bytes()))
        sent = self._mandate.ask(INTENT_REF, self._mandate.order(*puts, guards=guards))
        told = Log("error", "the cluster has to be rolled back", {"why": why})
        return [told, *sent] if sent else []

    def _is_to_be_replaced(self, restore: RestoreRecord) -> bool:
        """Can it not be loaded, while a shard waits for it? Not if it is another cluster's, for
        which there is no other one to go back to: its operator has to choose."""
        known = {record.id for record in self._view.checkpoints}
        return bool(restore.damaged) and restore.checkpoint in known and not self._is_loaded

    @property
    def _is_loaded(self) -> bool:
        """Has every shard of the present incarnation begun?"""
        config, shards = self._view.config, self._view.shards
        assert config is not None
        restore = self._view.restore
        if restore is None or restore.incarnation != config.incarnation:
            return True
        begun = [
            record
            for record in shards
            if record.epoch.incarnation == config.incarnation and not never_led(record)
        ]
        return restore.registered and len(begun) >= config.shards

    # -- carrying out

    def _carry_out(self, intent: IntentRecord, now_ns: int) -> list[Effect]:
        work = self._work
        if work is None or work.number != intent.number:
            work = self._work = self._begin(intent)
        search = work.search
        if search is not None and not search.over:
            effects = search.advance(now_ns)
            if search.failed is not None:
                return self._abort(intent, str(search.failed))
            if not search.over:
                return effects
        if intent.details.get("lost") and not self._still_lost(intent):
            return self._abort(intent, "its members came back")
        if work.checkpoint is None and is_named(intent.details):
            return self._abort(intent, with_skipped("no such checkpoint verifies", work.skipped))
        if not self._stored:
            return self._commit(intent, work)
        return self._mark(intent, work, now_ns)

    def _begin(self, intent: IntentRecord) -> _Work:
        if is_named(intent.details) and not self._stored:
            raise BadInput("the coordinator has no object store: start servers with --store")
        if not self._stored or not intent.details.get("checkpoint"):
            return _Work(intent.number)
        return _Work(intent.number, Search(self._view, intent.details, self._refs, TIMER))

    def _still_lost(self, intent: IntentRecord) -> bool:
        return set(intent.details["lost"]) <= set(self._losses.leaderless())

    def _mark(self, intent: IntentRecord, work: _Work, now_ns: int) -> list[Effect]:
        """The next incarnation: found, written into the intent, and its marker created."""
        config, keys = self._view.config, self._view.keys
        assert config is not None
        marker = int(intent.details.get("marker", 0))
        if isinstance(work.part, Listing) and work.part.over:
            least = max(config.incarnation, highest(keys.cluster, work.part.names))
            work.part = None
            return self._write_marker(intent, least + 1)
        if work.part is None and marker <= config.incarnation:
            work.part = marking.markers_of(keys.cluster, self._refs, TIMER)
        if work.part is None:
            nonce, why = str(intent.details["nonce"]), str(intent.details.get("why", ""))
            work.part = Marking(keys.cluster, marker, nonce, why, self._refs, TIMER)
        part = work.part
        if part.failed is not None:
            return self._abort(intent, str(part.failed))
        if isinstance(part, Marking) and part.taken == "ours":
            return self._commit(intent, work)
        if isinstance(part, Marking) and part.taken == "theirs":
            work.part = None
            return self._write_marker(intent, marker + 1)
        return part.advance(now_ns)

    def _write_marker(self, intent: IntentRecord, marker: int) -> list[Effect]:
        nonce = f"{self._draw(64):016x}"
        record = replace(intent, details={**intent.details, "marker": marker, "nonce": nonce})
        return self._rewrite(record)

    def _commit(self, intent: IntentRecord, work: _Work) -> list[Effect]:
        """The one transaction."""
        view, keys, config = self._view, self._view.keys, self._view.config
        assert config is not None
        others = [each for each in view.open_intents if each.number != intent.number]
        if len(others) > CLOSED_AT_ONCE:
            return self._close_some(others[:CLOSED_AT_ONCE])
        if self._is_going(work.checkpoint):
            self._work = None  # choose again, if there is a choice
            given = "manifest" in intent.details
            return self._abort(intent, "that checkpoint is being deleted") if given else []
        marker = int(intent.details.get("marker", config.incarnation + 1))
        chosen = work.checkpoint
        why = with_skipped(str(intent.details.get("why", "asked for")), work.skipped)
        restore = restore_record(marker, chosen, why, self._wall_s())
        result = {"incarnation": marker, "checkpoint": restore.checkpoint}
        ops: list[Op] = [
            Put(keys.config, replace(config, incarnation=marker).to_bytes()),
            Put(keys.restore, restore.to_bytes()),
            Put(keys.intent(intent.number), _closed(intent, "done", result)),
        ]
        ops += [Put(keys.intent(i.number), _closed(i, "aborted", ROLLED_BACK)) for i in others]
        skipped = [*work.skipped, *_unloadable(intent)]
        ops += [
            Put(keys.checkpoint(record.number), record.to_bytes())
            for record in marked(view.checkpoints, skipped)[:LOST_SHOWN]
        ]
        ops += self._new_record(intent, chosen)
        guards = (
            view.as_seen(keys.config),
            view.as_seen(keys.intent(intent.number)),
            view.as_seen(keys.counter("intents")),  # all open ones are among those closed here
            *self._loss_guards(intent),
            *self._stays(chosen),
        )
        sent = self._mandate.ask(COMMIT_REF, self._mandate.order(*ops, guards=guards))
        what = {"incarnation": marker, "checkpoint": restore.checkpoint or "-", "why": why}
        return [Log("error", "the cluster is rolled back", what), *sent] if sent else []

    def _is_going(self, chosen: Chosen | None) -> bool:
        """Was it given up since it was chosen, so that its objects may be deleted any moment?"""
        going = {record.id for record in self._view.checkpoints if record.state == "deleting"}
        return chosen is not None and str(chosen.manifest.id) in going

    def _stays(self, chosen: Chosen | None) -> tuple[Compare, ...]:
        if chosen is None:
            return ()
        return (self._view.as_seen(self._view.keys.checkpoint(chosen.manifest.id.number)),)

    def _new_record(self, intent: IntentRecord, chosen: Chosen | None) -> list[Op]:
        """For a checkpoint of the cluster that etcd does not know, unless it is an operator's."""
        if chosen is None or "manifest" in intent.details:
            return []
        key = self._view.keys.checkpoint(chosen.manifest.id.number)
        known = key in self._view.items
        return [] if known else [Put(key, checkpoint_record(chosen).to_bytes())]

    def _loss_guards(self, intent: IntentRecord) -> tuple[Compare, ...]:
        lost = intent.details.get("lost")
        return self._losses.guards(lost[0]) if lost else ()

    def _close_some(self, intents: list[IntentRecord]) -> list[Effect]:
        keys = [self._view.keys.intent(intent.number) for intent in intents]
        puts = [
            Put(key, _closed(intent, "aborted", ROLLED_BACK))
            for key, intent in zip(keys, intents, strict=True)
        ]
        guards = tuple(self._view.as_seen(key) for key in keys[: CLOSED_AT_ONCE - 1])
        return self._mandate.ask(INTENT_REF, self._mandate.order(*puts, guards=guards))

    def _abort(self, intent: IntentRecord, why: str) -> list[Effect]:
        self._work = None
        record = replace(intent, state="aborted", result={"why": why})
        what = {"intent": intent.number, "why": why}
        return [Log("warning", "no rollback", what), *self._rewrite(record)]

    def _rewrite(self, record: IntentRecord) -> list[Effect]:
        key = self._view.keys.intent(record.number)
        guards = (self._view.as_seen(key),)
        txn = self._mandate.order(Put(key, record.to_bytes()), guards=guards)
        return self._mandate.ask(INTENT_REF, txn)


ROLLED_BACK = {"why": "rolled back"}


class _Work:
    """What is under way for one intent: looking for a checkpoint, then one part at a time."""

    def __init__(self, number: int, search: Search | None = None) -> None:
        self.number = number
        self.search = search
        self.part: Listing | Marking | None = None

    @property
    def asking(self) -> Search | Listing | Marking | None:
        """Who waits for the store."""
        return self.search if self.search is not None and not self.search.over else self.part

    @property
    def checkpoint(self) -> Chosen | None:
        """What it goes back to; None: the initial state."""
        return None if self.search is None else self.search.chosen

    @property
    def skipped(self) -> list[Skipped]:
        """Newer ones that are no good."""
        return [] if self.search is None else self.search.skipped

    @property
    def trouble(self) -> str:
        """Why the store cannot be used at the moment."""
        return "" if self.asking is None else self.asking.trouble


def _closed(intent: IntentRecord, state: Any, result: dict[str, Any]) -> bytes:
    return replace(intent, state=state, result=result).to_bytes()


def _unloadable(intent: IntentRecord) -> list[Skipped]:
    damaged = intent.details.get("damaged")
    if not damaged:
        return []
    return [Skipped(CheckpointId.parse(str(damaged)), str(intent.details.get("why", "")))]

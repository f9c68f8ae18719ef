"""Checkpoints as etcd knows them: asked for, waited for, and listed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from resilient_ps.client.catalogue import POLL_S, Catalogue
from resilient_ps.client.coordinator_line import find_coordinator
from resilient_ps.client.data_shards import Changed
from resilient_ps.client.inspect import ServerProbe
from resilient_ps.coordinator.kv import KeyValue, Put, Txn, absent, unchanged
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    IntentRecord,
    RestoreRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.errors import (
    DeadlineExceeded,
    FixTheCall,
    NotFound,
    Reopen,
    ResilientPsError,
    RetryLater,
)

ASK_S = 1.0
ASK_EACH_S = 0.25
UNSEEN_S = 1.0  # where nobody looks at the progress
TEXT_CHARS_MAX = 200
CHECKPOINTS = json.dumps({"checkpoints": {}})


@dataclass(frozen=True, slots=True)
class CutProgress:
    """How far a checkpoint has come. `done` of `total` shards are written."""

    number: int
    attempt: int
    text: str
    done: int = 0
    total: int = 0


OnProgress: TypeAlias = Callable[[CutProgress], None]


def checkpoint_records(catalogue: Catalogue) -> list[CheckpointRecord]:
    """All that have been published, the newest first."""
    keys, deadline_s = catalogue.keys, catalogue.call_deadline_s
    items = catalogue.kv.read(keys.checkpoints, prefix=True, deadline_s=deadline_s).items
    records = [CheckpointRecord.from_bytes(item.value, item.key) for item in items]
    return sorted(records, key=lambda each: (each.incarnation, each.number), reverse=True)


def request_checkpoint(
    catalogue: Catalogue,
    *,
    why: str,
    by: str = "",
    deadline_s: float = 300.0,
    on_progress: OnProgress | None = None,
) -> CheckpointRecord:
    """Ask for a checkpoint, and wait for it: see `propose_cut` and `wait_for_cut`."""
    number = propose_cut(catalogue, why=why, by=by)
    return wait_for_cut(catalogue, number, deadline_s, on_progress)


def propose_cut(catalogue: Catalogue, *, why: str, by: str) -> int:
    """Ask for a checkpoint; the number of the wish, for `wait_for_cut`.

    Wishes that are there when a checkpoint begins are all served by that one.
    """
    keys, kv = catalogue.keys, catalogue.kv
    end_s = time.monotonic() + catalogue.call_deadline_s
    while True:
        counter = keys.counter("intents")
        items = kv.read(counter, deadline_s=catalogue.call_deadline_s).items
        number = read_counter(items[0].value if items else None, counter) + 1
        details = {"why": why[:TEXT_CHARS_MAX], "by": by[:TEXT_CHARS_MAX]}
        record = IntentRecord(number, "cut", "", 0, 0, "open", details=details)
        key = keys.intent(number)
        guard = unchanged(counter, items[0].mod_revision if items else 0)
        puts = (Put(counter, counter_bytes(number)), Put(key, record.to_bytes()))
        txn = Txn((guard, absent(key)), puts)
        if kv.txn(txn, deadline_s=catalogue.call_deadline_s).succeeded:
            return number
        if time.monotonic() > end_s:
            raise DeadlineExceeded(f"others take numbers of intents all the time ({number})")


def wait_for_cut(
    catalogue: Catalogue,
    number: int,
    deadline_s: float,
    on_progress: OnProgress | None = None,
) -> CheckpointRecord:
    """The checkpoint that comes of a wish, through all attempts.

    Raises `Reopen` with the reason where none will, `DeadlineExceeded` with what it waited for.
    """
    end_s, why = time.monotonic() + deadline_s, "the coordinator has not begun"
    pause_s = UNSEEN_S if on_progress is None else ASK_EACH_S
    with ExitStack() as stack:
        teller = stack.enter_context(closing(ProgressTeller(catalogue)))
        changed: Changed | None = None
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                changed = changed or stack.enter_context(_changed_from_now(catalogue))
                changed.clear()
                record = _intent(catalogue, number)
                if record is None:
                    return _served(catalogue, number)
                if record.state == "done":
                    return _record(catalogue, str(record.result.get("checkpoint", "")), number)
            except RetryLater as error:
                why = str(error)
                time.sleep(POLL_S)
                continue
            if record.state == "aborted":
                why = str(record.result.get("why", why))
                following = record.result.get("retried_as")
                if isinstance(following, int) and following > number:
                    number = following
                    continue
                if not record.result.get("retry"):
                    raise Reopen(f"no checkpoint was made: {why}")
            progress = teller.progress(record)
            why = progress.text if record.state == "open" else why
            if on_progress is not None:
                on_progress(progress)
            changed.wait(min(pause_s, left_s))
    raise DeadlineExceeded(
        f"no checkpoint within {deadline_s:g} s: {why} (`resilient-ps status` tells more)"
    )


def _changed_from_now(catalogue: Catalogue) -> Changed:
    """Tells of intents: to look again and again would take the interpreter from who trains here."""
    keys, deadline_s = catalogue.keys, catalogue.call_deadline_s
    now = catalogue.kv.read(keys.counter("intents"), deadline_s=deadline_s).revision
    return Changed(catalogue.kv, keys.intents, now)


class ProgressTeller:
    """Asks the coordinator, now and then, how far it is; what it does not tell is left out."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._probe: ServerProbe | None = None
        self._told: dict[str, Any] = {}
        self._ask_at_s = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def progress(self, record: IntentRecord) -> CutProgress:
        """Of the attempt, or the wish, that is open."""
        number, attempt = record.number, record.details.get("attempt", 0)
        doing = self._under_way()
        if doing.get("number") == number:
            waits_for = str(doing.get("waits_for") or "")
            text = f"{doing.get('stage')}, waits for {waits_for}" if waits_for else "publishing"
            return CutProgress(number, attempt, text, doing.get("done", 0), doing.get("total", 0))
        if record.state == "aborted":
            return CutProgress(number, attempt + 1, f"tries again: {record.result.get('why')}")
        clocks = record.details.get("clocks")
        return CutProgress(number, attempt, f"begins at {clocks}" if clocks else "asks for it")

    def _under_way(self) -> dict[str, Any]:
        if time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + ASK_EACH_S
            try:
                self._probe = self._probe or self._find()
                told = {} if self._probe is None else self._probe.ask(ASK_S, CHECKPOINTS)
                self._told = told.get("under_way") or {}
                if not told.get("elected"):
                    self.close()  # another one is, by now
            except ResilientPsError:
                self.close()
        return self._told

    def _find(self) -> ServerProbe | None:
        catalogue = self._catalogue
        return find_coordinator(catalogue.kv, catalogue.keys, catalogue.call_deadline_s)


def _intent(catalogue: Catalogue, number: int) -> IntentRecord | None:
    key = catalogue.keys.intent(number)
    items = catalogue.kv.read(key, deadline_s=catalogue.call_deadline_s).items
    return IntentRecord.from_bytes(items[0].value, key) if items else None


def _served(catalogue: Catalogue, number: int) -> CheckpointRecord:
    """The intent was closed so long ago that it is gone: a later checkpoint is what was meant."""
    for record in checkpoint_records(catalogue):
        if record.number >= number and record.state == "good":
            return record
    raise Reopen(f"the wish {number} for a checkpoint is gone: ask again")


def _record(catalogue: Catalogue, checkpoint: str, number: int) -> CheckpointRecord:
    for record in checkpoint_records(catalogue):
        if record.id == checkpoint:
            return record
    raise Reopen(f"checkpoint {checkpoint} (intent {number}) was made, and is gone already")


def delete_checkpoint(catalogue: Catalogue, checkpoint: str) -> CheckpointRecord:
    """Give a checkpoint up: nobody begins to use it any more, the coordinator deletes its objects.

    Raises `NotFound`, and `FixTheCall` for the newest good one, and for what the cluster began
    with.
    """
    keys, kv = catalogue.keys, catalogue.kv
    end_s = time.monotonic() + catalogue.call_deadline_s
    while True:
        records = checkpoint_records(catalogue)
        record = next((each for each in records if each.id == checkpoint), None)
        if record is None:
            known = ", ".join(each.id for each in records) or "none"
            raise NotFound(f"there is no checkpoint {checkpoint!r}; there are: {known}")
        if record.state == "deleting":
            return record
        newest = next((each.id for each in records if each.state == "good"), "")
        if checkpoint == newest:
            raise FixTheCall(f"{checkpoint} is the newest checkpoint: make another one first")
        key = keys.checkpoint(record.number)
        (item,) = kv.read(key, deadline_s=catalogue.call_deadline_s).items or (None,)
        restored = kv.read(keys.restore, deadline_s=catalogue.call_deadline_s).items
        _check_unused(checkpoint, restored)
        if item is not None and CheckpointRecord.from_bytes(item.value, key) == record:
            marked = replace(record, state="deleting")
            began = unchanged(keys.restore, restored[0].mod_revision if restored else 0)
            guards = (unchanged(key, item.mod_revision), began)
            if kv.txn(Txn(guards, (Put(key, marked.to_bytes()),))).succeeded:
                return marked
        if time.monotonic() > end_s:
            raise DeadlineExceeded(f"checkpoint {checkpoint} changes all the time")


def _check_unused(checkpoint: str, restored: Sequence[KeyValue]) -> None:
    for item in restored:
        if RestoreRecord.from_bytes(item.value, item.key).checkpoint == checkpoint:
            raise FixTheCall(f"{checkpoint} is what the cluster was restored from: it stays")

"""Restores of a living cluster, as an operator asks for them: back to a checkpoint, by an intent.

The coordinator carries the intent out: it chooses and verifies the checkpoint, begins the next
incarnation of the cluster, and the shards load. Every worker is told (`RolledBack`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from resilient_ps.checkpoints.wish import Wish
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.coordinator.kv import Put, Txn, absent, unchanged
from resilient_ps.coordinator.records import IntentRecord, counter_bytes, read_counter
from resilient_ps.errors import DeadlineExceeded, Reopen, RetryLater
from resilient_ps.rolled_back import restore_of
from resilient_ps.routing import routing_from

POLL_S = 0.05
_T = TypeVar("_T")

INITIAL_STATE = ""
"""As the checkpoint: go back to the very beginning, with empty tables."""


class GivenManifest(NamedTuple):
    """A checkpoint that etcd need not know: where its manifest is, and what it is."""

    name: str
    nbytes: int
    sha256: str


class Restoring(NamedTuple):
    """How far a restore has come: `led` of `shards` have begun."""

    incarnation: int
    checkpoint: str
    led: int
    shards: int
    registered: bool
    damaged: str  # why it cannot be loaded: an earlier checkpoint will be taken

    @property
    def done(self) -> bool:
        """Can the cluster be worked with?"""
        return self.registered and self.led == self.shards


OnProgress: TypeAlias = Callable[[Restoring], None]


def propose_rollback(
    catalogue: Catalogue,
    checkpoint: str = "latest",
    *,
    why: str = "an operator asked for it",
    manifest: GivenManifest | None = None,
    deadline_s: float = 60.0,
) -> IntentRecord:
    """Let the cluster go back to a checkpoint (a wish: see `Wish`), and wait until that is decided.

    `manifest`: of a checkpoint that etcd does not know. The intent's result says which
    `incarnation` has begun, from which `checkpoint`. Raises `BadInput` for a wish that is none,
    `Reopen` with the reason when it was refused, `DeadlineExceeded` when no coordinator decides.
    """
    if checkpoint != INITIAL_STATE:
        Wish.parse(checkpoint)
    details: dict[str, Any] = {"checkpoint": checkpoint, "why": why}
    if manifest is not None:
        details["manifest"] = list(manifest)
    number = _until(lambda: _propose(catalogue, details), deadline_s, "proposing a restore")
    key = catalogue.keys.intent(number)

    def decided() -> IntentRecord | None:
        items = catalogue.kv.read(key).items
        record = IntentRecord.from_bytes(items[0].value, key) if items else None
        return record if record is not None and record.state != "open" else None

    record = _until(decided, deadline_s, f"the restore from {checkpoint or 'the initial state'}")
    if record.state == "aborted":
        raise Reopen(f"nothing was restored: {record.result.get('why', 'no reason was given')}")
    return record


def wait_for_restore(
    catalogue: Catalogue,
    incarnation: int,
    deadline_s: float,
    on_progress: OnProgress | None = None,
) -> Restoring:
    """Wait until this incarnation, or a later one, can be worked with.

    A later one follows where the checkpoint turns out to be damaged. Raises `DeadlineExceeded`
    with what is missing.
    """
    last: Restoring | None = None

    def attempt() -> Restoring | None:
        nonlocal last
        last = how_far(catalogue)
        if last is not None and on_progress is not None:
            on_progress(last)
        done = last is not None and last.incarnation >= incarnation and last.done
        return last if done else None

    return _until(attempt, deadline_s, "the restore", lambda: _lack(last))


def how_far(catalogue: Catalogue) -> Restoring | None:
    """How the present incarnation has come along; None where there is no cluster."""
    keys = catalogue.keys
    items = catalogue.kv.read(keys.prefix, prefix=True).items
    routing = routing_from(items, keys)
    if routing is None:
        return None
    restore = restore_of(items, keys, routing.incarnation)
    return Restoring(
        routing.incarnation,
        "" if restore is None else restore.checkpoint,
        sum(peer is not None for peer in routing.peers),
        routing.shards,
        restore is None or restore.registered,
        "" if restore is None else restore.damaged,
    )


def _propose(catalogue: Catalogue, details: dict[str, Any]) -> int | None:
    kv, keys = catalogue.kv, catalogue.keys
    catalogue.incarnation()  # there is a cluster
    counter = keys.counter("intents")
    held = kv.read(counter).items
    number = read_counter(held[0].value if held else None, counter) + 1
    record = IntentRecord(number, "rollback", "", 0, 0, "open", {}, details)
    key = keys.intent(number)
    guards = (unchanged(counter, held[0].mod_revision if held else 0), absent(key))
    puts = (Put(counter, counter_bytes(number)), Put(key, record.to_bytes()))
    return number if kv.txn(Txn(guards, puts)).succeeded else None


def _lack(last: Restoring | None) -> str:
    if last is None:
        return "there is no such cluster"
    damaged = f"; it is damaged: {last.damaged}" if last.damaged else ""
    registered = "" if last.registered else ", tables and jobs are not registered yet"
    return (
        f"incarnation {last.incarnation} (from {last.checkpoint or 'the initial state'}): "
        f"{last.led} of {last.shards} shards have begun{registered}{damaged}"
    )


def _until(
    attempt: Callable[[], _T | None],
    deadline_s: float,
    what: str,
    lack: Callable[[], str] = lambda: "is a coordinator running? (`resilient-ps status` tells)",
) -> _T:
    """Try until it works."""
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            result = attempt()
            if result is not None:
                return result
        except RetryLater:
            if time.monotonic() >= end_s:
                raise
        if time.monotonic() >= end_s:
            raise DeadlineExceeded(f"{what} did not end within {deadline_s:g} s: {lack()}")
        time.sleep(POLL_S)

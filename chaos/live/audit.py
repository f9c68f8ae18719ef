"""What a server applies, written down as it happens: for the checker of exactly-once.

A server under audit (`RESILIENT_PS_AUDIT` names a folder) has a file of its own there. What takes
effect on a shard is one line of it, a JSON array, written unbuffered before anything is answered,
so that a killed server has lost none (but for what a full disk had no room for at that moment):

    [what, shard, incarnation, counter, lsn, job, rank, incarnation of the rank, clock, n]

`what`: "push", "replay" (a push that was there already, and is not applied again), "tick", "redo",
"fence", "join" (its clock is the rank's first), "leave", or "epoch" (the first entry of a primary).
["lost", count]: so many lines were never written.

The product knows nothing of this, and a server without it has no line of code more: `install` puts
it around those methods by which shards change, and around the functions by which plain pushes are
applied without them (`quick_replication`).
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from resilient_ps import quick_replication, quick_requests, replicas
from resilient_ps.ids import Epoch, Position, PushId, WorkerId
from resilient_ps.ledger import JobLedger
from resilient_ps.messages import (
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Entry,
    Kind,
    PartAnswer,
    Request,
)
from resilient_ps.replication.replica import Replica
from resilient_ps.shard_answers import Change
from resilient_ps.shard_state import ShardState

AUDIT_VARIABLE = "RESILIENT_PS_AUDIT"
SUFFIX = ".audit"
PENDING_BYTES_MOST = 16 << 20
RETRY_S = 0.5


class AuditFile:
    """The file of one server process. Shards are worked on in several threads."""

    def __init__(self, folder: Path, server: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{server}.{time.monotonic_ns():020d}.{os.getpid()}{SUFFIX}"
        self._file = (folder / name).open("xb", buffering=0)
        self._pending = bytearray()
        self._lost = 0
        self._retrying = False
        self._lock = threading.Lock()

    def note(self, what: str, shard: int, at: Position, *whose: int) -> None:
        """Something takes effect. A full disk is no reason to stop serving: what it has no room for
        is written later; where that becomes too much, it is told to be lost."""
        numbers = (shard, *at.epoch, at.lsn, *(whose or (0, 0, 0, 0, 0)))
        with self._lock:
            if len(self._pending) > PENDING_BYTES_MOST:
                self._lost += 1
            else:
                self._pending += f'["{what}",{",".join(map(str, numbers))}]\n'.encode()
            if not self._write() and not self._retrying:
                self._retrying = True
                threading.Thread(target=self._retry, name="audit", daemon=True).start()

    def _write(self) -> bool:
        """All of it, if there is room."""
        if self._lost and len(self._pending) <= PENDING_BYTES_MOST:
            self._pending += f'["lost",{self._lost}]\n'.encode()
            self._lost = 0
        try:
            while self._pending:
                del self._pending[: self._file.write(self._pending)]
        except OSError:
            return False
        return True

    def _retry(self) -> None:
        """Until there is room again: perhaps nothing more takes effect here."""
        while self._retrying:
            time.sleep(RETRY_S)
            with self._lock:
                self._retrying = not self._write()


class _Here(threading.local):
    """Where this thread is at work: which shard, at which entry."""

    shard = -1
    at = Position(Epoch(0, 0), 0)
    entry: Epoch | None = None  # that of the entry which is being applied


def install(file: AuditFile) -> None:
    """From now on everything that takes effect in this process is written down."""
    here = _Here()
    _watch_entries(file, here)
    for method, what in (("record_push", "push"), ("record_replay", "replay")):
        _watch_pushes(file, here, method, what)
    _watch_ranks(file, here)
    _watch_members(file, here)
    _watch_plain_pushes(file)


def _watch_entries(file: AuditFile, here: _Here) -> None:
    apply, commit, come_to = ShardState.apply, ShardState.commit, ShardState.come_to

    @functools.wraps(apply)
    def audited_apply(self: ShardState, entry: Entry) -> PartAnswer:
        here.entry = entry.at.epoch
        answer = apply(self, entry)
        here.entry = None
        if entry.command.kind is Kind.EPOCH:
            file.note("epoch", self.number, entry.at)
        return answer

    @functools.wraps(commit)
    def audited_commit(self: ShardState, change: Change, at: Position) -> PartAnswer:
        here.entry = at.epoch
        answer = commit(self, change, at)
        here.entry = None
        return answer

    @functools.wraps(come_to)
    def audited_come_to(self: ShardState, lsn: int) -> None:
        come_to(self, lsn)
        here.shard = self.number
        here.at = Position(self.epoch if here.entry is None else here.entry, lsn)

    _replace(ShardState, audited_apply, audited_commit, audited_come_to)


def _watch_pushes(file: AuditFile, here: _Here, method: str, what: str) -> None:
    original: Callable[[JobLedger, int, PushId, int], None] = getattr(JobLedger, method)

    @functools.wraps(original)
    def audited(self: JobLedger, rank: int, push: PushId, digest: int) -> None:
        original(self, rank, push, digest)
        process = self.ranks[rank].incarnation
        file.note(what, here.shard, here.at, self.spec.job, rank, process, push.clock, push.n)

    _replace(JobLedger, audited)


def _watch_ranks(file: AuditFile, here: _Here) -> None:
    tick, redo, fence = JobLedger.record_tick, JobLedger.record_redo, JobLedger.record_fence

    @functools.wraps(tick)
    def audited_tick(self: JobLedger, rank: int, clock: int, cursor: bytes) -> None:
        tick(self, rank, clock, cursor)
        process = self.ranks[rank].incarnation
        file.note("tick", here.shard, here.at, self.spec.job, rank, process, clock, 0)

    @functools.wraps(redo)
    def audited_redo(self: JobLedger, worker: WorkerId) -> None:
        redo(self, worker)
        file.note("redo", here.shard, here.at, *worker, self.ranks[worker.rank].ticked + 1, 0)

    @functools.wraps(fence)
    def audited_fence(self: JobLedger, worker: WorkerId) -> None:
        fence(self, worker)
        file.note("fence", here.shard, here.at, *worker, self.ranks[worker.rank].ticked + 1, 0)

    _replace(JobLedger, audited_tick, audited_redo, audited_fence)


def _watch_members(file: AuditFile, here: _Here) -> None:
    join, leave = JobLedger.record_join, JobLedger.record_leave

    @functools.wraps(join)
    def audited_join(self: JobLedger, number: int, rank: int, above: int = 0) -> int:
        first = join(self, number, rank, above)
        file.note("join", here.shard, here.at, self.spec.job, rank, 0, first, 0)
        return first

    @functools.wraps(leave)
    def audited_leave(self: JobLedger, number: int, rank: int) -> None:
        leave(self, number, rank)
        file.note("leave", here.shard, here.at, self.spec.job, rank, 0, 0, 0)

    _replace(JobLedger, audited_join, audited_leave)


def _watch_plain_pushes(file: AuditFile) -> None:
    """Of each shard that a message names, the first entry that waits may be applied: no other."""
    for module, name, watched in (
        (replicas, "take_entries", _audited),
        (replicas, "commit_entries", _audited),
        (quick_requests, "note_pushes", _audited_notes),
    ):
        setattr(module, name, watched(file, getattr(module, name)))
    quick_replication.METHODS = quick_replication.methods()


def _audited(file: AuditFile, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def audited(message: Append | Appended, by_number: Mapping[int, Replica], *more: Any) -> Any:
        waiting = [(by_number[p.shard], p) for p in message.parts if p.shard in by_number]
        firsts = [(replica, _first_entry(replica, part)) for replica, part in waiting]
        done = original(message, by_number, *more)
        if done is None:
            return None  # nothing has happened
        for replica, entry in firsts:
            if entry is not None and replica.log.applied >= entry.at.lsn:
                command = entry.command
                whose = *command.worker, command.clock, command.n
                file.note("push", replica.number, entry.at, *whose)
        return done

    return audited


def _audited_notes(file: AuditFile, original: Callable[..., Any]) -> Callable[..., Any]:
    """Of shards without followers: what is noted has been made, at the place that they are at."""

    @functools.wraps(original)
    def audited(request: Request, made: Sequence[tuple[Any, ...]]) -> Any:
        answer = original(request, made)
        for leading, *_ in () if answer is None else made:
            shard, whose = leading.shard, (*request.worker, request.clock, request.n)
            file.note("push", shard.number, shard.position, *whose)
        return answer

    return audited


def _first_entry(replica: Replica, part: AppendPart | AppendedPart) -> Entry | None:
    """The next one to be applied, if it is here, or comes with this part."""
    comes = part.entries if isinstance(part, AppendPart) else ()
    return next(itertools.chain(replica.log.pending(), comes), None)


def _replace(owner: type, *methods: Callable[..., Any]) -> None:
    for method in methods:
        setattr(owner, method.__name__, method)


def install_if_asked(server: str) -> None:
    """What a server process calls before it serves."""
    folder = os.environ.get(AUDIT_VARIABLE, "")
    if folder:
        install(AuditFile(Path(folder), server))

"""One copy of a shard, on one server: what it holds, and which part it plays.

Theory of operation (primary-backup with its configuration in a store of its own: Lin et al.,
"PacificA", 2008; the in-sync set is Kafka's). Roles:

    empty     nothing is held
    loading   a member from the first whose state comes from a checkpoint: to be asked again later
    learner   a state copy is being taken in, or is whole but not counted yet
    backup    an in-sync member that follows the primary: holds entries, applies committed ones
    primary   `Leading`: serves once the first entry of its epoch is committed

etcd decides who is what: the record names the in-sync set and the primary of each epoch. A replica
that sees a later epoch refuses everything earlier. Members of the in-sync set campaign when the
leader key is absent, or when it hangs on the lease of a process that is known to be dead.

A member that is loading is treated like any other that owes answers: after one member timeout the
primary goes on without it, if `min_in_sync` allows, and copies its state to it once it has served.
To wait for as long as it says that it is loading would spare that copy, but nothing is committed
without every member: a slow reader of the store would hold up all workers, for minutes. (What
has been loaded by then is thrown away; a copy within the cluster takes no longer than to load.)

Invariants: `epoch` only grows; entries are applied only up to what is committed *and* verified in
the present epoch; a member never throws its state away; one that would have to drop an applied
entry ends its process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from resilient_ps.coordinator.kv import KvAnswered, KvFailed, TxnResult
from resilient_ps.coordinator.records import Member
from resilient_ps.coordinator.standing import never_led
from resilient_ps.copying import CopyTarget
from resilient_ps.errors import BadInput
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import NO_EPOCH, NOWHERE, Epoch, Position
from resilient_ps.machine import Exit
from resilient_ps.machine import Log as LogLine
from resilient_ps.messages import (
    AppendedPart,
    AppendPart,
    Copied,
    Copy,
    Held,
    PartAnswer,
    Status,
)
from resilient_ps.replication.claims import Claim, Known, found_instead
from resilient_ps.replication.election import RETRY_NS, Candidacy
from resilient_ps.replication.holding import Holding
from resilient_ps.replication.home import Home, Out
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.log import Log, in_sequence
from resilient_ps.shard import Shard

EXIT_DIVERGED = 71
_new = tuple.__new__  # several times faster than a named tuple's own constructor

Role: TypeAlias = Literal["empty", "loading", "learner", "backup", "primary"]


class Replica(Holding):
    """See the module. `known` is what etcd is known to hold of the shard."""

    def __init__(self, number: int, home: Home) -> None:
        super().__init__(number, home)
        self.known: Known | None = None
        self.leading: Leading | None = None
        self._dead_revision = 0  # of a leader key whose process was found dead
        self._target: CopyTarget | None = None
        self._floor = 0  # records of lower revisions tell nothing of our place any more
        self._held_before = False  # state has been thrown away
        self._candidacy = Candidacy(number, home)
        self._led: Epoch = NO_EPOCH  # nobody leads twice in one epoch

    # -- what it is

    @property
    def role(self) -> Role:
        """See the module."""
        if self.leading is not None:
            return "primary"
        if self.shard is None:
            return "loading" if self.number in self.home.to_load else "empty"
        return "learner" if self._target is not None else "backup"

    @property
    def serving(self) -> Leading | None:
        """The primary's side, when it may answer (the lease is the node's matter)."""
        return self.leading if self.leading is not None and self.leading.serving else None

    @property
    def _is_member(self) -> bool:
        return self.known is not None and self.home.me in self.known.record.in_sync

    def not_owner(self, why: str) -> PartAnswer:
        """The answer for who should ask another server, naming it if it is known."""
        record = None if self.known is None else self.known.record
        if record is None or record.leader == self.home.me or record.epoch < self.epoch:
            return PartAnswer(self.number, Status.NOT_OWNER, NOWHERE, text=why.encode())
        at = Position(record.epoch, 0)
        return PartAnswer(
            self.number, Status.NOT_OWNER, at, record.primary_process, text=why.encode()
        )

    # -- what etcd says

    def on_known(self, known: Known, now_ns: int) -> list[Out]:
        """The shard's record or leader key, as the view or an answer shows it."""
        if known.revision < self._floor or self._is_void(known):
            return []
        if self.known is not None and known.revision < self.known.revision:
            return []
        self.known = known
        self._floor = known.revision
        outs: list[Out] = []
        self._candidacy.on_known(known)
        if known.record.epoch > self.epoch:
            outs += self._enter(known.record.epoch)
        outs += self._take_place()
        leading = self.leading
        if leading is not None and leading.leader_revision != known.leader_revision:
            outs += self._step_down("its leader key is gone")
        if self.leading is None:
            return outs + self._lead_or_campaign(now_ns)
        return outs + self.leading.on_known(known, now_ns)

    def _is_void(self, known: Known) -> bool:
        """Is this a record of another incarnation of the cluster?"""
        return known.record.epoch.incarnation != self.home.incarnation

    def _take_place(self) -> list[Out]:
        """Be what the record says: begin, become a backup, or throw away what is not wanted."""
        assert self.known is not None
        record = self.known.record
        if self._is_member:
            if self._target is not None and self._target.complete:
                self._target = None
                self.home.taking.pop(self.number, None)
            elif self.shard is None and self._held_before:
                why = f"shard {self.number}: named in sync after its state was thrown away"
                return [Exit(EXIT_DIVERGED, why)]
            elif self.shard is None and self.home.restores:
                self.home.to_load.add(self.number)
            elif self.shard is None:  # in sync from the first: nothing was committed without us
                self.shard = self.home.new_shard(self.number)
            return []
        self.home.to_load.discard(self.number)
        if self.home.restores and not never_led(record):  # a later state than the checkpoint's:
            self._held_before = True  # only a copy will do
        if self._target is not None and record.epoch <= self.epoch and self._is_wanted:
            return []
        return self._discard() if self.shard is not None else []

    def on_loaded(self, shard: Shard, now_ns: int) -> list[Out]:
        """What the checkpoint holds of this shard: the state before the first entry."""
        if self.number not in self.home.to_load or self.shard is not None:
            return []
        self.home.to_load.discard(self.number)
        self.shard = self.home.housed(shard)
        told = LogLine("info", "replica loaded", {"shard": self.number})
        return [told, *self._lead_or_campaign(now_ns)]

    @property
    def _is_wanted(self) -> bool:
        assert self.known is not None
        return self.home.me.server in self.known.record.desired

    def _discard(self) -> list[Out]:
        outs = self._step_down("it is not in sync any more") if self.leading is not None else []
        self.shard, self._target, self.log = None, None, Log()
        self._verified = -1
        self._held_before = True
        self.home.taking.pop(self.number, None)
        what = {"shard": self.number, "epoch": list(self.epoch)}
        return [*outs, LogLine("info", "replica dropped", what)]

    def _enter(self, epoch: Epoch) -> list[Out]:
        """A later epoch has begun."""
        outs = self._step_down("a later epoch has begun") if self.leading is not None else []
        self.epoch = epoch
        self._attempt = 0
        self._verified = -1
        return outs

    def _step_down(self, why: str) -> list[Out]:
        assert self.leading is not None
        leading, self.leading = self.leading, None
        what = {"shard": self.number, "epoch": list(leading.epoch), "why": why}
        told = LogLine("warning", "primary steps down", what)
        return [*leading.resign(self.not_owner(why)), told]

    # -- election

    def _lead_or_campaign(self, now_ns: int) -> list[Out]:
        known, home = self.known, self.home
        if known is None or self.shard is None or not home.lease:
            return []
        if self._target is not None and home.guards.members_only:
            return []
        if known.leader_revision:
            ours = known.record.leader == home.me and known.leader_lease == home.lease
            if ours and known.record.epoch >= self.epoch and known.record.epoch > self._led:
                return self._lead(now_ns)
            if known.leader_revision != self._dead_revision:
                self._candidacy.withdraw()
                return []
        if not self._is_member and home.guards.members_only:
            return []
        return [*self._candidacy.stand(known, now_ns)]

    def _lead(self, now_ns: int) -> list[Out]:
        assert self.known is not None
        assert self.shard is not None
        self.epoch = self._led = self.known.record.epoch
        self._candidacy.end()
        if self._target is not None:  # only with the rule of `members_only` switched off
            self._target = None
        if not self.home.guards.replicated_ledger:
            for job in self.shard.jobs.values():
                job.ledger.forget_pushes()
        self.leading = Leading(self.shard, self.log, self.home, self.known)
        what = {"shard": self.number, "epoch": list(self.epoch), "lsn": self.log.last}
        return [LogLine("info", "primary begins", what), *self.leading.open(now_ns)]

    def on_kv(self, claim: Claim, event: KvAnswered | KvFailed, now_ns: int) -> list[Out]:
        """What became of a claim of ours."""
        result = event.result if isinstance(event, KvAnswered) else None
        ours = self._candidacy.on_kv(claim, event, now_ns)
        if not ours and self.leading is not None and isinstance(event, KvFailed):
            self.leading.on_failed(claim, now_ns + RETRY_NS, unknown=event.unknown)
        return self._on_claimed(claim, result, now_ns) if isinstance(result, TxnResult) else []

    def _on_claimed(self, claim: Claim, result: TxnResult, now_ns: int) -> list[Out]:
        if result.succeeded:
            if self.known is None or result.revision <= self.known.revision:
                return []  # the view was faster
            known = replace(
                self.known,
                record=claim.record,
                revision=result.revision,
                version=self.known.version + 1,
            )
            if claim.record.epoch != self.known.record.epoch:
                revision, lease = result.revision, claim.lease
                known = replace(known, leader_revision=revision, leader_lease=lease)
            return self.on_known(known, now_ns)
        found = None if self.known is None else found_instead(result, self.known)
        if found is None:
            return []
        outs = self.on_known(found, now_ns)
        if self.leading is not None and found.revision == claim.over:
            self.leading.drop(claim)  # refused, and no earlier attempt has been carried out
        return outs

    # -- following

    def hold_plainly(self, part: AppendPart) -> AppendedPart | None:
        """`hold`, where the entries are the next ones of a stream; None: nothing has happened."""
        number, epoch, attempt, prev, _, entries = part
        log = self.log
        if epoch != self.epoch or attempt != self._attempt or self.leading is not None:
            return None
        if self.shard is None or self._target is not None or prev != log.end:
            return None
        if not in_sequence(prev, entries, epoch) or self.home.guards is not ALL_GUARDS:
            return None
        for entry in entries:
            log.append(entry)
        self._verified = max(self._verified, log.last)
        return _new(AppendedPart, (number, epoch, attempt, Held.HELD, self._verified))

    def hold(self, part: AppendPart) -> tuple[AppendedPart | None, list[Out]]:
        """Take entries of a primary into the log. What we answer; `due` is next."""
        if part.epoch < self.epoch and not self.home.guards.backups_fence:
            last = part.entries[-1].at.lsn if part.entries else part.prev.lsn
            return AppendedPart(self.number, part.epoch, part.attempt, Held.HELD, last), []
        refusal, outs = self._greet_epoch(part.epoch, part.attempt)
        if refusal is not None:
            return refusal, outs
        if part.attempt < self._attempt:
            return None, outs  # late, from a stream that has been given up
        if not in_sequence(part.prev, part.entries, part.epoch):
            what = {"shard": self.number, "prev": part.prev, "entries": len(part.entries)}
            return None, [*outs, LogLine("error", "entries out of order are ignored", what)]
        if self._awaits_checkpoint:
            return self._says(Held.BUSY, 0, part.attempt), outs
        target = self._target
        begun = target is None or target.complete or part.attempt == self._attempt
        if not begun or (self.shard is None and self._held_before):
            return self._says(Held.EMPTY, 0, part.attempt), outs
        self._attempt = part.attempt
        agreed = self._agreement(part)
        if agreed is not None:
            return self._says(Held.MISSING, agreed), outs
        if self.shard is None:  # a member from the first, whose view is behind
            self.shard = self.home.new_shard(self.number)
        if not self._hold(part.entries):
            return None, [*outs, self._diverged(part)]
        last = part.entries[-1].at.lsn if part.entries else part.prev.lsn
        self._verified = max(self._verified, last)
        return self._says(Held.HELD, self._verified), outs

    @property
    def _awaits_checkpoint(self) -> bool:
        """Would we be a member from the first, as far as we know, if we had our state?"""
        return self.shard is None and self.home.restores and not self._held_before

    def _greet_epoch(self, epoch: Epoch, attempt: int) -> tuple[AppendedPart | None, list[Out]]:
        """Follow a later epoch, refuse an earlier one."""
        if epoch > self.epoch:
            return None, self._enter(epoch)
        if (epoch < self.epoch or self.leading is not None) and self.home.guards.epoch_check:
            return self._says(Held.STALE, 0, attempt), []
        return None, []

    def _diverged(self, part: AppendPart) -> Out:
        why = (
            f"shard {self.number}: an applied entry behind lsn {part.prev.lsn} is not in the log "
            f"of the primary of epoch {part.epoch}: this process ends, another one gets a copy"
        )
        return Exit(EXIT_DIVERGED, why)

    def on_copy(self, piece: Copy, now_ns: int) -> tuple[AppendedPart | None, list[Out]]:
        """A piece of a state copy, and what we answer."""
        refusal, outs = self._greet_epoch(piece.epoch, piece.attempt)
        if refusal is not None:
            return refusal, outs
        if piece.what is Copied.HEAD and piece.number == 0:
            if piece.attempt <= self._attempt:
                return None, outs  # late
            return self._begin_copy(piece, outs, now_ns)
        if piece.attempt != self._attempt or self._target is None:
            return None, outs
        return self._take(piece, outs, now_ns)

    def _begin_copy(
        self, head: Copy, outs: list[Out], now_ns: int
    ) -> tuple[AppendedPart | None, list[Out]]:
        self._attempt = head.attempt
        self._floor = max(self._floor, head.revision)
        if not self.home.may_take(self.number, now_ns):
            return self._says(Held.BUSY, 0), outs
        self.home.to_load.discard(self.number)
        try:
            target = CopyTarget(head, self.home.shards, self.home.guards)
        except BadInput as error:
            return self._give_up(error, outs)
        self.home.taking[self.number] = now_ns
        self._target, self.shard = target, self.home.housed(target.shard)
        self.log = Log(head.lsn, target.epochs)
        self._verified = head.lsn
        return self._says(Held.COPIED, 0), outs

    def _take(
        self, piece: Copy, outs: list[Out], now_ns: int
    ) -> tuple[AppendedPart | None, list[Out]]:
        assert self._target is not None
        self.home.taking[self.number] = now_ns
        self._apply_to(piece.lsn)
        try:
            if self.log.applied != piece.lsn:
                have = self.log.applied
                raise BadInput(f"piece {piece.number} of lsn {piece.lsn}: {have} is held")
            self._target.take(piece)
        except BadInput as error:
            return self._give_up(error, outs)
        if self._target.complete:
            self.home.taking.pop(self.number, None)
        return self._says(Held.COPIED, piece.number), outs

    def _give_up(self, error: BadInput, outs: list[Out]) -> tuple[AppendedPart | None, list[Out]]:
        why = LogLine("error", "copy given up", {"shard": self.number, "why": str(error)})
        return self._says(Held.EMPTY, 0), [*outs, *self._discard(), why]

    # -- the primary's side

    def on_appended(self, member: Member, part: AppendedPart, now_ns: int) -> list[Out]:
        """What a follower says."""
        if part.epoch > self.epoch:
            return self._enter(part.epoch)
        if self.leading is None or part.epoch != self.leading.epoch:
            return []
        return self.leading.on_appended(member, part, now_ns)

    def on_lost(self, server: str, now_ns: int) -> None:
        """The connection to a server broke."""
        if self.leading is not None:
            self.leading.on_lost(server, now_ns)

    def on_timer(self, now_ns: int) -> list[Out]:
        """Regularly, and when the node's registration or another server's has changed."""
        outs: list[Out] = []
        if self.leading is not None and self.leading.lease != self.home.lease:
            outs = self._step_down("its lease is lost")
        if self.leading is None:
            return outs + self._lead_or_campaign(now_ns)
        return self.leading.on_timer(now_ns)

    def on_dead(self, lease: int, now_ns: int) -> list[Out]:
        """The process that holds this lease was found dead: do not wait for the lease to end."""
        if self.known is None or not self.follows(lease):
            return []
        self._dead_revision = self.known.leader_revision
        return self._lead_or_campaign(now_ns)

    def follows(self, lease: int) -> bool:
        """Does the leader key of our shard hang on this lease, which is another process's?"""
        known = self.known
        return self.leading is None and known is not None and known.leader_lease == lease

    @property
    def at_rest(self) -> bool:
        """Is there nothing that only time brings forward?"""
        if self.leading is not None:
            return self.leading.at_rest
        return self._candidacy.at_rest

    @property
    def is_last(self) -> bool:
        """Does nobody else hold what we do?"""
        return self.leading is not None and len(self.leading.known.record.in_sync) == 1

    @property
    def must_hand_over(self) -> bool:
        """Are we primary, with another server that could be, now or after a copy?"""
        if self.leading is None:
            return False
        record = self.leading.known.record
        fit = {m.server for m in self.home.leases if m not in self.home.leaving} - {
            self.home.me.server
        }
        return not fit.isdisjoint({m.server for m in record.in_sync} | set(record.desired))

    def status(self) -> dict[str, object]:
        """One line of `resilient-ps status`."""
        told: dict[str, object] = {
            "shard": self.number,
            "role": self.role,
            "epoch": list(self.epoch),
            "lsn": self.log.applied,
            "last": self.log.last,
        }
        if self.shard is not None:
            told["waiting"] = len(self.shard.waiting)
        if self.leading is not None:
            told |= self.leading.status()
        return told

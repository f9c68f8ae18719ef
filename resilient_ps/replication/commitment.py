"""A primary's writes: appended, sent to the followers, committed when all who must hold them do.

An entry is committed once every member that the in-sync set may have holds it: the set that etcd is
known to hold, and while a change of ours is under way the other one too. Committed entries are
applied and answered in the order of the log. While nothing is pending, the primary asks the state
first what a write would do (`ShardState.prepare`); what that gives still holds when the entry is
the next to be applied, because nothing but the log changes the state.

Invariants: `opened <= commit` whenever anything has been committed here; `applied <= commit`;
nothing is answered before it is applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from resilient_ps.coordinator.records import Member
from resilient_ps.ids import Position
from resilient_ps.messages import Command, Entry, Kind, PartAnswer, Status
from resilient_ps.plain_push import PlainPush
from resilient_ps.quota_admission import about_used, refusal, with_use
from resilient_ps.replication.applying import Due, apply_all
from resilient_ps.replication.claims import Claim, Known
from resilient_ps.replication.home import Home, Out
from resilient_ps.replication.imagers import with_imager
from resilient_ps.replication.log import Log
from resilient_ps.replication.streams import Streams
from resilient_ps.shard import Change, Reply, Shard, moves_clocks
from resilient_ps.waiting import Origin

PARKED_MAX = 10_000  # writes that wait for the end of a hand-over
_new = tuple.__new__  # several times faster than a named tuple's own constructor


class Commitment(Streams):
    """See the module."""

    def __init__(self, shard: Shard, log: Log, home: Home, known: Known) -> None:
        super().__init__(shard, log, home, known)
        self.claim: Claim | None = None
        self.heir: Member | None = None
        self.lack = ""  # why nothing can be committed at the moment
        self._members: frozenset[Member] = frozenset()
        self._members_of: object = None  # what `_members` was made of
        self._origins: dict[int, Origin] = {}
        self._early: dict[int, PartAnswer] = {}  # see `_apply_early`
        self._parked: list[Origin] = []  # writes that are to go to the heir
        self._quota_at = 0  # the lsn of the last QUOTA
        self._prepared: tuple[int, Change | PlainPush | None] = (0, None)  # the lsn that it is of

    # -- writes

    def write(self, command: Command, origin: Origin, now_ns: int) -> list[Out]:
        """Answer at once what needs no entry, else append it."""
        if self.heir is not None:
            return self._park(origin)
        if self.lack or len(self.known.record.in_sync) < self.home.min_in_sync:
            return [Reply(origin, self._not_now(self.lack or "too few servers hold it"))]
        if command.kind is Kind.CUT:
            command = with_imager(command, self.known.record.in_sync, self.home, self.number)
        elif command.kind is Kind.QUOTA:
            command = with_use(self.shard, self.log, command)
        if not len(self.log):
            prepared = self.shard.prepare(command)
            if isinstance(prepared, PartAnswer):
                return [Reply(origin, prepared)]
            if (no := self._beyond_quota(command)) is not None:
                return [Reply(origin, no)]
            if not self.followers:  # alone: nothing to wait for, and no second look
                at = Position(self.epoch, self.log.last + 1)
                self.log.append(Entry(at, command))
                self.log.take()
                self.commit = at.lsn
                return self._after(
                    [command.kind], [Reply(origin, self.shard.commit(prepared, at))], now_ns
                )
            self._prepared = self.log.last + 1, prepared
        elif self.log.nbytes > self.home.pending_bytes_max:
            return [Reply(origin, self._not_now("too much waits for the backups"))]
        elif (no := self._beyond_quota(command)) is not None:
            return [Reply(origin, no)]
        elif not self.home.guards.repeat_after_commit and self._pends(command):
            return [
                Reply(origin, PartAnswer(self.number, Status.OK, self.shard.position, command.n))
            ]
        return self._append(command, origin, now_ns)

    @property
    def commits_alone(self) -> bool:
        """Would a write be committed as soon as it is made, with nothing before it?"""
        if self.followers or self.heir is not None or self.lack or len(self.log):
            return False
        return self.serving and len(self.known.record.in_sync) >= self.home.min_in_sync

    def pass_over(self) -> int:
        """Such a write has been made without an entry: the lsn that it would have had."""
        self.commit = self.log.pass_over(self.epoch)
        return self.commit

    @property
    def appends_plainly(self) -> bool:
        """Would a push become an entry that is sent to others in sync, whatever it does?"""
        log, in_sync = self.log, len(self.known.record.in_sync)
        if in_sync < 2 or in_sync < self.home.min_in_sync:
            return False
        if self.heir is not None or self.lack or self.shard.quotas or log.applied < self._quota_at:
            return False
        return not log.nbytes or log.nbytes <= self.home.pending_bytes_max

    def append_plainly(
        self, command: Command, prepared: PlainPush | None, origin: Origin, now_ns: int
    ) -> list[Out]:
        """Such an entry. `prepared`: what it does, if nothing is pending before it."""
        if prepared is not None:
            self._prepared = self.log.last + 1, prepared
        return self._enter(command, origin, now_ns)

    def _enter(self, command: Command, origin: Origin | None, now_ns: int) -> list[Out]:
        """An entry, for the log and for all followers."""
        log = self.log
        prev, lsn = log.end, log.last + 1
        entry = _new(Entry, (_new(Position, (self.epoch, lsn)), command))
        log.append(entry)
        if origin is not None:
            self._origins[lsn] = origin
        outs: list[Out] = []
        for follower in self.followers.values():
            if follower.sent == prev.lsn and not follower.resend:
                outs += self._send_one(follower, prev, entry, now_ns)
            else:
                outs += self._send(follower, now_ns)
        return outs

    def _append(self, command: Command, origin: Origin | None, now_ns: int) -> list[Out]:
        outs = self._enter(command, origin, now_ns)
        if command.kind is Kind.QUOTA:
            self._quota_at = self.log.last
        if not self.home.guards.apply_after_commit:
            self._apply_early()
        return outs + self.advance(now_ns)

    def _apply_early(self) -> None:
        """With that rule switched off: what is not committed can be read."""
        while self.serving and len(self.log):
            entry = self.log.take()
            self._early[entry.at.lsn] = self.shard.apply(entry)

    def _beyond_quota(self, command: Command) -> PartAnswer | None:
        """Why a write has to wait, or is refused, because of quotas."""
        begins = self.log.applied < self._quota_at
        if not (begins or self.shard.quotas) or not self.home.guards.quota_admission:
            return None
        return refusal(self.shard, self.log, command, begins=begins)

    def use(self) -> PartAnswer:
        """How far quotas are used up here; `value`: of which round they are."""
        told = json.dumps(about_used(self.shard, self.log)).encode()
        round_ = self.shard.quotas.round
        return PartAnswer(self.number, Status.OK, self.shard.position, round_, text=told)

    def _pends(self, command: Command) -> bool:
        """Is the same push under way already?"""
        same = (command.worker, command.clock, command.n)
        return any(
            (e.command.worker, e.command.clock, e.command.n) == same for e in self.log.pending()
        )

    def _park(self, origin: Origin) -> list[Out]:
        """Sent to the heir when it leads: that is quicker than to be turned away till then."""
        if len(self._parked) < PARKED_MAX:
            self._parked.append(origin)
            return []
        return [Reply(origin, self._not_now("the shard is being handed over"))]

    def _unpark(self) -> list[Out]:
        """There is no heir any more: come again."""
        if self.heir is not None:
            return []
        parked, self._parked = self._parked, []
        return [Reply(origin, self._not_now("it was not handed over")) for origin in parked]

    def _not_now(self, why: str) -> PartAnswer:
        return PartAnswer(self.number, Status.BUSY, self.shard.position, text=why.encode())

    # -- commitment

    def members(self) -> frozenset[Member]:
        """All others that are in sync, or may be."""
        made_of = (self.known.record.in_sync, self.claim)
        if self._members_of != made_of:
            self._members_of = made_of
            members = set(self.known.record.in_sync)
            if self.claim is not None and self.home.guards.count_before_growth:
                members |= set(self.claim.record.in_sync)
            self._members = frozenset(members - {self.home.me})
        return self._members

    def held_by_all(self) -> int:
        """The last entry that all hold who must, besides us, before it is committed."""
        lsn = self.log.last
        for member in self.members():
            follower = self.followers.get(member)
            lsn = min(lsn, -1 if follower is None else follower.match)
        for follower in self.followers.values():
            if follower.joining:
                lsn = min(lsn, follower.match)
        return lsn

    def advance(self, now_ns: int) -> list[Out]:
        """Commit what all needed members hold; apply and answer it."""
        due = self.commit_held()
        if due is None:
            return []
        apply_all([due])
        return self.answered(due, now_ns)

    def commit_held(self) -> Due | None:
        """Commit what all needed members hold: to be applied, and then `answered`."""
        commit = self.log.last
        if commit > self.commit and self.home.guards.wait_for_backups:
            commit = self.held_by_all()
        if commit < self.opened or commit <= self.commit:
            return None
        self.commit = commit
        if self.shard.epoch != self.epoch:
            self.shard.serve_in(self.epoch)
        lsn, prepared = self._prepared
        if lsn != self.log.applied + 1:  # else nothing has changed since
            prepared = None
        return Due(self.shard, self.log.take_to(commit), prepared, [])

    def answered(self, due: Due, now_ns: int) -> list[Out]:
        """What was due is applied: those who wait for it are told."""
        replies: list[Reply] = []
        for lsn in sorted(self._early) if self._early else ():
            if lsn <= self.commit and lsn in self._origins:
                replies.append(Reply(self._origins.pop(lsn), self._early.pop(lsn)))
        for entry, answer in zip(due.entries, due.answers, strict=True):
            origin = self._origins.pop(entry.at.lsn, None)
            if origin is not None:
                replies.append(_new(Reply, (origin, answer, None)))
        if not self.shard.waiting:
            return [*replies]
        return self._after([entry.command.kind for entry in due.entries], replies, now_ns)

    def _after(self, kinds: Iterable[Kind], replies: list[Reply], now_ns: int) -> list[Out]:
        outs: list[Out] = [*replies]
        if self.shard.waiting and any(moves_clocks(kind) for kind in kinds):
            outs += self.shard.release(now_ns)
        return outs

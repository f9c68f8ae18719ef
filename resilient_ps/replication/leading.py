"""A primary: who holds its entries, what is committed, and who is to be in sync.

Theory of operation. How writes are committed stands in `commitment`. The first entry of a primary
is `EPOCH`; older entries that it inherited are committed with it, not before.

A change of the in-sync set is a claim (`claims`): one at a time, repeated until its outcome is
known. A member that is gone, about to end, silent or empty is left out; a learner is counted in
from the moment at which the claim is *sent*; who is not desired is left out once all desired are in
sync; and when another one is the first of the desired, or this server stops, the shard is handed
over: nothing new is begun, what is pending is finished, and the heir's epoch begins.
"""

from __future__ import annotations

from resilient_ps.coordinator.records import Member
from resilient_ps.messages import AppendedPart, Command, Held, Kind, PartAnswer
from resilient_ps.replication import claims
from resilient_ps.replication.claims import Claim, Known
from resilient_ps.replication.commitment import Commitment
from resilient_ps.replication.followers import Follower
from resilient_ps.replication.home import Home, Out
from resilient_ps.replication.log import Log
from resilient_ps.shard import Reply, Shard

HAND_OVER_NS = 2_000_000_000
JOIN_NS = 1_000_000_000
JOIN_ENTRIES = 1_024


class Leading(Commitment):
    """The primary's side of a replica. It shares `shard` and `log` with it."""

    def __init__(self, shard: Shard, log: Log, home: Home, known: Known) -> None:
        super().__init__(shard, log, home, known)
        self.lease = home.lease
        self.leader_revision = known.leader_revision
        self._asked = False  # the claim's call to etcd is under way
        self._again_ns = 0
        self._heir_since_ns = 0
        self._heir_again_ns = 0

    def open(self, now_ns: int) -> list[Out]:
        """Begin: append the first entry of the epoch."""
        self.home.primaries.add(self.number)
        self._refresh_followers(self.members())
        return self._append(Command(Kind.EPOCH), None, now_ns)

    def resign(self, answer: PartAnswer) -> list[Out]:
        """No primary any more: whoever waits is sent elsewhere. What is pending is unknown."""
        self.home.sending.discard(self.number)
        self.home.primaries.discard(self.number)
        origins = [*self._origins.values(), *self._parked]
        origins += [pull.origin for pull in self.shard.waiting.take_all()]
        self._origins.clear()
        self._parked.clear()
        return [Reply(origin, answer) for origin in origins]

    # -- the stream to a follower

    def on_appended(self, member: Member, part: AppendedPart, now_ns: int) -> list[Out]:
        """What a replica says of what it holds."""
        follower = self.followers.get(member)
        if follower is None or part.attempt != follower.attempt:
            return []
        match part.held:
            case Held.HELD:
                follower.heard(part.lsn, now_ns)
                if follower.counted and self.heir is None:
                    return self.advance(now_ns)  # the timer sees to the in-sync set
                return self._on_progress(now_ns)
            case Held.COPIED:
                follower.taken = max(follower.taken, part.lsn)
                follower.heard(-1, now_ns)
                if follower.copying and self._copy_ended(follower):
                    return self._on_progress(now_ns)
                return self._continue_copy(follower, now_ns)
            case Held.MISSING if follower.whole:
                outs = self._go_back(follower, part.lsn, now_ns)
                return self._on_empty(follower, now_ns) if outs is None else outs
            case Held.BUSY if follower.counted:  # it waits for its part of a checkpoint
                self._begin_stream(follower, max(follower.match, self.log.applied))
                follower.resend = True
                return []
            case Held.BUSY | Held.EMPTY | Held.MISSING:
                return self._on_empty(follower, now_ns)
        return []

    def hears(self, member: Member, part: AppendedPart, now_ns: int) -> bool:
        """The most frequent case of `on_appended`, without its end: `commit_held` is next."""
        follower = self.followers.get(member)
        if follower is None or part.attempt != follower.attempt or part.held is not Held.HELD:
            return False
        if part.epoch != self.epoch or not follower.counted or self.heir is not None:
            return False
        follower.heard(part.lsn, now_ns)
        return True

    def _on_empty(self, follower: Follower, now_ns: int) -> list[Out]:
        """Only a copy helps: at once for a learner, for a member when it has been left out."""
        if follower.counted:
            follower.lost = True
            return self.reconcile(now_ns)
        self._restart(follower, now_ns)
        return []

    def _on_progress(self, now_ns: int) -> list[Out]:
        return [*self.advance(now_ns), *self.reconcile(now_ns)]

    # -- the in-sync set

    def on_timer(self, now_ns: int) -> list[Out]:
        """Repeat what got lost, tell the commit point, see who is late."""
        outs: list[Out] = []
        for follower in self.followers.values():
            if follower.resend or 0 <= follower.sent < self.log.last:
                outs += self._resend(follower, now_ns)
            elif follower.sent >= 0 and follower.told < self.commit:
                outs += self._part(follower, ())
            if not follower.whole and follower.late_ns(now_ns) > self.home.member_timeout_ns:
                self._restart(follower, now_ns)
            if follower.joining and follower.late_ns(now_ns) > JOIN_NS:
                follower.joining = False
        outs += self.reconcile(now_ns)
        outs += self._unpark()
        return outs + self.advance(now_ns)  # fewer may be waited for now

    @property
    def at_rest(self) -> bool:
        """Is there nothing that only time brings forward?"""
        if self.claim is not None or self.heir is not None or len(self.log) or self._parked:
            return False
        if self.lack:  # it ends without a change of the record when a member is heard again
            return False
        for f in self.followers.values():
            if not f.counted or f.resend or f.since_ns or f.told < self.commit:
                return False
        record, home = self.known.record, self.home
        wished = {name for name in record.desired if home.staying(name) is not None}
        if {member.server for member in record.in_sync} != wished:
            return False
        return record.desired[:1] == (home.me.server,) or record.desired[0] not in wished

    def reconcile(self, now_ns: int) -> list[Out]:
        """Bring the in-sync set closer to what is desired, one claim at a time."""
        self._refresh_followers(self.members())
        if self._is_as_desired(now_ns):
            self.lack = ""
            return []
        outs = self._learn(self.members(), now_ns)
        self._join(now_ns)
        outs += self._tell_lack(now_ns)
        if self.claim is not None:
            if self.heir is not None and self._is_late(now_ns):
                self._give_up_heir(now_ns)  # both may write what the other one holds too
            return outs + self._ask(now_ns)
        wanted = self._wanted(now_ns)
        if set(wanted) != set(self.known.record.in_sync):
            nonce = self.home.nonce()
            return outs + self._begin(
                claims.change(self.home.keys, self.known, wanted, nonce), now_ns
            )
        return outs + self._hand_over(now_ns)

    def _is_as_desired(self, now_ns: int) -> bool:
        """Is there nothing to be changed now, as mostly? Then nobody is late, or is to leave, and
        who is missing has to wait."""
        home, record = self.home, self.known.record
        in_sync, desired = record.in_sync, record.desired
        if self.claim is not None or self.heir is not None or home.stopping:
            return False
        if len(in_sync) < home.min_in_sync or desired[:1] != (home.me.server,):
            return False
        missing = set(desired).difference([member.server for member in in_sync])
        if len(in_sync) + len(missing) != len(desired):
            return False
        if home.leaving and not home.leaving.isdisjoint(in_sync):
            return False
        for follower in self.followers.values():
            if not follower.counted and not self._has_to_wait(follower, now_ns):
                return False
        if missing and not all(self._is_known(home.staying(name)) for name in missing):
            return False
        return not any(m != home.me and self._is_gone(m, now_ns) for m in in_sync)

    def _is_known(self, member: Member | None) -> bool:
        """Is it a follower, if it is there at all?"""
        return member is None or member in self.followers

    def _tell_lack(self, now_ns: int) -> list[Out]:
        """Where too few live for anything to be committed: those who wait are to know why."""
        in_sync, least = self.known.record.in_sync, self.home.min_in_sync
        gone = [m.server for m in in_sync if m != self.home.me and self._is_gone(m, now_ns)]
        if len(in_sync) - len(gone) >= least:
            self.lack = ""
            return []
        waits = f", and waits for {', '.join(gone)}" if gone else ""
        self.lack = f"too few servers hold it: {len(in_sync) - len(gone)} of {least}{waits}"
        origins, self._origins = self._origins, {}
        return [Reply(origin, self._not_now(self.lack)) for origin in origins.values()]

    def _join(self, now_ns: int) -> None:
        """Wait for learners that hold nearly everything: a primary that is alone commits at once,
        so that under load they would never hold all that is committed."""
        if not self.home.guards.count_before_growth:
            return
        near = max(self.opened, self.log.last - JOIN_ENTRIES)
        for follower in self.followers.values():
            if follower.whole and not follower.counted and not follower.joining:
                is_late = follower.resend or follower.late_ns(now_ns) > JOIN_NS
                follower.joining = follower.match >= near and not is_late

    def _wanted(self, now_ns: int) -> tuple[Member, ...]:
        """The in-sync set as it should be next: the present one if it cannot be changed now."""
        record, me = self.known.record, self.home.me
        ending = set() if me in self.home.leaving or self.home.stopping else self.home.leaving
        staying = [m for m in record.in_sync if m not in ending]
        kept = [m for m in staying if m == me or not self._is_gone(m, now_ns)]
        kept += [member for member, f in sorted(self.followers.items()) if self._is_ready(f)]
        if self.serving and {member.server for member in kept} >= set(record.desired):
            kept = [m for m in kept if m == me or m.server in record.desired]
        if len(kept) < min(self.home.min_in_sync, len(record.in_sync)):
            return record.in_sync  # then all entries wait
        return tuple(kept)

    def _is_gone(self, member: Member, now_ns: int) -> bool:
        """Is this in-sync member without a lease, silent, or empty?"""
        if member not in self.home.leases or member in self.home.refused:
            return True
        follower = self.followers[member]
        return follower.lost or follower.late_ns(now_ns) > self.home.member_timeout_ns

    def _is_ready(self, follower: Follower) -> bool:
        """Does this learner hold everything: the inherited log, and what is committed?"""
        return (
            follower.whole
            and follower.member not in self.known.record.in_sync
            and follower.match >= max(self.commit, self.opened)
            and follower.member in self.home.leases
        )

    def _hand_over(self, now_ns: int) -> list[Out]:
        if self.heir is None:
            self.heir = self._find_heir(now_ns)
            self._heir_since_ns = now_ns
        heir = self.heir
        if heir is None:
            return []
        follower = self.followers.get(heir)
        lease = self.home.leases.get(heir)
        if follower is None or lease is None or self._is_late(now_ns):
            self._give_up_heir(now_ns)
            return []
        if len(self.log) or follower.match < self.log.last:
            return []
        nonce = self.home.nonce()
        claim = claims.hand_over(self.home.keys, self.known, heir, lease, nonce)
        return self._begin(claim, now_ns)

    def _is_late(self, now_ns: int) -> bool:
        return now_ns - self._heir_since_ns > HAND_OVER_NS

    def _give_up_heir(self, now_ns: int) -> None:
        """Go on writing. A claim under way may still come true: the heir is in sync either way."""
        self.heir = None
        self._heir_again_ns = now_ns + HAND_OVER_NS

    def _find_heir(self, now_ns: int) -> Member | None:
        """The in-sync member that should be primary in our place."""
        record, me = self.known.record, self.home.me
        if not self.serving or now_ns < self._heir_again_ns:
            return None
        first = record.desired[0] if record.desired else ""
        if first == me.server and not self.home.stopping:
            return None
        fit = self.home.leases.keys() - self.home.leaving - {me}
        others = {member.server: member for member in record.in_sync if member in fit}
        if self.home.stopping:
            names = [*record.desired, *sorted(others)]
            return next((others[name] for name in names if name in others), None)
        return others.get(first)

    # -- claims

    def _begin(self, claim: Claim, now_ns: int) -> list[Out]:
        self.claim = claim
        self._asked = False
        self._refresh_followers(self.members())
        return self._ask(now_ns)

    def _ask(self, now_ns: int) -> list[Out]:
        """Send the claim, again if nothing is known of it."""
        if self._asked or self.claim is None or now_ns < self._again_ns:
            return []
        self._asked = True
        return [self.home.ask(self.number, self.claim)]

    def on_failed(self, claim: Claim, again_ns: int, *, unknown: bool) -> None:
        """The call has failed: the claim is sent again until its outcome is known.

        A hand-over whose heir has lost its lease cannot succeed. It may be dropped: both sets that
        it could leave in etcd are the same.
        """
        if claim is not self.claim:
            return
        self._asked, self._again_ns = False, again_ns
        if claim.record.epoch != self.epoch and not unknown:
            self._heir_again_ns = again_ns
            self.drop(claim)

    def drop(self, claim: Claim) -> None:
        """This claim has not been carried out, and will not be."""
        if claim is self.claim:
            self.claim, self.heir, self._asked = None, None, False

    def on_known(self, known: Known, now_ns: int) -> list[Out]:
        """etcd holds this now, and we are still the primary. A claim over less is settled by it."""
        if known.version > self.known.version + 1:
            self._forget_learners()
        self.known = known
        if self.claim is not None and known.revision > self.claim.over:
            self.claim = None
            self._asked = False
            self.heir = None
        self._refresh_followers(self.members())
        return [*self.advance(now_ns), *self.reconcile(now_ns)]

    def status(self) -> dict[str, object]:
        """For `resilient-ps status`."""
        in_sync = set(self.known.record.in_sync)
        return {
            "followers": [
                {
                    "server": member.server,
                    "in_sync": f.member in in_sync,
                    "lsn": max(f.match, 0),
                    "copied_bytes": f.copied_bytes,
                    "copying": f.copying,
                }
                for member, f in sorted(self.followers.items())
            ],
        }

"""The streams of a primary's log to its followers, and the state copies that learners get first.

Each follower is sent one ordered stream (`Follower`): all entries from the point on at which its
log agrees with ours, or a copy with the entries between its pieces. A stream begins anew, under
another `attempt`, when its connection broke, and when the follower says that it lacks what the
stream follows: then further back, but never before what is applied, for that is not in the log any
more.
"""

from __future__ import annotations

from resilient_ps.coordinator.records import Member
from resilient_ps.copying import CopySource
from resilient_ps.ids import Position
from resilient_ps.machine import Log as LogLine
from resilient_ps.messages import AppendPart, Copied, Entry
from resilient_ps.replication.claims import Known
from resilient_ps.replication.followers import PIECES_UNDER_WAY, Follower
from resilient_ps.replication.home import COPIES_MAX, Home, Out, ToServer
from resilient_ps.replication.log import Log
from resilient_ps.shard import Shard

COPY_PAUSE_NS = 1_000_000_000
SECOND_NS = 10**9
_new = tuple.__new__  # several times faster than a named tuple's own constructor


class Streams:
    """See the module. `commit` is what followers are told; `opened` our epoch's first entry."""

    def __init__(self, shard: Shard, log: Log, home: Home, known: Known) -> None:
        self.number = shard.number
        self.epoch = known.record.epoch
        self.known = known
        self.shard = shard
        self.log = log
        self.home = home
        self.opened = log.last + 1
        self.commit = log.applied
        self.followers: dict[Member, Follower] = {}
        self._attempts = 0
        self._next_piece_ns = 0

    @property
    def serving(self) -> bool:
        """Has this epoch's first entry been committed?"""
        return self.commit >= self.opened

    def _refresh_followers(self, members: frozenset[Member]) -> None:
        """One follower for each member; none for those that are neither that nor desired."""
        for member in sorted(members):
            if member not in self.followers:
                self.followers[member] = Follower(member)
                self._begin_stream(self.followers[member], self.opened - 1)
            self.followers[member].counted = True
        desired = self.known.record.desired
        for member, follower in list(self.followers.items()):
            if member in members:
                continue
            if member.server not in desired or member not in self.home.leases:
                self._stop_copy(follower)
                del self.followers[member]
            elif follower.counted:  # left out: it may have thrown away what it held
                follower.begin_again(0)

    def _begin_stream(self, follower: Follower, lsn: int) -> None:
        """What it is sent begins behind `lsn`; what it says of earlier streams counts no more."""
        self._attempts += 1
        follower.attempt = self._attempts
        follower.base = follower.sent = lsn

    def _send(self, follower: Follower, now_ns: int) -> list[Out]:
        """Everything that it has not been sent."""
        if follower.resend or follower.sent < 0 or follower.sent >= self.log.last:
            return []
        follower.sent = max(follower.sent, self.log.applied)
        entries = self.log.after(follower.sent)
        outs = self._part(follower, entries)
        if outs:
            follower.sent = self.log.last
            follower.owes(now_ns)
        return outs

    def _send_one(self, follower: Follower, prev: Position, entry: Entry, now_ns: int) -> list[Out]:
        """`_send`, where it lacks this one entry only."""
        if follower.member not in self.home.leases:
            return []
        follower.told, follower.sent = self.commit, entry.at.lsn
        follower.owes(now_ns)
        about = self.number, self.epoch, follower.attempt, prev, self.commit, (entry,)
        return [_new(ToServer, (follower.member.server, _new(AppendPart, about)))]

    def _part(self, follower: Follower, entries: tuple[Entry, ...]) -> list[Out]:
        prev = self.log.place(follower.sent)
        if prev is None or follower.member not in self.home.leases:
            return []  # another process may listen there under its name
        follower.told = self.commit
        part = AppendPart(self.number, self.epoch, follower.attempt, prev, self.commit, entries)
        return [ToServer(follower.member.server, part)]

    def _go_back(self, follower: Follower, lsn: int, now_ns: int) -> list[Out] | None:
        """Its log does not hold what the stream begins behind: an earlier beginning. None: there
        is none, it lacks what every in-sync member holds."""
        earlier = max(lsn, self.log.applied)
        if earlier >= follower.base:
            return None
        self._begin_stream(follower, earlier)
        return self._resend(follower, now_ns)

    def _resend(self, follower: Follower, now_ns: int) -> list[Out]:
        """From `sent` on, or a question whether it holds that. While it has no lease nothing is
        sent, and it is tried again: it may have to stay in sync, and come back."""
        follower.resend = False
        if follower.sent < self.log.last:
            return self._send(follower, now_ns)
        outs = self._part(follower, ())
        if outs:
            follower.owes(now_ns)
        follower.resend = not outs
        return outs

    def on_lost(self, server: str, now_ns: int) -> None:
        """The connection to a server broke: its stream begins anew at the next timer."""
        for member, follower in self.followers.items():
            if member.server != server:
                continue
            if follower.whole and follower.sent >= 0:
                self._begin_stream(follower, max(follower.match, self.log.applied))
                follower.resend, follower.joining = True, False
            else:
                self._restart(follower, now_ns)

    # -- state copies

    def _restart(self, follower: Follower, now_ns: int) -> None:
        """A learner's copy begins anew, after a pause."""
        self._stop_copy(follower)
        follower.begin_again(now_ns + COPY_PAUSE_NS)

    def _forget_learners(self) -> None:
        """Records were written that we have not seen: a learner that saw one in which it was not
        desired has thrown its state away, whatever it said before."""
        for follower in self.followers.values():
            if not follower.counted:
                self._stop_copy(follower)
                follower.begin_again(0)

    def _stop_copy(self, follower: Follower) -> None:
        if follower.copying:
            self.home.sending.discard(self.number)

    def _learn(self, members: frozenset[Member], now_ns: int) -> list[Out]:
        """Begin copies to desired servers that are not in sync, and go on with those under way."""
        outs: list[Out] = []
        if self.home.stopping and members:
            return outs  # there is an heir
        for server in self.known.record.desired:
            member = self.home.staying(server)
            if member is None or member == self.home.me or member in members:
                continue
            follower = self.followers.get(member)
            if follower is None:
                follower = self.followers[member] = Follower(member, whole=False)
            if follower.copying:
                outs += self._continue_copy(follower, now_ns)
            elif not follower.whole and now_ns >= follower.paused_until_ns:
                outs += self._begin_copy(follower, now_ns)
        return outs

    def _has_to_wait(self, follower: Follower, now_ns: int) -> bool:
        """Is it a learner for which it is not time, or no room, to begin a copy?"""
        if follower.whole or follower.copying:
            return False
        full = len(self.home.sending) >= COPIES_MAX and self.number in self.home.to_send
        return full or now_ns < follower.paused_until_ns

    def _begin_copy(self, follower: Follower, now_ns: int) -> list[Out]:
        if len(self.home.sending) >= COPIES_MAX:
            self.home.to_send.add(self.number)
            return []
        self.home.to_send.discard(self.number)
        self.home.sending.add(self.number)
        self._begin_stream(follower, self.log.applied)
        follower.copy = CopySource(self.shard, self.epoch, follower.attempt, self.log.epochs)
        pieces = follower.copy.first_pieces()
        pieces[0].revision = self.known.revision
        follower.pieces = len(pieces)
        follower.owes(now_ns)
        what = {"shard": self.number, "to": follower.member.server, "lsn": self.log.applied}
        outs: list[Out] = [LogLine("info", "copy begins", what)]
        outs += [ToServer(follower.member.server, piece) for piece in pieces]
        return outs + self._send(follower, now_ns)

    def _continue_copy(self, follower: Follower, now_ns: int) -> list[Out]:
        outs: list[Out] = []
        source = follower.copy
        while (
            source is not None
            and follower.pieces - follower.taken <= PIECES_UNDER_WAY
            and now_ns >= self._next_piece_ns
        ):
            piece = source.next_piece()
            if piece is None:
                break
            follower.pieces += 1
            nbytes = piece.keys.nbytes + piece.values.nbytes
            follower.copied_bytes += nbytes
            self.home.copied_bytes += nbytes
            follower.ends = piece.what is Copied.END
            follower.owes(now_ns)
            self._next_piece_ns = now_ns + nbytes * SECOND_NS // self.home.copy_bytes_per_s
            outs.append(ToServer(follower.member.server, piece))
        return outs

    def _copy_ended(self, follower: Follower) -> bool:
        if not follower.ends or follower.taken + 1 < follower.pieces:
            return False
        follower.copy, follower.whole = None, True
        self.home.sending.discard(self.number)
        self.home.copied += 1
        return True

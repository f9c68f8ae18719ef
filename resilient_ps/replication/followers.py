"""Those whom a primary sends its log: backups, and learners that are being given a copy.

Per follower: how far its log is known to agree (`match`), how far ours has been sent (`sent`), and
for a learner the copy under way. The stream to a follower is one ordered connection: entries and
pieces of the copy in one order. When it breaks, the stream begins anew (`attempt`): a backup's
behind `match`, a learner's with a new copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilient_ps.coordinator.records import Member
from resilient_ps.copying import CopySource

PIECES_UNDER_WAY = 2


@dataclass(slots=True)
class Follower:
    """One other replica, as its primary sees it."""

    member: Member
    attempt: int = 0  # of the present stream; 0: there is none
    base: int = -1  # the present stream begins behind this lsn
    match: int = -1  # the log agrees up to here; -1: nothing is known yet
    sent: int = -1  # sent up to here
    told: int = -1  # the commit point that it has been told
    since_ns: int = 0  # since when something is owed to us; 0: nothing is
    copy: CopySource | None = None
    pieces: int = 0  # of the copy, sent
    taken: int = -1  # number of the last piece that it has taken in
    whole: bool = True  # it holds a whole state: a backup, or a learner whose copy has ended
    lost: bool = False  # a backup that has said that it has nothing
    counted: bool = False  # it is in the in-sync set, or may be
    joining: bool = False  # a learner that is waited for, to be counted next
    paused_until_ns: int = 0  # a learner: not before this is a copy begun
    copied_bytes: int = 0
    ends: bool = False  # the last piece has been sent
    resend: bool = False  # the connection broke

    @property
    def copying(self) -> bool:
        """Is a copy under way?"""
        return self.copy is not None

    def heard(self, lsn: int, now_ns: int) -> None:
        """It holds the log up to `lsn`."""
        self.match = max(self.match, lsn)
        self.since_ns = 0 if self.match >= self.sent and self._all_taken else now_ns

    def owes(self, now_ns: int) -> None:
        """Something has been sent that it has to answer."""
        self.since_ns = self.since_ns or now_ns

    def late_ns(self, now_ns: int) -> int:
        """For how long an answer is owed."""
        return now_ns - self.since_ns if self.since_ns else 0

    def begin_again(self, not_before_ns: int) -> None:
        """A learner: forget the copy that was under way."""
        self.base = self.match = self.sent = self.told = self.taken = -1
        self.attempt = 0
        self.since_ns = self.pieces = self.copied_bytes = 0
        self.copy, self.whole, self.ends, self.resend = None, False, False, False
        self.lost = self.counted = self.joining = False
        self.paused_until_ns = not_before_ns

    @property
    def _all_taken(self) -> bool:
        return self.copy is None or self.taken + 1 >= self.pieces

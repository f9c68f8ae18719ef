"""What one copy of a shard holds: a state, and the entries of its log that are not applied yet.

Matching a primary's log to ours: how far they agree, what is appended, what is dropped.
"""

from __future__ import annotations

from resilient_ps.ids import Epoch
from resilient_ps.messages import AppendedPart, AppendPart, Entry, Held
from resilient_ps.replication.applying import Due, apply_all
from resilient_ps.replication.home import Home
from resilient_ps.replication.log import Log
from resilient_ps.shard import Shard


class Holding:
    """See the module. `shard` is None where nothing is held."""

    def __init__(self, number: int, home: Home) -> None:
        self.number = number
        self.home = home
        self.shard: Shard | None = None
        self.log = Log()
        self.epoch = Epoch(home.incarnation, 0)  # everything from before is refused
        self._attempt = 0  # the latest stream of this epoch
        self._verified = -1  # the log agrees with the primary's up to here, in this epoch

    def due(self, part: AppendPart, answer: AppendedPart | None) -> Due | None:
        """What is to be applied when a part was held, and answered so."""
        if answer is None or answer.held is not Held.HELD or answer.epoch != self.epoch:
            return None
        commit = min(part.commit, self._verified)
        if not self.home.guards.apply_after_commit:
            commit = self.log.last
        return self._due(commit) if commit > self.log.applied else None

    def _agreement(self, part: AppendPart) -> int | None:
        """None when the log holds what the entries follow; else how far it may agree."""
        prev, log = part.prev, self.log
        if prev.lsn > log.last:
            return log.last
        place = log.place(prev.lsn)
        if place == prev or not self.home.guards.log_matching:
            return None
        if prev.lsn <= log.applied:
            return log.applied  # not remembered any more: ask from what is applied
        return max(log.applied, log.run_start(prev.lsn) - 1)

    def _hold(self, entries: tuple[Entry, ...]) -> bool:
        """Append what is new, drop what contradicts it. False if that has been applied."""
        log, matching = self.log, self.home.guards.log_matching
        for entry in entries:
            lsn = entry.at.lsn
            if lsn <= log.last:
                if log.place(lsn) in (entry.at, None) or not matching:
                    continue
                if lsn <= log.applied:
                    return not self.home.guards.apply_after_commit
                log.cut(lsn - 1)
            log.append(entry)
        return True

    def _due(self, commit: int) -> Due:
        """What is to be applied now that everything up to there is committed."""
        assert self.shard is not None
        return Due(self.shard, self.log.take_to(commit), None, [])

    def _apply_to(self, commit: int) -> None:
        apply_all([self._due(commit)])

    def _says(self, held: Held, lsn: int, attempt: int | None = None) -> AppendedPart:
        attempt = self._attempt if attempt is None else attempt
        return AppendedPart(self.number, self.epoch, attempt, held, lsn)

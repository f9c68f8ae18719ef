"""Counts messages that were thrown away because their time was over, and says so now and then."""

from __future__ import annotations

from resilient_ps.machine import Peer
from resilient_ps.runtime.clock import NS_PER_S, Clock
from resilient_ps.runtime.logs import Logger


class Expired:
    """At most one log line per second, with the number since the last one."""

    def __init__(self, clock: Clock, log: Logger) -> None:
        self.messages = 0
        self._clock = clock
        self._log = log
        self._told = 0
        self._silent_until_ns = 0

    def add(self, messages: int, peer: Peer) -> None:
        """So many were thrown away, with the connection to `peer`."""
        self.messages += messages
        now_ns = self._clock.now_ns()
        if now_ns < self._silent_until_ns:
            return
        self._silent_until_ns = now_ns + NS_PER_S
        count, self._told = self.messages - self._told, self.messages
        self._log.warning("answers thrown away: the lease ended", messages=count, peer=peer)

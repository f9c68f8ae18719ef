"""Staying awake between the messages of servers that replicate.

A replicated push is four messages, one after the other. Where each finds a process asleep, waking
it up takes as long as what it has to do, and longer if a processor has to wake up as well. So a
server that works together with others looks for the next message for a moment before it sleeps, and
lets whoever else wants the processor have it meanwhile.

A server that hears nothing of others sleeps at once: what comes next is a client's, which has to
compute first. Invariant: at most `linger_ns` after the last message the loop may sleep.
"""

from __future__ import annotations

import asyncio
import os

from resilient_ps.runtime.clock import Clock

TOGETHER_NS = 10_000_000
"""So long after a message between replicas, all messages count as parts of their work."""


class Awake:
    """Keeps the running loop from sleeping, never from working. For the loop's thread only."""

    def __init__(self, clock: Clock, linger_ns: int) -> None:
        self._clock = clock
        self._linger_ns = linger_ns
        self._together_until_ns = 0
        self._until_ns = 0
        self._looking = False

    def heard(self, *, of_replicas: bool) -> None:
        """A message has been handled; `of_replicas`: one between two of them."""
        now_ns = self._clock.now_ns()
        if of_replicas:
            self._together_until_ns = now_ns + TOGETHER_NS
        if now_ns >= self._together_until_ns:
            return
        self._until_ns = now_ns + self._linger_ns
        if not self._looking:
            self._look()

    def _look(self) -> None:
        """The loop looks at its sockets, without sleeping, before this is called again."""
        self._looking = self._clock.now_ns() < self._until_ns
        if self._looking:
            os.sched_yield()
            asyncio.get_running_loop().call_soon(self._look)

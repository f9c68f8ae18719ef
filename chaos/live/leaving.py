"""How a server leaves for good, while it and etcd may be struck by other faults."""

from __future__ import annotations

from contextlib import suppress

from resilient_ps.chaos.live.patience import patiently
from resilient_ps.chaos.live.scene import Party
from resilient_ps.client.draining import Draining
from resilient_ps.errors import FixTheCall

DRAIN_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0


def leave(draining: Draining, party: Party) -> None:
    """Give all away, and end. A server that has lost its lease, or etcd, is back after a while."""

    def drain() -> None:
        draining.begin()
        for _ in draining.wait(DRAIN_DEADLINE_S):
            pass

    patiently(drain, DRAIN_DEADLINE_S, FixTheCall)
    party.stop(STOP_DEADLINE_S)
    with suppress(FixTheCall):  # the mark is gone already
        patiently(draining.cancel, DRAIN_DEADLINE_S)

"""Waits until a cluster can be worked with: complete, and not on its way back to a checkpoint."""

from __future__ import annotations

import time

from resilient_ps.client.inspect import no_such_cluster
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.errors import Unavailable
from resilient_ps.rolled_back import restore_of
from resilient_ps.routing import Routing, routing_from

POLL_S = 0.05


def wait_for_cluster(kv: Kv, cluster: str, deadline_s: float, *, after: int = 0) -> Routing:
    """The routing, once every shard has a live primary, and tables and jobs are registered.

    `after`: in a later incarnation than this one. Raises `Unavailable` with what is missing, and
    `NotFound` where there is no such cluster.
    """
    keys = ClusterKeys(cluster)
    deadline = time.monotonic() + deadline_s
    while True:
        result = kv.read(keys.prefix, prefix=True, deadline_s=deadline_s)
        routing = routing_from(result.items, keys)
        lack = ""
        if routing is not None:
            restore = restore_of(result.items, keys, routing.incarnation)
            lack = _lack(routing, after)
            if not lack and restore is not None and not restore.registered:
                lack = "its tables and jobs are being registered"
            if not lack:
                return routing
            if restore is not None:
                lack += f" (it is being restored from {restore.checkpoint or 'its initial state'}"
                lack += f"; that is damaged: {restore.damaged})" if restore.damaged else ")"
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    if routing is None:
        raise no_such_cluster(kv, keys)
    raise Unavailable(f"cluster {cluster!r} is not complete after {deadline_s:g} s: {lack}")


def _lack(routing: Routing, after: int) -> str:
    """What is missing; "" if nothing is."""
    if routing.incarnation <= after:
        return f"it is at incarnation {routing.incarnation} still"
    orphans = [shard for shard in range(routing.shards) if routing.peer(shard) is None]
    if not orphans:
        return ""
    more = f" (and {len(orphans) - 1} more shards)" if len(orphans) > 1 else ""
    return routing.describe(orphans[0]) + more

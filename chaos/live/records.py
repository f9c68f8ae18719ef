"""What etcd says of a running cluster: who leads which shard, and whether all is in place."""

from __future__ import annotations

import time

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.coordinator.standing import standing_of
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import Unavailable
from resilient_ps.ids import Epoch

POLL_S = 0.02
READ_DEADLINE_S = 10.0


class Records:
    """The records of one cluster whose shards should have `copies` copies each."""

    def __init__(self, kv: Kv, cluster: str, copies: int) -> None:
        self._kv = kv
        self._keys = ClusterKeys(cluster)
        self._copies = copies

    def look(self, deadline_s: float = READ_DEADLINE_S) -> ClusterView:
        """All of them at one moment."""
        view = ClusterView(self._keys)
        result = self._kv.read(self._keys.prefix, prefix=True, deadline_s=deadline_s)
        view.load(result.items, result.revision)
        return view

    def epochs(self) -> dict[int, Epoch]:
        """By shard."""
        return {record.shard: record.epoch for record in self.look().shards}

    def led_by(self, server: str) -> dict[int, Epoch]:
        """The shards that this server is primary of, and in which epochs."""
        return {r.shard: r.epoch for r in self.look().shards if r.primary == server}

    def unsettled(self) -> list[ShardRecord]:
        """Shards that lack a copy, or are not led by the server that should lead them."""
        view = self.look()
        return [
            record
            for record in view.shards
            if standing_of(record, view.processes, self._copies).state != "ok"
        ]

    def wait_settled(self, deadline_s: float) -> None:
        """Until every shard has its copies in sync, on the servers that should hold it.

        Raises `Unavailable`, naming a shard, when that is not so by the deadline.
        """
        until_s = time.monotonic() + deadline_s
        while unsettled := self.unsettled():
            if time.monotonic() > until_s:
                raise Unavailable(f"after {deadline_s:g} s {_describe(unsettled[0])}")
            time.sleep(POLL_S)


def _describe(record: ShardRecord) -> str:
    in_sync = ", ".join(member.server for member in record.in_sync)
    return (
        f"shard {record.shard} (epoch {record.epoch.incarnation}.{record.epoch.counter}) is led by "
        f"{record.primary or 'nobody'}, in sync on {in_sync}, and should be on "
        f"{', '.join(record.desired)}: see `resilient-ps status` and the servers' logs"
    )

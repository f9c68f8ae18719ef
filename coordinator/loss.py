"""Shards that are lost: nobody who held them in sync is there any more, and that for long enough.

A member is there while its process is registered, which it is under its lease: so it has been
without lease for as long as it was missed, and may have been for a TTL before. A restarted server
is another process, with empty memory. A shard that never had a primary cannot be lost: it begins
with what its first members begin with.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilient_ps.coordinator.grace import Grace
from resilient_ps.coordinator.kv import Compare, absent
from resilient_ps.coordinator.records import ClusterConfig
from resilient_ps.coordinator.standing import never_led, standing_of
from resilient_ps.coordinator.view import ClusterView


class Losses:
    """Watches the shards of a cluster; `grace_ns`: how long their members may be missing."""

    def __init__(self, view: ClusterView, grace_ns: int) -> None:
        self._view = view
        self._grace = Grace(grace_ns)
        self._leaderless: set[int] = set()
        self._made_of: object = None  # what decides it for all shards
        self._seen = 0  # the view's changes of single shards up to here are in it

    def drop(self) -> None:
        """All times begin anew: we cannot know what happened meanwhile."""
        self._grace.drop()

    def found(self, now_ns: int) -> list[int]:
        """The shards that are lost, by number."""
        missing = [str(number) for number in self.leaderless()]
        self._grace.look(missing, (), now_ns)
        return sorted(int(number) for number in self._grace.over(now_ns))

    def leaderless(self) -> list[int]:
        """The shards whose members are all missing, and that nobody leads: lost, if it lasts."""
        view, config = self._view, self._view.config
        if config is None:
            return []
        servers = view.servers
        made_of = (config, servers)
        if made_of == self._made_of:
            numbers = view.changed_since(self._seen)
        else:
            self._made_of = made_of
            self._leaderless.clear()
            numbers = [record.shard for record in view.shards]
        self._seen = view.changes
        processes = view.processes if numbers else {}
        for number in numbers:
            if self._is_leaderless(number, config, processes):
                self._leaderless.add(number)
            else:
                self._leaderless.discard(number)
        return sorted(self._leaderless)

    def _is_leaderless(
        self, number: int, config: ClusterConfig, processes: Mapping[str, int]
    ) -> bool:
        view = self._view
        record = view.shard(number)
        return (
            record is not None
            and record.epoch.incarnation == config.incarnation
            and number < config.shards
            and not never_led(record)
            and not standing_of(record, processes, 1).living
            and view.keys.leader(number) not in view.items
        )

    def guards(self, number: int) -> tuple[Compare, ...]:
        """Hold while this shard is as it is known here, and nobody leads it."""
        keys = self._view.keys
        return self._view.as_seen(keys.shard(number)), absent(keys.leader(number))

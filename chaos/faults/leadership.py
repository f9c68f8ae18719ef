"""Who led which shard when, as etcd told it while it happened.

Fed with everything that a watch on the cluster's records delivers, in its order. It keeps every
value that a shard's record had, for the checkers, and the present records, for whoever looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.chaos.faults.blame import Failover
from resilient_ps.chaos.result import Reign
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import ReadResult, Reset, WatchBatch
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.coordinator.view import ClusterView


@dataclass(slots=True)
class _Holder:
    """Who leads a shard since when. `server` "": nobody."""

    server: str
    epoch: str
    from_s: float


@dataclass(slots=True)
class Leadership:
    """See the module. `records`: of shards, in the order of etcd's revisions.

    `incarnations`: of the cluster, one after the other.
    """

    keys: ClusterKeys
    records: list[ShardRecord] = field(default_factory=list)
    reigns: list[Reign] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    incarnations: list[int] = field(default_factory=list)
    checkpoints: set[int] = field(default_factory=set)
    resets: int = 0  # the watch had to begin anew: what happened meanwhile is not known
    _view: ClusterView | None = None
    _holders: dict[int, _Holder] = field(default_factory=dict)
    _latest: dict[int, ShardRecord] = field(default_factory=dict)

    @property
    def view(self) -> ClusterView:
        """What there is now."""
        if self._view is None:
            self._view = ClusterView(self.keys)
        return self._view

    def begin(self, found: ReadResult, at_s: float) -> None:
        """Everything, as it is before the watch begins."""
        self.view.load(found.items, found.revision)
        self._look(at_s)

    def take(self, news: WatchBatch | Reset, at_s: float) -> None:
        """What the watch delivers."""
        if isinstance(news, Reset):
            self.resets += 1
            self.view.load(news.items, news.revision)
        else:
            self.view.apply(news)
        self._look(at_s)

    def all_reigns(self, until_s: float) -> tuple[Reign, ...]:
        """Those that are over, and those that go on, as they are until now."""
        going_on = [
            Reign(shard, holder.server, holder.epoch, holder.from_s, until_s)
            for shard, holder in sorted(self._holders.items())
        ]
        return tuple(sorted([*self.reigns, *going_on], key=lambda r: (r.shard, r.from_s)))

    def due_clock(self, job: str) -> int:
        """A cut waits until the ranks of the job have ended this clock; 0: none does."""
        return max((_clock_of(intent.details, job) for intent in self.view.open_intents), default=0)

    def _look(self, at_s: float) -> None:
        view = self.view
        for record in view.shards:
            before = self._latest.get(record.shard)
            if before == record:
                continue
            self._latest[record.shard] = record
            self.records.append(record)
            if before is not None and _was_taken_over(before, record):
                self.failovers.append(Failover(at_s, record.shard, before.primary, record.primary))
        for record in view.shards:
            self._enthrone(record, at_s)
        if view.config is not None and view.config.incarnation not in self.incarnations[-1:]:
            self.incarnations.append(view.config.incarnation)
        self.checkpoints.update(each.number for each in view.checkpoints)

    def _enthrone(self, record: ShardRecord, at_s: float) -> None:
        leads = record.primary and self.keys.leader(record.shard) in self.view.items
        server = record.primary if leads else ""
        epoch = f"{record.epoch.incarnation}.{record.epoch.counter}"
        holder = self._holders.get(record.shard)
        if holder is not None:
            if (holder.server, holder.epoch) == (server, epoch):
                return
            ended = Reign(record.shard, holder.server, holder.epoch, holder.from_s, at_s)
            self.reigns.append(ended)
        self._holders[record.shard] = _Holder(server, epoch, at_s)


def _was_taken_over(before: ShardRecord, after: ShardRecord) -> bool:
    """Not where the old primary handed over: then it stays in sync."""
    changed = bool(before.primary) and after.leader != before.leader
    return changed and bool(after.primary) and before.leader not in after.in_sync


def _clock_of(details: object, job: str) -> int:
    clocks = details.get("clocks") if isinstance(details, dict) else None
    clock = clocks.get(job) if isinstance(clocks, dict) else None
    return clock if type(clock) is int else 0

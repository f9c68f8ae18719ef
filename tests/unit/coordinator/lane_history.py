"""Watches a graph's lanes in etcd, revision by revision: was every grant and every report right?"""

from __future__ import annotations

from candidates import KEYS, Etcd
from task_graphs import predecessors, rivals

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import Event, WatchBatch
from resilient_ps.coordinator.task_asks import Granted
from resilient_ps.coordinator.task_records import (
    BUCKET_LANES,
    GraphRecord,
    LanesRecord,
    LaneState,
)


class LaneHistory:
    """`may_report`: tasks that their holders have really done, as (holder, task)."""

    def __init__(self, etcd: Etcd, graph: Graph, name: str = "g") -> None:
        self.may_report: set[tuple[str, Granted]] = set()
        self.grants: list[tuple[str, Granted]] = []
        self.lanes = [LaneState()] * graph.lanes_total
        self._graph = graph
        self._name = name
        self._etcd = etcd
        self._living: set[str] = set()
        self._watch = etcd.model.watch(KEYS.prefix, 1)

    def look(self) -> None:
        """Check what has happened since."""
        batches = self._etcd.model.poll(self._watch)
        assert isinstance(batches, tuple)
        for batch in batches:
            self._see(batch)

    def _see(self, batch: WatchBatch) -> None:
        done = [state.done for state in self.lanes]
        before = list(self.lanes)
        for event in batch.events:
            self._apply(event)
        changed = [rank for rank, state in enumerate(self.lanes) if state != before[rank]]
        for rank in changed:
            self._check_report(rank, before[rank], self.lanes[rank])
        done = [state.done for state in self.lanes]
        for rank in changed:
            self._check_grant(rank, before[rank], self.lanes[rank], done)
        holders = [state.holder for state in self.lanes if state.holder]
        assert len(set(holders)) == len(holders), f"a holder has two tasks: {holders}"

    def _apply(self, event: Event) -> None:
        located = KEYS.locate(event.item.key)
        if located is None or located.name != self._name:
            return
        if located.kind == "holder":
            (self._living.add if event.kind == "put" else self._living.discard)(located.part)
        elif located.kind == "lanes" and event.kind == "put":
            record = LanesRecord.from_bytes(event.item.value, event.item.key)
            first = located.number * BUCKET_LANES
            self.lanes[first : first + len(record.lanes)] = record.lanes
        elif located.kind == "graph" and event.kind == "put":
            record_of_graph = GraphRecord.from_bytes(event.item.value, event.item.key)
            if record_of_graph.state == "done":
                assert all(state.done == self._graph.steps for state in self.lanes), "not done"

    def _check_report(self, rank: int, old: LaneState, new: LaneState) -> None:
        if new.done == old.done:
            return
        task = Granted(rank, new.done, old.token)
        assert new.done == old.done + 1, f"rank {rank} went from {old} to {new}"
        assert (old.holder, task) in self.may_report, f"{old.holder} has not done {task}"

    def _check_grant(self, rank: int, old: LaneState, new: LaneState, done: list[int]) -> None:
        if not new.holder or (new.holder, new.token) == (old.holder, old.token):
            return
        step = new.done + 1
        assert new.token > old.token, f"token {new.token} of rank {rank} after {old.token}"
        assert new.holder in self._living, f"{new.holder} is dead"
        if old.holder and old.done == new.done:
            assert old.holder not in self._living, f"{old.holder} has rank {rank}, and lives"
        for other, at in predecessors(self._graph, rank, step):
            assert done[other] >= at, f"step {step} of rank {rank} before {at} of {other}"
        granted = {other for other, state in enumerate(self.lanes) if state.holder}
        beside = rivals(self._graph, rank, granted)
        assert not beside, f"rank {rank} beside {beside}"
        self.grants.append((new.holder, Granted(rank, step, new.token)))

"""Who plays a role at this moment: the primary of a shard, the coordinator, the leader of etcd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

from resilient_ps.chaos.live.scene import Party, Scene, Skipped
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import NotFound, RetryLater

PRIMARY = "primary:"
COORDINATOR = "coordinator"
ETCD_LEADER = "etcd leader"
FOUND_DEADLINE_S = 3.0  # an election may be under way
ANSWER_S = 0.5
POLL_S = 0.1


def find(scene: Scene, target: str) -> Party:
    """The party of a name or a role. Raises `Skipped` when nobody is."""
    if target.startswith(PRIMARY):
        shard = int(target.removeprefix(PRIMARY))
        return _wait_for(target, lambda: _server(scene, lambda view: _primary(view, shard)))
    if target == COORDINATOR:
        return _wait_for(target, lambda: _server(scene, _coordinator))
    if target == ETCD_LEADER:
        return _wait_for(target, lambda: _etcd_leader(scene))
    try:
        return scene.party(target)
    except NotFound as error:
        raise Skipped(str(error)) from error


def _wait_for(target: str, look: Callable[[], Party | None]) -> Party:
    until_s = time.monotonic() + FOUND_DEADLINE_S
    while True:
        found = look()
        if found is not None:
            return found
        if time.monotonic() > until_s:
            raise Skipped(f"there is no {target} at the moment")
        time.sleep(POLL_S)


def _server(scene: Scene, name_in: Callable[[ClusterView], str]) -> Party | None:
    """The server that the records name, if its process is there."""
    try:
        name = name_in(scene.records.look(FOUND_DEADLINE_S))
    except RetryLater:
        return None
    there = [party for party in scene.parties("server") if party.name == name]
    return next((p for p in there if p.state in ("running", "paused")), None)


def _primary(view: ClusterView, shard: int) -> str:
    record = view.shard(shard)
    return "" if record is None else record.primary


def _coordinator(view: ClusterView) -> str:
    item = view.items.get(view.keys.coordinator_leader)
    return "" if item is None else str(json.loads(item.value)["server"])


def _etcd_leader(scene: Scene) -> Party | None:
    for party, endpoint in zip(scene.parties("etcd"), scene.etcd.split(","), strict=False):
        if party.state != "running":
            continue
        with closing(EtcdKv(endpoint)) as kv:
            try:
                if kv.leads(deadline_s=ANSWER_S):
                    return party
            except RetryLater:
                continue
    return None

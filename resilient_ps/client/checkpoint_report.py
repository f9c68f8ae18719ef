"""How the checkpoints of a cluster stand, for `resilient-ps status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.coordinator.view import ClusterView


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What etcd has (`good`, `damaged`, `newest`, `clocks`), and what the coordinator says.

    `told`: it has answered; else what follows is not known. `store`: it has an object store.
    `age_s`: of the newest good checkpoint. `interval_s` is 0 where none are made by time;
    `interval_by` is "auto", "every_s" or "none"; `cost_s` how long the last ones took. `due_s`:
    until the next one. `old`: the newest one is older than three intervals.
    """

    good: int
    damaged: int
    newest: str | None
    clocks: dict[str, int]
    told: bool = False
    store: bool = False
    age_s: float | None = None
    old: bool = False
    interval_s: float = 0.0
    interval_by: str = "none"
    every_clocks: int = 0
    mtbf_h: float | None = None
    cost_s: float | None = None
    due_s: float | None = None
    failures: int = 0
    last_failure: str = ""
    waiting: int = 0
    under_way: dict[str, Any] | None = None
    sweeping: str = ""

    @property
    def trouble(self) -> str:
        """What somebody should look at; "" if there is nothing."""
        if self.old:
            return f"the newest checkpoint, {self.newest}, is older than three intervals"
        if self.failures and self.newest is None:
            return "no checkpoint could be made so far"
        return f"the last {self.failures} attempts failed" if self.failures > 1 else ""


def checkpoint_report(view: ClusterView, told: Mapping[str, Any]) -> CheckpointReport | None:
    """None where there is nothing to say: no store, and no checkpoint ever."""
    good = [record for record in view.checkpoints if record.state == "good"]
    damaged = sum(record.state == "damaged" for record in view.checkpoints)
    newest: CheckpointRecord | None = max(
        good, key=lambda record: (record.incarnation, record.number), default=None
    )
    if not view.checkpoints and not told.get("store"):
        return None
    return CheckpointReport(
        good=len(good),
        damaged=damaged,
        newest=None if newest is None else newest.id,
        clocks={} if newest is None else dict(newest.clocks),
        told=bool(told.get("elected")),
        store=bool(told.get("store")),
        age_s=told.get("age_s"),
        old=bool(told.get("old")),
        interval_s=float(told.get("interval_s") or 0.0),
        interval_by=str(told.get("interval_by", "none")),
        every_clocks=int(told.get("every_clocks") or 0),
        mtbf_h=told.get("mtbf_h"),
        cost_s=told.get("cost_s"),
        due_s=told.get("due_s"),
        failures=int(told.get("failures") or 0),
        last_failure=str(told.get("last_failure") or ""),
        waiting=int(told.get("waiting") or 0),
        under_way=told.get("under_way"),
        sweeping=str(told.get("sweeping") or ""),
    )

"""A small cluster at work, on which single faults are brought about."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import resilient_ps as ps
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.faults import clocks, etcd, machine, resources
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.probe import Probes
from resilient_ps.chaos.live.scene import Fault
from resilient_ps.errors import Unavailable

PATIENCE_S = 120.0
DEADLINE_S = 60.0
NUMBERS = itertools.count(1)
FAULTS: dict[str, Callable[..., Any]] = {
    **machine.FAULTS,
    **resources.FAULTS,
    **clocks.FAULTS,
    **etcd.FAULTS,
}


@dataclass
class AtWork:
    """The cluster, and a probe that pushes to each of its shards all the time."""

    scene: ChaosCluster
    probes: Probes
    pause: threading.Event

    def fault(self, kind: str, *target: str, lasts_s: float = 0.5, how: int = 0) -> Fault:
        """Not brought about yet."""
        planned = Planned(next(NUMBERS), 0.0, kind, target, lasts_s, how)
        fault: Fault = FAULTS[kind](self.scene, planned)
        return fault

    @contextmanager
    def struck(self, fault: Fault, lasts_s: float = 0.0) -> Iterator[Fault]:
        """Within it, the fault is there; behind it, everything works again."""
        try:
            fault.inject()
            yield fault
            self.pause.wait(lasts_s)
        finally:
            fault.heal()
        self.wait_until_all_answer()
        self.settle()

    def strike(self, kind: str, *target: str, lasts_s: float = 0.5, how: int = 0) -> Fault:
        """Bring it about, heal it, and wait until all is well."""
        with self.struck(self.fault(kind, *target, lasts_s=lasts_s, how=how), lasts_s) as fault:
            pass
        return fault

    def wait_until_all_answer(self) -> None:
        """Each shard acknowledges something from now on."""
        now_s = time.monotonic()
        shards = list(range(self.scene.shards))
        self.eventually(lambda: self.probes.answered_since(now_s) == shards, "all shards to answer")

    def settle(self) -> None:
        try:
            self.scene.records.wait_settled(PATIENCE_S)
        except Unavailable as error:
            told = [
                f"{name}:\n{path.read_text()[-2000:]}" for name, path in self.scene.logs.items()
            ]
            pytest.fail("\n".join([str(error), *told]))

    def eventually(self, condition: Callable[[], object], what: str) -> None:
        """Asks again and again; for states that nobody announces."""
        for _ in range(int(PATIENCE_S / 0.02)):
            if condition():
                return
            self.pause.wait(0.02)
        pytest.fail(f"waited {PATIENCE_S} s in vain for {what}: {self.probes.errors()}")


@contextmanager
def at_work(plan: ClusterPlan) -> Iterator[AtWork]:
    """In the end, everything that was acknowledged must have been applied once."""
    with ChaosCluster(plan) as scene:
        client = ps.connect(scene.public_etcd, scene.cluster, deadline_s=DEADLINE_S)
        with client, Probes(client, scene.shards, lambda _job: 0) as probes:
            working = AtWork(scene, probes, threading.Event())
            working.wait_until_all_answer()
            yield working
            assert probes.stop() == []
            verdict = probes.counted(client)
            assert verdict.outcome == "true", verdict.reasons

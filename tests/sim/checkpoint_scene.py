"""A cluster that makes checkpoints of a bank, step by step: for tests that strike at a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.transfers import Transfers
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.consistency import SSP
from resilient_ps.coordinator.kv import Event
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.storage.blobs import BlobRequest, DeleteBlobs, PutBlob

SECOND_NS = 10**9
SEED = 3
SETTINGS = CheckpointSettings(
    every_clocks=2, keep_last=1, cut_deadline_s=5, loss_grace_s=0.5, on_stop_s=0
)
PACE = Pace(300_000_000)
RESTART_NS = SECOND_NS // 5
LIMIT_S = 40.0

When = Literal["before", "after"]
Victim = Literal["the process", "the coordinator", "all servers"]


class Step(NamedTuple):
    """The step of this number, counted since the first publication, and what it is."""

    number: int
    when: When
    what: str


class Scene:
    """A cluster at work; `at` is called at every step."""

    def __init__(self, guards: Guards = ALL_GUARDS, pace: Pace = PACE) -> None:
        self.cluster = SimCluster(
            SEED, servers=3, shards=2, replicas=2, store=SETTINGS, guards=guards
        )
        assert self.cluster.archive is not None
        self.archive = self.cluster.archive
        self.world = self.cluster.world
        self.load = Transfers(SSP(1), pace=pace)
        self.load.prepare(self.cluster)
        self.load.start()
        self.steps: list[Step] = []
        self.at: Callable[[Step, Process | None], None] = lambda step, process: None
        assert self.world.wait_for(lambda: bool(self.archive.published), LIMIT_S), "no checkpoint"
        self.world.bucket.on_asked.append(lambda p, r: self._blob("before", p, r))
        self.world.bucket.on_performed.append(lambda p, r: self._blob("after", p, r))
        self.world.audit.on_event.append(self._event)

    def _blob(self, when: When, process: Process, request: BlobRequest) -> None:
        match request:
            case PutBlob(name):
                self._step(when, f"put {name.rsplit('/', 1)[-1]}", process)
            case DeleteBlobs(names):
                self._step(when, f"delete {len(names)} objects", process)

    def _event(self, world_ns: int, event: Event) -> None:
        keys = self.cluster.keys
        for prefix, what in ((keys.checkpoints, "checkpoint"), (keys.intents, "intent")):
            if event.item.key.startswith(prefix):
                self._step("after", f"etcd: {event.kind} {what}", None)

    def _step(self, when: When, what: str, process: Process | None) -> None:
        step = Step(len(self.steps), when, what)
        self.steps.append(step)
        self.at(step, process)

    def later(self, number: int, incarnation: int) -> bool:
        """Is there a checkpoint with a later number, of this incarnation, that is whole?"""
        good = [
            record
            for record in self.archive.good()
            if record.number > number and record.incarnation == incarnation
        ]
        return any(not self.archive.problem(record) for record in good)

    def kill(self, victim: Victim, process: Process | None) -> None:
        """Kill, and start again a little later."""
        cluster = self.cluster
        names = list(cluster.servers)
        if victim == "the coordinator":
            names = [cluster.coordinator()]
        elif victim == "the process":
            assert process is not None
            names = [process.name]
        for name in filter(None, names):
            cluster.kill(name)
            self.world.after(RESTART_NS, lambda name=name: cluster.restart_server(name))

"""What `demo --checkpoint` does: everything is killed in the middle, and goes on from the store."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.cli.checkpoint.choice import clocks_text
from resilient_ps.cli.demonstration import CLUSTER, DEADLINE_S, Act, Files, Settings, Show, compare
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.local import load_kernels, running
from resilient_ps.cli.output import size_text
from resilient_ps.cli.plan import TrainPlan
from resilient_ps.cli.progress import Training, Watcher
from resilient_ps.cli.resuming import Resume, announce, final_checkpoint, restored
from resilient_ps.cli.running import ServerWatch, Trained, train_together
from resilient_ps.cli.samples import Samples
from resilient_ps.cli.workers import WorkerGroup
from resilient_ps.client.checkpoints import checkpoint_records, propose_cut
from resilient_ps.client.connection import Client, connect
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import LocalCluster

SEAWEEDFS = "seaweedfs"
ASK_AT = 0.15  # of the training: for a first checkpoint
KILL_AT = 0.4
LOOK_EVERY_S = 0.2
RESTORE_PATIENCE_S = 120.0
FINAL_DEADLINE_S = 60.0


class KilledAll(Exception):
    """Nothing is left of the cluster, and nobody to train."""


def demonstrate_standby(
    settings: Settings, samples: Samples, store: StorePlace, watcher: Watcher
) -> dict[str, Any]:
    """All of it; the result as JSON values. Only the checkpoints are left, if the store stays."""
    with ExitStack() as stack:
        place = stack.enter_context(_place(store, watcher))
        watcher.say(f"checkpoints go to {place.url}")
        load_kernels(watcher)
        standby = Standby(place, CheckpointSettings(auto=True, keep_last=5))
        story = _Story(settings, samples, standby, watcher)
        calm, killing = story.until_everything_is_killed()
        act, resumed, last = story.from_the_store()
        compared = story.compared
    return {
        "samples": act.trained.samples + killing.samples,
        "seconds": round(act.trained.seconds + killing.seconds, 3),
        "samples_per_s": round(act.trained.samples_per_s, 1),
        "auc": act.found.auc,
        "auc_sklearn": compared.get("auc"),
        "logloss": act.found.logloss,
        "servers": settings.servers,
        "workers": settings.workers,
        "coordination": story.kind,
        "logloss_sklearn": compared.get("logloss"),
        "consistency": settings.plan.consistency,
        "epochs": settings.plan.epochs,
        "batch_size": settings.plan.batch_size,
        "training_rows": len(samples.train),
        "held_out_rows": len(samples.test),
        "data": samples.what,
        "digest": act.digest,
        "store": place.url,
        "killed": {"server": "everything", **killing.as_json(), **resumed},
        "undisturbed": calm.as_json(),
        "final_checkpoint": None if last is None else last.id,
    }


@contextmanager
def _place(store: StorePlace, watcher: Watcher) -> Iterator[StorePlace]:
    """A place of its own in the store: an earlier demo's checkpoints are not to be found."""
    name = f"demo-{secrets.token_hex(4)}"
    if store.url != SEAWEEDFS:
        yield dataclasses.replace(store, url=f"{store.url.rstrip('/')}/{name}")
        return
    from resilient_ps.storage.runtime.seaweedfs import SeaweedFS  # half a second, for S3

    with watcher.stage("starting SeaweedFS, an S3 server, on this machine") as stage:
        with INTERRUPTS.held():
            server = SeaweedFS()
        stage.done = f"SeaweedFS is up at {server.endpoint}"
    with server:
        os.environ.update(server.environment)  # for the servers, which inherit it
        yield StorePlace(f"{server.url}/{name}", server.endpoint)


class _Story:
    """The acts, in their order."""

    def __init__(
        self, settings: Settings, samples: Samples, standby: Standby, watcher: Watcher
    ) -> None:
        self.kind = ""
        self.compared: dict[str, Any] = {}
        self._settings = settings
        self._samples = samples
        self._standby = standby
        self._watcher = watcher
        self._killing: _KillingAll | None = None

    def until_everything_is_killed(self) -> tuple[Act, _KillingAll]:
        """Undisturbed to the end; then once more, until nothing is left."""
        with self._cluster(self._settings.servers) as show:
            calm = show.train_undisturbed("everything")
            self._killing = killing = _KillingAll(show, self._watcher)
            with self._workers(show) as group:
                try:
                    train_together(
                        group, killing.servers, self._watcher, killing.total, killing.look
                    )
                except KilledAll:
                    return calm, killing
        raise BadInput(
            "the training was over before a checkpoint was made: use more --epochs or rows"
        )

    def from_the_store(self) -> tuple[Act, dict[str, Any], CheckpointRecord | None]:
        """On another number of servers, from the newest checkpoint, to the end."""
        killing, watcher = self._killing, self._watcher
        assert killing is not None
        begun_s = time.monotonic()
        with self._cluster(killing.servers_after) as show:
            announce(show.client.catalogue, show.plan.job, Resume(required=True))
            record = restored(show.client.catalogue)
            assert record is not None
            with self._workers(show) as group:
                ready_s = time.monotonic() - begun_s
                earlier = sum(w.told.earlier for w in group.workers if w.told is not None)
                killing.samples = earlier  # what came behind the checkpoint is done again
                watcher.say(
                    f"{earlier:,} samples are in the checkpoint; ranks go on behind them, "
                    f"{ready_s:.1f} s after the first server was started"
                )
                servers = ServerWatch(show.client, show.plan.job)
                trained = train_together(group, servers, watcher, killing.total - earlier)
            watcher.say(_rate(trained, show.plan))
            act = show.finish(show.plan, trained, None)
            last = final_checkpoint(show.client.catalogue, FINAL_DEADLINE_S)
            assert show.files is not None
            self.compared = compare(show.files, self._settings, watcher)
        told = {
            "restored_checkpoint": record.checkpoint,
            "samples_in_checkpoint": earlier,
            "servers_after": killing.servers_after,
            "ready_after_s": round(ready_s, 3),
        }
        return act, told, last

    @contextmanager
    def _cluster(self, servers: int) -> Iterator[Show]:
        processes = LocalCluster(
            servers,
            cluster=CLUSTER,
            prefer=self._settings.coordination.value,
            standby=self._standby,
        )
        with ExitStack() as stack:
            with self._watcher.stage(f"starting {servers} servers") as stage:
                stack.enter_context(running(processes))
                self.kind = processes.coordination.kind
                stage.done = f"{servers} servers are up, coordination: {self.kind}"
            assert processes.folder is not None
            files = Files(Path(processes.folder), self._samples)
            plan = dataclasses.replace(self._settings.plan, dataset=str(files.train))
            etcd = ",".join(processes.endpoints)
            client = stack.enter_context(connect(etcd, CLUSTER, deadline_s=RESTORE_PATIENCE_S))
            yield Show(self._settings, plan, client, processes, self._samples, self._watcher, files)

    @contextmanager
    def _workers(self, show: Show) -> Iterator[WorkerGroup]:
        settings, processes = self._settings, show.processes
        assert processes.folder is not None
        with WorkerGroup(
            show.plan,
            settings.workers,
            etcd=",".join(processes.endpoints),
            cluster=CLUSTER,
            folder=processes.folder,
            deadline_s=DEADLINE_S,
            say=self._watcher.say,
        ) as group:
            with self._watcher.stage(f"starting {settings.workers} workers") as stage:
                group.start()
                stage.done = f"{settings.workers} workers are ready"
            if self._killing is not None:
                self._killing.group = group
            yield group


class _KillingAll:
    """Tells of checkpoints while ranks train, and kills everything behind the first of them."""

    def __init__(self, show: Show, watcher: Watcher) -> None:
        self.servers = ServerWatch(show.client, show.plan.job)
        self.total = len(show.samples.train) * show.plan.epochs
        self.servers_after = show.settings.servers - 1 or 2
        self.group: WorkerGroup | None = None
        self.samples = 0  # that are in the checkpoint
        self.seconds = 0.0
        self._show = show
        self._watcher = watcher
        self._known: set[str] = {r.id for r in checkpoint_records(show.client.catalogue)}
        self._made: list[CheckpointRecord] = []
        self._asked = False
        self._at_s = 0.0
        self._trained = 0  # samples, when everything was killed

    def look(self, training: Training, now_s: float) -> None:
        """Do what is due. Raises `KilledAll`."""
        done = training.samples / self.total
        client = self._show.client
        if not self._asked and done >= ASK_AT:
            self._asked = True
            propose_cut(client.catalogue, why="the demo asks for one", by="demo")
        if now_s - self._at_s < LOOK_EVERY_S:
            return
        self._at_s = now_s
        self._tell_of_checkpoints(client)
        if self._made and done >= KILL_AT:
            self._trained, self.seconds = training.samples, now_s - training.begun_s
            self._kill()

    def as_json(self) -> dict[str, Any]:
        """What happened."""
        return {"checkpoints": [r.id for r in self._made], "samples_before": self._trained}

    def _tell_of_checkpoints(self, client: Client) -> None:
        job = self._show.plan.job
        for record in reversed(checkpoint_records(client.catalogue)):
            if record.id not in self._known and job in record.clocks:
                self._known.add(record.id)
                self._made.append(record)
                self._watcher.say(
                    f"checkpoint {record.id}: clock {clocks_text({job: record.clocks[job]})}, "
                    f"{size_text(record.stored_bytes)}, made while training goes on",
                    style="green",
                )

    def _kill(self) -> None:
        assert self.group is not None
        show = self._show
        self._watcher.say(
            f"SIGKILL to everything: {show.settings.workers} workers, {show.settings.servers} "
            f"servers and the coordination ({show.processes.coordination.kind}), after "
            f"{self._trained:,} samples: nothing of the model is in any memory now",
            style="bold red",
        )
        with INTERRUPTS.held():
            self.group.kill()
            show.processes.kill_all()
        raise KilledAll


def _rate(trained: Trained, plan: TrainPlan) -> str:
    return (
        f"trained on {trained.samples:,} samples more ({plan.epochs} epochs, {plan.consistency}), "
        f"{trained.samples_per_s:,.0f} samples/s ({trained.seconds:.1f} s)"
    )

"""What the demo does: a cluster, workers in training, an evaluation, a comparison."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import select
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resilient_ps.cli import baseline
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.killing import Killing
from resilient_ps.cli.local import IN_MEMORY, load_kernels, running
from resilient_ps.cli.options import Coordination
from resilient_ps.cli.plan import TrainPlan
from resilient_ps.cli.progress import MARK_S, Watcher, marks_of
from resilient_ps.cli.running import ServerWatch, Trained, train_together
from resilient_ps.cli.samples import Samples
from resilient_ps.cli.workers import WorkerGroup
from resilient_ps.client.connection import Client, connect
from resilient_ps.client.tables import SparseTable
from resilient_ps.errors import Unavailable
from resilient_ps.models import Evaluation, LogisticRegression
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.runtime.spawn import spawn

CLUSTER = "demo"
DEADLINE_S = 30.0
BASELINE_DEADLINE_S = 600.0
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for. `compare`: with scikit-learn, whose C is `sklearn_c`. `kill`: train once
    undisturbed, and once more while a server is killed."""

    servers: int
    workers: int
    coordination: Coordination
    plan: TrainPlan
    sklearn_c: float
    compare: bool
    kill: bool = False


def demonstrate(settings: Settings, samples: Samples, watcher: Watcher) -> dict[str, Any]:
    """All of it; the result as JSON values. Nothing is left of the cluster afterwards."""
    processes = LocalCluster(settings.servers, cluster=CLUSTER, prefer=settings.coordination.value)
    with ExitStack() as stack:
        load_kernels(watcher)
        with watcher.stage(f"starting {settings.servers} servers") as stage:
            stack.enter_context(running(processes))
            kind = processes.coordination.kind
            stage.done = f"{settings.servers} servers are up, coordination: {kind}"
        if kind == "embedded":
            watcher.say(IN_MEMORY, style="bold yellow")
        assert processes.folder is not None
        files = Files(processes.folder, samples)
        etcd = ",".join(processes.endpoints)
        client = stack.enter_context(connect(etcd, CLUSTER, deadline_s=DEADLINE_S))
        plan = dataclasses.replace(settings.plan, dataset=str(files.train))
        show = Show(settings, plan, client, processes, samples, watcher)
        calm = show.train_undisturbed() if settings.kill else None
        act = show.train()
        compared = compare(files, settings, watcher)
    return {
        "samples": act.trained.samples,
        "seconds": round(act.trained.seconds, 3),
        "samples_per_s": round(act.trained.samples_per_s, 1),
        "auc": act.found.auc,
        "auc_sklearn": compared.get("auc"),
        "logloss": act.found.logloss,
        "servers": settings.servers,
        "workers": settings.workers,
        "coordination": kind,
        "logloss_sklearn": compared.get("logloss"),
        "consistency": plan.consistency,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "training_rows": len(samples.train),
        "held_out_rows": len(samples.test),
        "data": samples.what,
        "digest": act.digest,
        **({} if calm is None else {"killed": act.killed, "undisturbed": calm.as_json()}),
    }


class Files:
    """The rows as files in the cluster's folder, for the other processes."""

    def __init__(self, folder: Path, samples: Samples) -> None:
        self.folder = folder
        self.train = folder / "train.npz"
        self.test = folder / "test.npz"
        samples.train.save(self.train)
        samples.test.save(self.test)


@dataclass(frozen=True, slots=True)
class Act:
    """One training from the beginning to the end. `digest`: of all weights."""

    trained: Trained
    found: Evaluation
    digest: str
    killed: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "samples": self.trained.samples,
            "seconds": round(self.trained.seconds, 3),
            "samples_per_s": round(self.trained.samples_per_s, 1),
            "auc": self.found.auc,
            "logloss": self.found.logloss,
            "digest": self.digest,
        }


@dataclass(frozen=True, slots=True)
class Show:
    """Trains on a cluster that runs."""

    settings: Settings
    plan: TrainPlan
    client: Client
    processes: LocalCluster
    samples: Samples
    watcher: Watcher
    files: Files | None = None

    def train(self) -> Act:
        """With a kill in the middle, if that is asked for."""
        return self.act(self.plan, kill=self.settings.kill)

    def train_undisturbed(self, killed: str = "a server") -> Act:
        """Nothing but the result is left of it. `killed`: what is killed next time."""
        self.watcher.say("first without disturbance:")
        plan = dataclasses.replace(self.plan, job=f"{self.plan.job}-undisturbed")
        act = self.act(plan, kill=False)
        assert plan.table is not None
        self.client.drop_table(plan.table)
        self.watcher.say(f"and now {killed} is killed in the middle:")
        return act

    def act(self, plan: TrainPlan, *, kill: bool = False) -> Act:
        """Train to the end, and look at what came of it."""
        trained, killed = self._train(plan, kill=kill)
        return self.finish(plan, trained, killed)

    def finish(self, plan: TrainPlan, trained: Trained, killed: dict[str, Any] | None) -> Act:
        """Look at what came of a training that is over."""
        table = self._table(plan)
        digest = _digest(table, self.samples)
        return Act(trained, self._evaluate(table), digest, killed)

    def _train(self, plan: TrainPlan, *, kill: bool) -> tuple[Trained, dict[str, Any] | None]:
        settings, watcher, folder = self.settings, self.watcher, self.processes.folder
        assert folder is not None
        etcd = ",".join(self.processes.endpoints)
        total = len(self.samples.train) * plan.epochs
        servers = ServerWatch(self.client, plan.job)
        killing = Killing(self.processes, servers, watcher, total) if kill else None
        with WorkerGroup(
            plan,
            settings.workers,
            etcd=etcd,
            cluster=CLUSTER,
            folder=folder,
            deadline_s=DEADLINE_S,
            say=watcher.say,
        ) as group:
            with watcher.stage(f"starting {settings.workers} workers") as stage:
                group.start()
                stage.done = f"{settings.workers} workers are ready"
            disturb = None if killing is None else killing.look
            trained = train_together(group, servers, watcher, total, disturb)
        watcher.say(
            f"trained on {trained.samples:,} samples ({plan.epochs} epochs, {plan.consistency}), "
            f"{trained.samples_per_s:,.0f} samples/s ({trained.seconds:.1f} s)"
        )
        if killing is None:
            return trained, None
        watcher.say(f"samples/s, every {MARK_S:g} s: {marks_of(trained.rates)}")
        return trained, killing.finish()

    def _table(self, plan: TrainPlan) -> SparseTable:
        assert plan.table is not None
        table = self.client.table(plan.table)
        assert isinstance(table, SparseTable)
        return table

    def _evaluate(self, table: SparseTable) -> Evaluation:
        with self.watcher.stage("evaluating on the rows held out") as stage:
            found = LogisticRegression(table.name).evaluate(table, self.samples.test)
            auc = "not defined (one class only)" if found.auc is None else f"{found.auc:.4f}"
            stage.done = f"held out: AUC {auc}, log loss {found.logloss:.4f}"
        return found


def _digest(table: SparseTable, samples: Samples) -> str:
    """SHA-256 of all keys of the model and their weights, bit for bit."""
    keys = np.union1d(samples.train.keys, np.array([BIAS_KEY], np.uint64))
    return hashlib.sha256(keys.tobytes() + table.pull(keys).tobytes()).hexdigest()


def compare(files: Files, settings: Settings, watcher: Watcher) -> dict[str, Any]:
    """scikit-learn on the same rows, when training is over: it takes all the processors."""
    if not settings.compare:
        return {}
    if not baseline.is_installed():
        watcher.say("scikit-learn is not installed: no comparison (pip install scikit-learn)")
        return {}
    with watcher.stage("scikit-learn's LogisticRegression on the same rows") as stage:
        told = _run_baseline(files, settings.sklearn_c)
        state = "converged" if told["converged"] else "NOT converged"
        auc = "-" if told["auc"] is None else f"{told['auc']:.4f}"
        stage.done = (
            f"scikit-learn: AUC {auc}, log loss {told['logloss']:.4f}, {state} after "
            f"{told['iterations']} iterations"
        )
    return told


def _run_baseline(files: Files, c: float) -> dict[str, Any]:
    log = files.folder / "scikit-learn.log"
    command = [sys.executable, "-m", "resilient_ps.cli.baseline", str(files.train)]
    with INTERRUPTS.held():
        process = spawn([*command, str(files.test), repr(c)], log, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout as output:
            readable, _, _ = select.select([output], [], [], BASELINE_DEADLINE_S)
            line = output.readline() if readable else b""
    finally:
        process.kill()
        process.wait()
    if not line:
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        raise Unavailable(f"scikit-learn gave no result: {tail or 'it took too long'}")
    return dict(json.loads(line))

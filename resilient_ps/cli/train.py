"""`resilient-ps train`: workers of a job on a cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.standby import Standby
from resilient_ps.cli.local import load_kernels, running
from resilient_ps.cli.options import (
    ClusterOption,
    ConsistencyOption,
    EtcdOption,
    FormatOption,
    JsonOption,
    Scheduling,
    print_json,
)
from resilient_ps.cli.output import shout
from resilient_ps.cli.plan import DEFAULT_BATCH_SIZE, Model, TrainPlan
from resilient_ps.cli.progress import Training, Watcher
from resilient_ps.cli.resuming import Resume, announce, final_checkpoint
from resilient_ps.cli.running import ServerWatch, Trained, summed_up, train_together
from resilient_ps.cli.storing import with_standby
from resilient_ps.cli.worker import Pipe, Told, run_rank
from resilient_ps.cli.workers import MAX_WORKERS, WorkerGroup
from resilient_ps.client.connection import Client, connect
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.coordinator.data_shards import MAX_PER_EPOCH
from resilient_ps.data import Dataset
from resilient_ps.data.batch import MAX_BATCH_ROWS
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import LocalCluster

RESTORE_PATIENCE_S = 180.0  # a cluster that lost a shard waits before it rolls back
FINAL_DEADLINE_S = 600.0
NOTHING = Trained(0, 0.0, None, ())
EVICTION_CHANGES = (
    "--evict-after under BSP: when a rank is evicted, the result is no longer bitwise that of an "
    "undisturbed run"
)


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, **more)


@with_standby()
def train(
    *,
    model: Annotated[Model, typer.Argument(metavar="MODEL", help="logistic, softmax or mlp.")],
    dataset: Annotated[str, _option("File to train on; the same for all ranks.")],
    job: Annotated[str, _option("Name of the job; the first worker creates it.")] = "train",
    rank: Annotated[int, _option("The rank that this process runs.", min=0)] = 0,
    of: Annotated[int, _option("How many ranks the job has.", min=1)] = 1,
    spawn: Annotated[
        int, _option("Run all ranks, so many, in processes here.", min=0, max=MAX_WORKERS)
    ] = 0,
    servers: Annotated[
        int, _option("Run so many servers here, for the time of the training.", min=0, max=64)
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a job that was broken off; an error if none.")
    ] = False,
    resume_if_any: Annotated[
        bool, typer.Option("--resume-if-any", help="Continue it if there is one, else begin it.")
    ] = False,
    standby: Standby,
    cluster: ClusterOption = "default",
    etcd: EtcdOption = "127.0.0.1:2379",
    consistency: ConsistencyOption = "ssp:3",
    format: FormatOption = "auto",
    label: Annotated[
        str | None, _option("Column with the label, by name or number (csv, tsv, parquet).")
    ] = None,
    on_bad: Annotated[str | None, _option("What to do with bad rows: error or skip.")] = None,
    dense: Annotated[
        bool, typer.Option("--dense", help="Read columns as plain numbers (csv, tsv, parquet).")
    ] = False,
    batch_size: Annotated[
        int, _option("Rows of a clock.", min=1, max=MAX_BATCH_ROWS)
    ] = DEFAULT_BATCH_SIZE,
    epochs: Annotated[int, _option("Passes over the data.", min=1)] = 1,
    schedule: Annotated[
        Scheduling, _option("static: each rank its own part; dynamic: whoever is free takes one.")
    ] = Scheduling.STATIC,
    data_shards: Annotated[
        int | None,
        _option("Parts to cut an epoch into (dynamic).", min=1, max=MAX_PER_EPOCH),
    ] = None,
    retire: Annotated[
        bool,
        typer.Option("--retire", help="End what --rank has in hand, and leave the job (dynamic)."),
    ] = False,
    evict_after: Annotated[
        float | None,
        _option("Seconds of silence after which a rank leaves the job; default: it is waited for."),
    ] = None,
    seed: Annotated[int | None, _option("Shuffle the rows (npz).", min=0)] = None,
    table: Annotated[str | None, _option("Name of the model's table or tables.")] = None,
    optimiser: Annotated[
        str | None, _option("sgd, momentum, adagrad, adam or ftrl; default: as the model likes.")
    ] = None,
    lr: Annotated[float | None, _option("Learning rate (alpha of ftrl).")] = None,
    beta: Annotated[float | None, _option("beta of ftrl.")] = None,
    l1: Annotated[float | None, _option("L1 of ftrl.")] = None,
    l2: Annotated[float | None, _option("L2 of ftrl, or of logistic on dense rows.")] = None,
    momentum: Annotated[float | None, _option("Of the optimiser momentum.")] = None,
    reduction: Annotated[str | None, _option("Gradients of a batch's rows: sum or mean.")] = None,
    classes: Annotated[int | None, _option("Number of classes (softmax, mlp).")] = None,
    hidden: Annotated[str | None, _option("Widths of the hidden layers: 64 or 128,64.")] = None,
    deadline: Annotated[float, _option("Seconds after which a call gives up.", min=0.1)] = 30.0,
    told: Annotated[bool, typer.Option("--told", hidden=True)] = False,
    json: JsonOption = False,
) -> None:
    """Train a model on a cluster: run one rank of a job, or with --spawn all of them.

    MODEL is logistic (on sparse rows, or on dense ones), softmax or mlp (on dense rows). All ranks
    of a job are started with the same flags but --rank. A rank that was killed is started again the
    same way, on any machine: it goes on behind the last clock that it completed. With --spawn this
    is done for you, up to 3 times for each rank. A rank that is not to come back is started once
    more with --retire.

    With --servers a cluster is started here too; with --store, checkpoints are made meanwhile (by
    the servers: --store and what follows it are for those of --servers), and one at the end of the
    job. When everything was killed, the same command with --resume continues from the newest one,
    on any number of servers: each rank behind the last clock that is in it.

    \b
    Examples:
        resilient-ps train logistic --dataset clicks.svm --spawn 4
        resilient-ps train logistic --dataset clicks.svm --spawn 4 --servers 3 \\
            --store ./checkpoints
        resilient-ps train logistic --dataset clicks.svm --spawn 4 --servers 2 \\
            --store ./checkpoints --resume
        resilient-ps train logistic --dataset day_0.gz --format criteo \\
            --job ctr --rank 3 --of 8 --cluster ctr --etcd 10.0.0.1:2379
        resilient-ps train mlp --dataset digits.npz --classes 10 --hidden 64 \\
            --consistency bsp --epochs 20 --optimiser adam --lr 0.001
    """
    plan = TrainPlan(
        model=model, dataset=dataset, job=job, consistency=consistency, format=format,
        batch_size=batch_size, epochs=epochs, table=table, optimiser=optimiser, lr=lr, beta=beta,
        l1=l1, l2=l2, momentum=momentum, reduction=reduction, classes=classes, hidden=hidden,
        label=label, on_bad=on_bad, dense=dense, seed=seed, schedule=schedule.value,
        data_shards=data_shards, evict_after=evict_after,
    )  # fmt: skip
    mode = parse_consistency(consistency)
    if evict_after is not None and isinstance(mode, BSP) and not told:
        shout(EVICTION_CHANGES)
    if schedule is Scheduling.STATIC and (retire or data_shards is not None):
        raise BadInput("--retire and --data-shards need --schedule dynamic")
    if retire and spawn:
        raise BadInput("--retire is for one --rank: without --spawn")
    if not spawn and rank >= of:
        raise BadInput(f"--rank {rank}: ranks are numbered from 0 to --of - 1 = {of - 1}")
    if resume and resume_if_any:
        raise BadInput("give --resume or --resume-if-any")
    rows = plan.open_dataset()
    if told:
        with connect(etcd, cluster, deadline_s=deadline) as client:
            run_rank(client, plan, rows, rank, of, Pipe())
        return
    wished = Resume(required=resume) if resume or resume_if_any else None
    with _cluster(servers, cluster, etcd, standby) as endpoints:
        patience_s = max(deadline, RESTORE_PATIENCE_S) if wished else deadline
        with connect(endpoints, cluster, deadline_s=patience_s) as client:
            if wished is not None and announce(client.catalogue, job, wished) == "done":
                trained = NOTHING
            elif spawn:
                trained = _all_ranks(client, plan, rows, spawn, endpoints, deadline)
            else:
                trained = _one_rank(client, plan, rows, rank, of, retire=retire)
            is_over = client.catalogue.job(job).state == "done"
            last = None
            if standby.store and is_over and trained is not NOTHING:
                last = final_checkpoint(client.catalogue, FINAL_DEADLINE_S)
    result = {"job": job, "of": spawn or of, **_as_json(trained)}
    if standby.store:
        result["checkpoint"] = None if last is None else last.id
    if json:
        print_json(result)
    else:
        print(_summary(job, trained))


@contextmanager
def _cluster(servers: int, cluster: str, etcd: str, standby: Standby) -> Iterator[str]:
    """Endpoints of the coordination: as told, or of a cluster of our own."""
    if not servers:
        yield etcd
        return
    processes = LocalCluster(servers, cluster=cluster, standby=standby)
    watcher = Watcher()
    load_kernels(watcher)
    with ExitStack() as stack:
        with watcher.stage(f"starting {servers} servers") as stage:
            stack.enter_context(running(processes))
            stage.done = f"{servers} servers are up, coordination: {processes.coordination.kind}"
        yield ",".join(processes.endpoints)


def _one_rank(
    client: Client, plan: TrainPlan, dataset: Dataset, rank: int, of: int, *, retire: bool
) -> Trained:
    counts = dataset.batches_per_rank(of, plan.batch_size, plan.epochs)
    known = counts is not None and plan.schedule == "static"
    watcher = Watcher()
    shown = _Shown(counts[rank] * plan.batch_size if counts and known else None, watcher)
    with watcher.training():
        told = run_rank(client, plan, dataset, rank, of, shown, retire=retire)
    return summed_up([told], told.loss if told.rows else None)


class _Shown:
    """Shows what this process's own rank tells."""

    def __init__(self, total: int | None, watcher: Watcher) -> None:
        self._total = total
        self._watcher = watcher
        self._training = Training(None, time.monotonic())

    def ready(self, told: Told) -> None:
        self._training = Training(self._total, time.monotonic())
        if told.clock > 1:
            self._watcher.say(f"rank {told.rank} continues at clock {told.clock}")

    def tell(self, told: Told) -> None:
        self._training.take([told])
        self._watcher.show(self._training)


def _all_ranks(
    client: Client, plan: TrainPlan, dataset: Dataset, of: int, etcd: str, deadline_s: float
) -> Trained:
    plan.build_model(dataset)  # refuses what is wrong before anything is started
    counts = dataset.batches_per_rank(of, plan.batch_size, plan.epochs)
    total = None if counts is None else sum(counts) * plan.batch_size
    watcher = Watcher()
    servers = ServerWatch(client, plan.job)
    with (
        tempfile.TemporaryDirectory(prefix="resilient-ps-train-") as folder,
        WorkerGroup(
            plan,
            of,
            etcd=etcd,
            cluster=client.cluster,
            folder=Path(folder),
            deadline_s=deadline_s,
            say=watcher.say,
        ) as group,
    ):
        with watcher.stage(f"starting {of} workers") as stage:
            group.start()
            stage.done = f"{of} workers are ready"
        return train_together(group, servers, watcher, total)


def _as_json(trained: Trained) -> dict[str, Any]:
    return {
        "samples": trained.samples,
        "seconds": round(trained.seconds, 3),
        "samples_per_s": round(trained.samples_per_s, 1),
        "loss": trained.loss,
        "ranks": [
            {name: asdict(told)[name] for name in ("rank", "samples", "clock")}
            for told in trained.ranks
        ],
    }


def _summary(job: str, trained: Trained) -> str:
    if not trained.samples:
        return f"job {job}: nothing left to do, it was trained before"
    loss = "" if trained.loss is None else f", loss at the end {trained.loss:.4f}"
    return (
        f"job {job}: {trained.samples:,} samples in {trained.seconds:.1f} s "
        f"({trained.samples_per_s:,.0f} samples/s){loss}"
    )

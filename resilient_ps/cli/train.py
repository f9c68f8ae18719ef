"""`resilient-ps train`: workers of a job on a cluster."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.standby import Standby
from resilient_ps.cli import algorithms
from resilient_ps.cli.algorithms import Rows, test_rows
from resilient_ps.cli.local import cluster_for
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
from resilient_ps.data.batch import MAX_BATCH_ROWS
from resilient_ps.data.corpus import Corpus
from resilient_ps.errors import BadInput

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
    model: Annotated[
        Model,
        typer.Argument(metavar="MODEL", help=f"One of: {', '.join(Model)}; default: lr."),
    ] = Model.LR,
    dataset: Annotated[
        str,
        _option("File to train on; the same for all ranks. Or: movielens-100k (mf, fm), reuters."),
    ],
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
        Scheduling,
        _option(
            "static: each rank its own part; dynamic: whoever is free takes one; rotation: blocks "
            "go round (mf, lda); pipeline: layer by layer (mlp)."
        ),
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
    seed: Annotated[
        int | None, _option("Shuffle the rows (npz); of random numbers (lda, rotation).", min=0)
    ] = None,
    table: Annotated[str | None, _option("Name of the model's table or tables.")] = None,
    optimiser: Annotated[
        str | None, _option("sgd, momentum, adagrad, adam or ftrl; default: as the model likes.")
    ] = None,
    lr: Annotated[float | None, _option("Learning rate (alpha of ftrl).")] = None,
    beta: Annotated[float | None, _option("beta of ftrl.")] = None,
    l1: Annotated[float | None, _option("L1 of ftrl.")] = None,
    l2: Annotated[
        float | None, _option("L2 of ftrl, of logistic on dense rows, of fm and mf.")
    ] = None,
    momentum: Annotated[float | None, _option("Of the optimiser momentum.")] = None,
    reduction: Annotated[str | None, _option("Gradients of a batch's rows: sum or mean.")] = None,
    classes: Annotated[int | None, _option("Number of classes (softmax, mlp).")] = None,
    hidden: Annotated[
        str | None, _option("Widths of the hidden layers: 64 or 128,64 (mlp, embedding-mlp).")
    ] = None,
    task: Annotated[str | None, _option("classification or regression (fm).")] = None,
    factors: Annotated[int | None, _option("Numbers in a vector (fm, mf).")] = None,
    dim: Annotated[int | None, _option("Numbers in an embedding (embedding-mlp).")] = None,
    fields: Annotated[
        int | None, _option("Features of a row; default: as the first row (embedding-mlp).")
    ] = None,
    topics: Annotated[int | None, _option("How many (lda).")] = None,
    alpha: Annotated[float | None, _option("Prior of documents (lda).")] = None,
    eta: Annotated[float | None, _option("Prior of topics (lda).")] = None,
    vocabulary: Annotated[str | None, _option("File with a word a line (lda).")] = None,
    parts: Annotated[int | None, _option("Blocks that go round (rotation).")] = None,
    micro_batches: Annotated[int | None, _option("Parts to cut an epoch into (pipeline).")] = None,
    in_flight: Annotated[
        int | None, _option("Micro-batches under way; default: one for each layer (pipeline).")
    ] = None,
    test: Annotated[str | None, _option("File with rows to judge the trained model by.")] = None,
    evaluate: Annotated[
        bool | None,
        typer.Option(
            "--evaluate/--no-evaluate",
            help="Judge the model at the end; default: with --spawn, or when --test is given.",
        ),
    ] = None,
    deadline: Annotated[float, _option("Seconds after which a call gives up.", min=0.1)] = 30.0,
    told: Annotated[bool, typer.Option("--told", hidden=True)] = False,
    json: JsonOption = False,
) -> None:
    """Train a model on a cluster: run one rank of a job, or with --spawn all of them.

    MODEL is lr (or logistic: on sparse rows, or on dense ones), softmax or mlp (on dense rows), fm,
    mf or embedding-mlp (on sparse rows), or lda (on documents in the format of LDA-C). All ranks of
    a job are started with the same flags but --rank. A rank that was killed is started again the
    same way, on any machine: it goes on behind the last clock that it completed. With --spawn this
    is done for you, up to 3 times for each rank. A rank that is not to come back is started once
    more with --retire.

    With --schedule rotation and pipeline processes are no ranks: each takes tasks of a graph that
    is named after the job (`resilient-ps ns watch` shows it), and any number of them can join.

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
        resilient-ps train mf --dataset movielens-100k --servers 2 --spawn 2 \\
            --schedule rotation --epochs 20
        resilient-ps train lda --dataset reuters --servers 2 --spawn 2 \\
            --topics 20 --epochs 50
    """
    plan = TrainPlan(
        model=model, dataset=dataset, job=job, consistency=consistency, format=format,
        batch_size=batch_size, epochs=epochs, table=table, optimiser=optimiser, lr=lr, beta=beta,
        l1=l1, l2=l2, momentum=momentum, reduction=reduction, classes=classes, hidden=hidden,
        task=task, factors=factors, dim=dim, fields=fields, topics=topics, alpha=alpha, eta=eta,
        vocabulary=vocabulary, parts=parts, micro_batches=micro_batches, in_flight=in_flight,
        label=label, on_bad=on_bad, dense=dense, seed=seed, schedule=schedule.value,
        data_shards=data_shards, evict_after=evict_after,
    )  # fmt: skip
    mode = parse_consistency(consistency)
    if evict_after is not None and isinstance(mode, BSP) and not told:
        shout(EVICTION_CHANGES)
    if resume and resume_if_any:
        raise BadInput("give --resume or --resume-if-any")
    if not spawn and rank >= of:
        raise BadInput(f"--rank {rank}: ranks are numbered from 0 to --of - 1 = {of - 1}")
    _check_schedule(plan, spawn=spawn, retire=retire)
    rows = plan.open_dataset()
    if told:
        with connect(etcd, cluster, deadline_s=deadline) as client:
            run_rank(client, plan, rows, rank, of, Pipe())
        return
    judged = evaluate if evaluate is not None else bool(spawn or test)
    judged_by = test_rows(plan, rows, test) if judged else None  # refused before all else
    wished = Resume(required=resume) if resume or resume_if_any else None
    with cluster_for(servers, cluster, etcd, standby) as endpoints:
        patience_s = max(deadline, RESTORE_PATIENCE_S) if wished else deadline
        with connect(endpoints, cluster, deadline_s=patience_s) as client:
            if wished is not None and announce(client.catalogue, job, wished) == "done":
                trained = NOTHING
            elif spawn:
                trained = _all_ranks(client, plan, rows, spawn, endpoints, deadline)
            else:
                trained = _one_rank(client, plan, rows, rank, of, retire=retire)
            is_over = client.catalogue.job(job).state == "done"
            last = found = None
            if standby.store and is_over and trained is not NOTHING:
                last = final_checkpoint(client.catalogue, FINAL_DEADLINE_S)
            if judged_by is not None and is_over:
                found = algorithms.evaluate(client, plan.build_model(rows), judged_by[0])
    result = {"job": job, "of": spawn or of, **_as_json(trained), "evaluation": found}
    if standby.store:
        result["checkpoint"] = None if last is None else last.id
    if json:
        print_json(result)
    else:
        print(_summary(job, trained))
        if found is not None and judged_by is not None:
            print(algorithms.evaluation_line(found, judged_by[1]))


def _check_schedule(plan: TrainPlan, *, spawn: int, retire: bool) -> None:
    """Flags that need a certain schedule. Raises `BadInput`."""
    if plan.schedule != "dynamic" and (retire or plan.data_shards is not None):
        raise BadInput("--retire and --data-shards need --schedule dynamic")
    if retire and spawn:
        raise BadInput("--retire is for one --rank: without --spawn")
    if plan.by_tasks and plan.evict_after is not None:
        raise BadInput(f"--evict-after: tasks of --schedule {plan.schedule} are granted anew")


def _one_rank(
    client: Client, plan: TrainPlan, dataset: Rows, rank: int, of: int, *, retire: bool
) -> Trained:
    total = None
    if plan.schedule == "static" and not isinstance(dataset, Corpus):
        counts = dataset.batches_per_rank(of, plan.batch_size, plan.epochs)
        total = counts[rank] * plan.batch_size if counts else None
    watcher = Watcher()
    shown = _Shown(total, watcher)
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
    client: Client, plan: TrainPlan, dataset: Rows, of: int, etcd: str, deadline_s: float
) -> Trained:
    plan.build_model(dataset)  # refuses what is wrong before anything is started
    total = algorithms.samples_total(plan, dataset, of)
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
        trained = train_together(group, servers, watcher, total)
    # Of tasks, each process knows the losses of those that it happened to do
    return replace(trained, loss=None) if plan.by_tasks else trained


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

"""`resilient-ps demo`: train on real data, on a cluster of this machine, and compare the result."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from resilient_ps.cli.demonstration import Settings, demonstrate
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.options import (
    ConsistencyOption,
    Coordination,
    CoordinationOption,
    FormatOption,
    JsonOption,
    ServersOption,
    print_json,
)
from resilient_ps.cli.output import grid, results
from resilient_ps.cli.plan import Model, TrainPlan
from resilient_ps.cli.progress import Watcher
from resilient_ps.cli.samples import file_samples, flight_samples
from resilient_ps.cli.standby_demo import demonstrate_standby
from resilient_ps.cli.storing import Store, with_s3_options
from resilient_ps.cli.workers import MAX_WORKERS
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.data.batch import MAX_BATCH_ROWS
from resilient_ps.errors import BadInput
from resilient_ps.models import LogisticRegression
from resilient_ps.models.presets import (
    FLIGHTS_BATCH_SIZE,
    FLIGHTS_EPOCHS,
    FLIGHTS_SKLEARN_C,
    flights_model,
)
from resilient_ps.tables.optimisers import FTRL

AUC_TOLERANCE = 0.005


@with_s3_options("s3")
def demo(
    *,
    servers: ServersOption = 3,
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_WORKERS, help="Worker processes to start.")
    ] = 4,
    consistency: ConsistencyOption = "ssp:3",
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over the data.", show_default=str(FLIGHTS_EPOCHS)),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MAX_BATCH_ROWS, help="Rows of a clock.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Train on this file and not on the flights.")
    ] = None,
    format: FormatOption = "auto",
    test_file: Annotated[
        str | None, typer.Option(help="Rows held out; default: the last 20 % of --dataset.")
    ] = None,
    validation: Annotated[
        bool,
        typer.Option("--validation", help="Hold out the last training days: to choose settings."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many rows at most, the last ones.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="alpha of FTRL.")] = None,
    l2: Annotated[float | None, typer.Option(help="L2 of FTRL, and 1/C of scikit-learn.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Shuffle the rows in every epoch.")
    ] = None,
    kill: Annotated[
        bool,
        typer.Option("--kill", help="Train once more, and kill a server in the middle."),
    ] = False,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            help="Train once more with checkpoints there (s3://BUCKET/PREFIX, a folder, or "
            "seaweedfs: an S3 server of our own), and kill everything in the middle.",
        ),
    ] = "",
    s3: Store,
    coordination: CoordinationOption = Coordination.AUTO,
    sklearn: Annotated[
        bool, typer.Option("--sklearn/--no-sklearn", help="Compare with scikit-learn.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Train on real data with several servers and workers, and compare with scikit-learn.

    Which flights that left New York in 2013 arrived more than 15 minutes late? Hashed sparse
    logistic regression, from what was known before the departure; the last fifth of the days is
    held out. Servers, workers and coordination are processes of their own on this machine; all of
    it is gone at the end. Exit code 1: the AUC is more than 0.005 below scikit-learn's.

    With --kill the training is run twice: undisturbed, and with a server killed in the middle
    (SIGKILL) and started again a little later. With --consistency bsp both must end with the same
    model, byte for byte; otherwise with the same quality. Exit code 1: they do not.

    With --checkpoint all of it is killed in the middle: servers, workers and the coordination.
    Other servers, of another number, are started with nothing but the store, and the job goes on
    behind the newest checkpoint. The result is compared in the same way.

    \b
    Examples:
        resilient-ps demo
        resilient-ps demo --consistency bsp --servers 2 --workers 2
        resilient-ps demo --kill --consistency bsp
        resilient-ps demo --checkpoint ./checkpoints --consistency bsp
        resilient-ps demo --checkpoint s3://backups/demo \\
            --s3-endpoint http://127.0.0.1:9000
        resilient-ps demo --dataset clicks.svm.gz --epochs 3 --json
        resilient-ps demo --dataset train.csv --test-file test.csv --no-sklearn
        resilient-ps demo --validation --lr 0.05 --l2 300 --epochs 4
    """
    parse_consistency(consistency)
    if validation and dataset is not None:
        raise BadInput("--validation is for the flights: with --dataset give --test-file")
    if kill and servers < 2:
        raise BadInput("--kill needs at least 2 --servers: another one has to go on")
    if kill and checkpoint:
        raise BadInput("give --kill or --checkpoint: one story at a time")
    watcher = Watcher()
    with watcher.stage(f"reading {dataset or 'the flights of New York 2013'}") as stage:
        samples = (
            flight_samples(limit, validation=validation)
            if dataset is None
            else file_samples(dataset, format, test_file, limit)
        )
        stage.done = (
            f"{samples.what}: {len(samples.train):,} rows to train on, "
            f"{len(samples.test):,} held out"
        )
    model = flights_model() if dataset is None else LogisticRegression("demo/weights")
    plan, c = _plan(model, flights=dataset is None, lr=lr, l2=l2)
    plan = dataclasses.replace(
        plan,
        consistency=consistency,
        epochs=epochs or FLIGHTS_EPOCHS,
        batch_size=batch_size or FLIGHTS_BATCH_SIZE,
        seed=seed,
    )
    settings = Settings(servers, workers, coordination, plan, c, compare=sklearn, kill=kill)
    if checkpoint:
        place = dataclasses.replace(s3, url=checkpoint)
        result = demonstrate_standby(settings, samples, place, watcher)
    else:
        result = demonstrate(settings, samples, watcher)
    if json:
        print_json(result)
    else:
        _print(result)
    if (wrong := verdict(result)) is not None:
        watcher.say(wrong, style="bold red")
        raise typer.Exit(EXIT_NEGATIVE)


def _plan(
    model: LogisticRegression, *, flights: bool, lr: float | None, l2: float | None
) -> tuple[TrainPlan, float]:
    """The plan of the workers for this model, and the C that gives scikit-learn the same task."""
    optimiser = model.optimiser
    assert isinstance(optimiser, FTRL)
    plan = TrainPlan(
        model=Model.LOGISTIC,
        dataset="",
        job="demo",
        format="npz",
        table=model.table,
        reduction=model.reduction,
        optimiser=optimiser.name,
        lr=optimiser.alpha if lr is None else lr,
        beta=optimiser.beta,
        l1=optimiser.l1,
        l2=optimiser.l2 if l2 is None else l2,
    )
    if flights and l2 is None:
        return plan, FLIGHTS_SKLEARN_C
    return plan, 1.0 / plan.l2 if plan.l2 else 1e10


def _print(result: dict[str, Any]) -> None:
    calm = result.get("undisturbed")
    columns = ["", "resilient-ps", "scikit-learn"]
    if calm is not None:
        columns[1:2] = ["undisturbed", f"{result['killed']['server']} killed"]
    rows = [
        (
            text,
            *([] if calm is None else [_number(calm[name])]),
            _number(result[name]),
            _number(result[f"{name}_sklearn"]),
        )
        for text, name in (("held-out AUC", "auc"), ("held-out log loss", "logloss"))
    ]
    results().print(grid("", columns, rows, right=",".join(columns[1:])))
    print(
        f"{result['samples']:,} samples in {result['seconds']:.1f} s: "
        f"{result['samples_per_s']:,.0f} samples/s with {result['servers']} servers and "
        f"{result['workers']} workers, {result['consistency']}, coordination "
        f"{result['coordination']}"
    )
    if calm is not None and calm["digest"] == result["digest"]:
        print(f"both models are byte-identical (sha256 {result['digest'][:16]}...)")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def verdict(result: dict[str, Any]) -> str | None:
    """What is wrong with the result; None when it is as good as it should be."""
    return _verdict_on_the_kill(result) or _verdict_on_the_quality(result)


def _verdict_on_the_kill(result: dict[str, Any]) -> str | None:
    calm = result.get("undisturbed")
    if calm is None:
        return None
    if isinstance(parse_consistency(result["consistency"]), BSP):
        if calm["digest"] == result["digest"]:
            return None
        return (
            f"the model (sha256 {result['digest'][:16]}...) is not that of the undisturbed run "
            f"({calm['digest'][:16]}...): under BSP they must be byte-identical; please report this"
        )
    if calm["auc"] is None or abs(calm["auc"] - result["auc"]) <= AUC_TOLERANCE:
        return None
    return (
        f"the AUC {result['auc']:.4f} differs from that of the undisturbed run, {calm['auc']:.4f}, "
        f"by more than {AUC_TOLERANCE}"
    )


def _verdict_on_the_quality(result: dict[str, Any]) -> str | None:
    ours, theirs = result["auc"], result["auc_sklearn"]
    if ours is None or theirs is None or ours >= theirs - AUC_TOLERANCE:
        return None
    return (
        f"the AUC {ours:.4f} is {theirs - ours:.4f} below scikit-learn's {theirs:.4f}; at most "
        f"{AUC_TOLERANCE} is expected: try more --epochs, or another --lr or --l2"
    )

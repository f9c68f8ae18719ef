"""`resilient-ps bench platforms`: the command."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from resilient_ps.cli.bars import bar
from resilient_ps.cli.bench.page import check_plot
from resilient_ps.cli.bench.platforms.problems import problems
from resilient_ps.cli.bench.platforms.report import (
    REMEDY,
    as_json,
    as_table,
    holds,
    notes,
    page,
)
from resilient_ps.cli.bench.platforms.run import PLATFORMS, Plan, Platform, measure
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.local import load_kernels
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import print_notes, remark, results, shout
from resilient_ps.cli.progress import Watcher
from resilient_ps.errors import BadInput

SECONDS, QUICK_SECONDS = 15.0, 3.0
QUICK_SCALE = 0.1


def platforms(
    *,
    only: Annotated[
        str, typer.Option("--only", help="Problems, separated by commas; default: all.")
    ] = "",
    peers: Annotated[
        str, typer.Option("--peers", help="pytorch, spark, scikit, or none; default: all.")
    ] = "pytorch,spark,scikit",
    workers: Annotated[int, typer.Option(min=1, max=32, help="Workers of each platform.")] = 2,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.0, max=3600.0,
            help=f"Of each run; 0: {SECONDS:g}, or {QUICK_SECONDS:g} with --quick.",
        ),
    ] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each kind.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the planted data.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small problems, short runs.")] = False,
    plot: Annotated[
        str, typer.Option("--plot", metavar="FILE.html", help="Write drawings for a browser.")
    ] = "",
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 1 when a peer is ahead in logistic regression."),
    ] = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Train the same models on other platforms on this machine, and compare them.

    Two-class logistic regression on 10,000 rows of 10,000 numbers, softmax regression and networks
    with one and two hidden layers on 60,000 rows of 784: the tasks of "A comparison of distributed
    machine learning platforms" (2017), on planted data. Equal batches, one BLAS thread per worker,
    one platform after the other. Peers are PyTorch, Spark and scikit-learn; who is not
    installed is skipped.

    \b
    Examples:
        resilient-ps bench platforms --quick
        resilient-ps bench platforms --plot platforms.html --json > platforms.json
        resilient-ps bench platforms --only logistic --peers pytorch --check
    """  # fmt: skip
    if plot:
        check_plot(plot)
    began_s = time.monotonic()
    chosen, missing = _platforms(peers)
    for each in missing:
        shout(f"{each.name} is skipped: it is not installed ({REMEDY})")
    known = problems(QUICK_SCALE if quick else 1.0)
    names = only.split(",") if only else [problem.name for problem in known]
    for name in names:
        if name not in [problem.name for problem in known]:
            raise BadInput(f"--only {name!r} is none of: {', '.join(p.name for p in known)}")
    load_kernels(Watcher())
    with tempfile.TemporaryDirectory(prefix="resilient-ps-bench-") as folder:
        plan = Plan(
            [problem for problem in known if problem.name in names],
            chosen,
            workers,
            seconds or (QUICK_SECONDS if quick else SECONDS),
            rounds,
            seed,
            Path(folder),
        )
        with bar("starting", plan.count, "runs") as shown:
            rows = measure(plan, shown.say, shown)
    taken_s = time.monotonic() - began_s
    if plot:
        page(plan, rows, missing, seconds=taken_s).write(Path(plot))
        remark(f"drawings: {plot}")
    if json:
        print_json(as_json(plan, rows, seconds=taken_s))
    else:
        results().print(as_table(rows))
        print_notes(notes(plan, missing))
    if check and holds(rows) is False:
        raise typer.Exit(EXIT_NEGATIVE)


def _platforms(peers: str) -> tuple[list[Platform], list[Platform]]:
    """(what is run, what was asked for and is not installed)."""
    asked = [] if peers == "none" else peers.split(",")
    known = [each.program for each in PLATFORMS if not each.is_ours]
    for name in asked:
        if name not in known:
            raise BadInput(f"--peers {name!r} is none of: {', '.join(known)}, none")
    wanted = [each for each in PLATFORMS if each.is_ours or each.program in asked]
    return [p for p in wanted if p.is_installed], [p for p in wanted if not p.is_installed]

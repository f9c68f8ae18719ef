"""`resilient-ps bench consistency`: the command."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from resilient_ps.cli.bars import bar
from resilient_ps.cli.bench.page import check_plot
from resilient_ps.cli.bench.planted import sparse_rows
from resilient_ps.cli.bench.stragglers.report import as_json, as_table, notes, page
from resilient_ps.cli.bench.stragglers.slowness import Pattern
from resilient_ps.cli.bench.stragglers.study import BAR, BAR_OF, Setting, Study, perform
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.local import load_kernels, running
from resilient_ps.cli.options import FormatOption, JsonOption, print_json
from resilient_ps.cli.output import print_notes, remark, results
from resilient_ps.cli.progress import Watcher
from resilient_ps.cli.samples import Samples, file_samples
from resilient_ps.client.launch import RunningCluster
from resilient_ps.consistency import consistency_name, parse_consistency
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import LocalCluster

USUAL = "bsp,ssp:1,ssp:3,ssp:8,asp"
CLOCKS, QUICK_CLOCKS = 200, 40
KEYS, PER_ROW, HELD_OUT_ROWS = 20_000, 20, 4_000
MAX_WORKERS, MAX_CLOCKS = 32, 100_000
CLUSTER = "bench-consistency"


def consistency(
    *,
    workers: Annotated[int, typer.Option(min=2, max=MAX_WORKERS, help="Worker processes.")] = 4,
    modes: Annotated[
        str, typer.Option("--modes", help="Consistencies to compare, separated by commas.")
    ] = USUAL,
    pattern: Annotated[
        str, typer.Option("--pattern", help="Who is slow: random, fixed, or both.")
    ] = "both",
    clocks: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_CLOCKS,
            help=f"Clocks of a run; 0: {CLOCKS}, or {QUICK_CLOCKS} with --quick.",
        ),
    ] = 0,
    compute_ms: Annotated[
        float, typer.Option(min=0.0, max=60_000.0, help="How long a clock's computation sleeps.")
    ] = 40.0,
    factor: Annotated[
        float, typer.Option(min=1.0, max=100.0, help="How many times as long, where it is slow.")
    ] = 3.0,
    batch_size: Annotated[int, typer.Option(min=1, max=65_536, help="Rows of a clock.")] = 256,
    dataset: Annotated[
        str, typer.Option(help="A file with sparse rows and labels; default: planted rows.")
    ] = "",
    format: FormatOption = "auto",
    lr: Annotated[float, typer.Option(min=1e-9, help="Learning rate of Adagrad.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Who is slow, and the planted rows.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each kind.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few clocks.")] = False,
    plot: Annotated[
        str, typer.Option("--plot", metavar="FILE.html", help="Write drawings for a browser.")
    ] = "",
    check: Annotated[
        bool,
        typer.Option("--check", help=f"Exit with 1 when {BAR_OF} is not {BAR} times bsp."),
    ] = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Compare BSP, SSP and ASP where workers are slow at times: a study with real processes.

    Workers of this machine train logistic regression on a cluster of its own. In every clock one
    of them, drawn anew, computes 3 times as long (random); then one of them always does (fixed):
    there no bound helps in the long run. Computing is a sleep of a given time and the real
    gradient, so that what is measured is who waits for whom, and not that the cores are few.

    \b
    Examples:
        resilient-ps bench consistency --quick
        resilient-ps bench consistency --plot study.html --json > study.json
        resilient-ps bench consistency --modes bsp,ssp:3 --pattern random --check
        resilient-ps bench consistency --dataset clicks.svm
    """  # fmt: skip
    names, patterns = _modes(modes), _patterns(pattern)
    if plot:
        check_plot(plot)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resilient-ps-bench-") as folder:
        clocks = clocks or (QUICK_CLOCKS if quick else CLOCKS)
        rows = clocks * workers * batch_size
        samples = file_samples(dataset, format, None, rows) if dataset else _planted(rows, seed)
        path = Path(folder) / "rows.npz"
        samples.train.save(path)
        per_epoch = max(samples.train.batches_per_rank(workers, batch_size))
        epochs = math.ceil(clocks / per_epoch)
        setting = Setting(
            workers, per_epoch * epochs, batch_size, epochs, compute_ms / 1e3, factor, seed, lr,
            path, samples.test,
        )  # fmt: skip
        study = _perform(setting, patterns, names, rounds, Path(folder))
    seconds = time.monotonic() - began_s
    if plot:
        page(setting, study, seconds=seconds).write(Path(plot))
        remark(f"drawings: {plot}")
    if json:
        print_json(as_json(setting, study, seconds=seconds))
    else:
        _show(setting, study, samples.what)
    if check and study.holds is False:
        raise typer.Exit(EXIT_NEGATIVE)


def _perform(
    setting: Setting, patterns: Sequence[Pattern], modes: Sequence[str], rounds: int, folder: Path
) -> Study:
    processes = LocalCluster(1, replicas=1, cluster=CLUSTER)
    load_kernels(Watcher())
    total = rounds * len(patterns) * len(modes) * setting.clocks * setting.ranks
    with running(processes), bar("starting", total, "clocks") as shown:

        def on_news(what: str, clocks: int) -> None:
            shown.say(what)
            shown.set(clocks)

        cluster = RunningCluster(processes)
        return perform(cluster, setting, patterns, modes, rounds, folder, on_news)


def _planted(rows: int, seed: int) -> Samples:
    what = f"planted rows (synthetic): {PER_ROW} of {KEYS:,} features each"
    train = sparse_rows(rows, KEYS, PER_ROW, seed)
    return Samples(what, train, sparse_rows(HELD_OUT_ROWS, KEYS, PER_ROW, seed + 1))


def _modes(text: str) -> list[str]:
    names = [consistency_name(parse_consistency(each)) for each in text.split(",")]
    if len(set(names)) < len(names):
        raise BadInput(f"--modes {text}: one of them is there twice")
    return names


def _patterns(text: str) -> list[Pattern]:
    if text == "both":
        return list(Pattern)
    if text not in list(Pattern):
        raise BadInput(f"--pattern {text!r} is none of: random, fixed, both")
    return [Pattern(text)]


def _show(setting: Setting, study: Study, what: str) -> None:
    console = results()
    console.print(f"data: {what}")
    console.print(as_table(study))
    print_notes(notes(setting, study))
    gain = study.gain(Pattern.RANDOM, BAR_OF) if study.of(Pattern.RANDOM, BAR_OF) else None
    if gain is not None:
        verdict = "reached" if study.holds else "NOT reached"
        text = f"{BAR_OF} beside bsp, random straggler: {gain:.2f} x (bar {BAR}: {verdict})"
        console.print(text, style=None if study.holds else "bold red")

"""`resilient-ps simulate`: a whole cluster in one thread, under faults, in virtual time."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from resilient_ps.chaos.sim.minimise import minimise
from resilient_ps.chaos.sim.outcome import Outcome, RunKind
from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.chaos.sim.schedule import Schedule
from resilient_ps.chaos.sim.setup import (
    STORE_EVERY,
    Setup,
    WorkloadName,
    schedule_of,
    setup_of,
)
from resilient_ps.cli.compiled.showing import compiling_shown
from resilient_ps.cli.compiled.starting import compiled_folder, is_compiled, machines, run_from
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import remark
from resilient_ps.cli.tally import Extent, Tally
from resilient_ps.errors import BadInput
from resilient_ps.tables.warm_up import warm_up, warm_up_client

LINE_EVERY_S = 5.0
NAMED_MOST = 20  # seeds that are named in one line
STORIES_MOST = 1  # failures that are minimised and told
JOBS_MOST = 256


class Kind(StrEnum):
    """Which runs a seed gets."""

    SAFETY = "safety"
    LIVENESS = "liveness"
    BOTH = "both"


class Work(StrEnum):
    """What is done in a run."""

    MIXED = "mixed"
    TRAINING = "training"
    TRANSFERS = "transfers"
    TASKS = "tasks"


@dataclass(frozen=True, slots=True)
class Task:
    """One run to be made. `only`: which of the seed's faults; None: all.

    `store`: with an object store, or without one; `workload`; None: as the seed decides.
    """

    seed: int
    kind: RunKind
    only: tuple[int, ...] | None = None
    store: bool | None = None
    workload: Work | None = None

    @property
    def setup(self) -> Setup:
        """The cluster of the run."""
        named: WorkloadName | None = None if self.workload is None else self.workload.value
        return setup_of(self.seed, store=self.store, workload=named)

    def schedule(self) -> Schedule:
        """The faults of the run."""
        faults = schedule_of(self.seed, self.setup)
        if self.only is None:
            return faults
        if not all(0 <= index < len(faults) for index in self.only):
            raise BadInput(f"--only: seed {self.seed} has the faults 0 to {len(faults) - 1}")
        return tuple(faults[index] for index in self.only)

    def run(self, *, with_story: bool = False) -> Outcome:
        """Make it."""
        return self.run_with(self.schedule(), with_story=with_story)

    def run_with(self, schedule: Schedule, *, with_story: bool = True) -> Outcome:
        """Make it with other faults."""
        return run_seed(
            self.seed,
            kind=self.kind,
            schedule=schedule,
            setup=self.setup,
            with_story=with_story,
        )

    def command(self, schedule: Schedule) -> str:
        """What a user types to see it again."""
        faults = schedule_of(self.seed, self.setup)
        text = f"resilient-ps simulate --seed {self.seed} --kind {self.kind}"
        if self.store is not None:
            text += " --store" if self.store else " --no-store"
        if self.workload is not None:
            text += f" --workload {self.workload}"
        if len(schedule) < len(faults):
            indices = [str(index) for index, fault in enumerate(faults) if fault in schedule]
            text += f" --only {','.join(indices) or 'none'}"
        return text


def simulate(
    *,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="How many seeds to run: 0, 1, 2, ...")
    ] = 200,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Run this seed only, and tell its story.")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            help="safety: all faults end, then everything is checked. liveness: a majority "
            "survives, all else stays broken, and work must go on.",
        ),
    ] = Kind.BOTH,
    only: Annotated[
        str,
        typer.Option(
            "--only", metavar="I,J,...", help="Of the seed's faults only these; none: no fault."
        ),
    ] = "",
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="With an object store, checkpoints, and disasters that no replica survives; or "
            f"without. By default every {STORE_EVERY}th seed has one.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        Work | None,
        typer.Option(
            "--workload",
            help="What is done, in every run: mixed counts under BSP, SSP and ASP; training is in "
            "floats; transfers is a bank; tasks is a graph, whose holders come and go. By default "
            "seeds decide.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=JOBS_MOST, help="Processes to run seeds in.")
    ] = 1,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="Run the machines as machine code: the same runs, in half the time. It is made "
            "once per version, in some minutes; needs a C compiler and resilient-ps[compiled].",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run clusters under random faults in virtual time, and check every promise.

    Each seed decides a workload, and a schedule of crashes, pauses, partitions and troubles of
    etcd. Some clusters have an object store, with troubles of its own: they make checkpoints, and
    go back to one when a shard, all servers or etcd itself are lost. The same seed gives the same
    run everywhere. When a promise is broken, the shortest schedule that still breaks it is looked
    for, and the run's story is told.

    Exit codes: 0 all promises held, 1 one was broken, 2 a run could not be decided.

    \b
    Examples:
        resilient-ps simulate
        resilient-ps simulate --seeds 1000 --jobs 4 --json
        resilient-ps simulate --seed 17 --kind safety
        resilient-ps simulate --store --seeds 100
        resilient-ps simulate --workload tasks --seeds 50
        resilient-ps simulate --compiled --seeds 2000
    """
    indices = _indices(only)
    if indices is not None and (seed is None or kind is Kind.BOTH):
        raise BadInput("--only needs --seed and one --kind: safety or liveness")
    kinds: tuple[RunKind, ...] = ("safety", "liveness")
    if kind is not Kind.BOTH:
        kinds = tuple(one for one in kinds if one == kind.value)
    numbers = range(seeds) if seed is None else (seed,)
    tasks = [Task(number, one, indices, store, workload) for number in numbers for one in kinds]
    for task in tasks[:1]:
        task.schedule()  # what is wrong with `only` is to be told before anything is run
    if compiled and not is_compiled():
        with compiling_shown() as tell:
            folder = compiled_folder(tell)
        run_from(folder)
    if jobs == 1:
        _make_ready()
    tally = Tally(time.monotonic(), len(kinds), min(jobs, len(tasks)))
    with _watching(tally, len(tasks)) as show:
        for outcome in _outcomes(tasks, jobs):
            tally.take(outcome)
            show()
    failures = [_explained(outcome, tasks[0]) for outcome in _first(tally.violated)]
    if json:
        print_json(_as_json(tally, failures))
    else:
        show_results(tally, failures, _story_of(tasks) if seed is not None and not failures else ())
    if tally.exit_code:
        raise typer.Exit(tally.exit_code)


# -- running


def _indices(only: str) -> tuple[int, ...] | None:
    if not only:
        return None
    if only == "none":
        return ()
    try:
        return tuple(sorted({int(index) for index in only.split(",")}))
    except ValueError:
        raise BadInput(f"--only takes numbers with commas between them, not {only!r}") from None


def _make_ready() -> None:
    """What a process needs once: kernels, and no garbage collection within a run."""
    warm_up(("float32", "int64"))
    warm_up_client()
    gc.collect()
    gc.freeze()
    gc.disable()


def _run(task: Task) -> Outcome:
    """Make a run, and clear it away while caches still hold it: a world is full of cycles."""
    outcome = task.run()
    gc.collect(1)
    return outcome


def _outcomes(tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    """The outcomes, as they come."""
    if jobs == 1:
        yield from map(_run, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(tasks)), _make_ready) as pool:
        yield from pool.imap_unordered(_run, tasks, chunksize=4)


@contextmanager
def _watching(tally: Tally, total: int) -> Iterator[Any]:
    """Show how far it is: a bar on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield partial(_say_now_and_then, tally, total, [time.monotonic()])
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("runs", total=total, rate="")

        def show() -> None:
            rate = f"{tally.rate}, {len(tally.violated)} violated"
            progress.update(bar, completed=tally.runs, rate=rate)

        yield show


def _say_now_and_then(tally: Tally, total: int, last_s: list[float]) -> None:
    if time.monotonic() - last_s[0] >= LINE_EVERY_S:
        last_s[0] = time.monotonic()
        remark(f"{tally.runs} of {total} runs, {tally.rate}, {len(tally.violated)} violated")


# -- telling


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that broke a promise, with its shortest schedule."""

    outcome: Outcome
    command: str


def _first(violated: list[Outcome]) -> list[Outcome]:
    return sorted(violated, key=lambda outcome: (outcome.seed, outcome.kind))[:STORIES_MOST]


def _explained(outcome: Outcome, like: Task) -> Failure:
    """Find the shortest schedule that fails as this run did, and let it tell its story."""
    remark(f"seed {outcome.seed}: looking for the shortest schedule that fails ...")
    task = replace(like, seed=outcome.seed, kind=outcome.kind)
    shortest = minimise(task.run_with(outcome.schedule), task.run_with)
    return Failure(shortest, task.command(shortest.schedule))


def _story_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    lines: list[str] = []
    for task in tasks:
        outcome = task.run(with_story=True)
        lines += [f"{outcome.kind}, {outcome.workload}:", *outcome.story, ""]
    return tuple(lines)


def _as_json(tally: Tally, failures: list[Failure]) -> dict[str, Any]:
    def named(outcomes: list[Outcome]) -> list[dict[str, Any]]:
        return [
            {"seed": o.seed, "kind": o.kind, "invariants": [f.invariant for f in o.findings]}
            for o in outcomes
        ]

    return {
        "runs": tally.runs,
        "machines": machines(),
        "held": tally.held,
        "violated": named(tally.violated),
        "unknown": named(tally.unknown),
        "runs_with_lost_shards": tally.lost,
        "checkpoints": tally.checkpoints,
        "rollbacks": tally.rollbacks,
        "seeds_per_s": round(tally.seeds_per_s, 2),
        "runs_per_seed": tally.runs_per_seed,
        "processes": tally.processes,
        "faults": tally.faults,
        "acknowledged_pushes": tally.acknowledged,
        "virtual_s": round(tally.virtual_s, 1),
        "least_of_a_run": None if tally.least is None else _extent(tally.least),
        "failures": [
            {**asdict(failure.outcome), "command": failure.command} for failure in failures
        ],
    }


def _extent(extent: Extent) -> dict[str, float]:
    return {
        "virtual_s": round(extent.virtual_s, 1),
        "faults": extent.faults,
        "acknowledged_pushes": extent.acknowledged,
    }


def show_results(tally: Tally, failures: list[Failure], story: tuple[str, ...]) -> None:
    """Print what has come of all runs; `story`: of a run that held, where one was asked for."""
    for line in story:
        print(line)
    for failure in failures:
        _print_failure(failure)
    runs = max(tally.runs, 1)
    print(
        f"{tally.runs} runs: {tally.held} held, {len(tally.violated)} violated, "
        f"{len(tally.unknown)} undecided; {tally.lost} lost a shard; "
        f"{tally.checkpoints} checkpoints, {tally.rollbacks} rollbacks"
    )
    print(
        f"{tally.rate}, {machines()} machines; per run {tally.virtual_s / runs:.1f} virtual s, "
        f"{tally.faults / runs:.1f} faults, {tally.acknowledged / runs:.0f} acknowledged pushes"
    )
    if tally.least is not None:
        but = f" (without the {tally.lost} that lost a shard)" if tally.lost else ""
        print(f"at least {tally.least} in every run{but}")
    for what, outcomes in (("violated", tally.violated), ("undecided", tally.unknown)):
        ordered = sorted(outcomes, key=lambda outcome: (outcome.seed, outcome.kind))
        for outcome in ordered[:NAMED_MOST]:
            names = ", ".join(dict.fromkeys(f.invariant for f in outcome.findings))
            print(f"  {what}: seed {outcome.seed}, {outcome.kind}: {names}")
        if len(ordered) > NAMED_MOST:
            print(f"  ... and {len(ordered) - NAMED_MOST} more")


def _print_failure(failure: Failure) -> None:
    outcome = failure.outcome
    print(f"seed {outcome.seed}, {outcome.kind}, {outcome.workload}: a promise was broken")
    for finding in outcome.findings:
        print(f"  {finding.invariant}: {finding.verdict.outcome}")
        for reason in finding.verdict.reasons:
            print(f"    {reason}")
    print("\nthe shortest schedule that breaks it:")
    for fault in outcome.schedule or ("  (no fault at all)",):
        print(f"  {fault}")
    print("\nwhat happened (!! faults, -> records in etcd):")
    for line in outcome.story:
        print(f"  {line}")
    print(f"\nto see it again:\n  {failure.command}\n")

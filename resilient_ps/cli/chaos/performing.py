"""Makes runs one after the other, shows them, and writes what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import typer

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.ending import versions
from resilient_ps.chaos.live.engine import run
from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.live.scenarios.playing import play
from resilient_ps.chaos.result import Counts, RunResult
from resilient_ps.cli.chaos.files import Files
from resilient_ps.cli.chaos.telling import line_of, print_run, print_runs
from resilient_ps.cli.chaos.view import View
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.local import load_kernels
from resilient_ps.cli.output import remark
from resilient_ps.cli.progress import Watcher
from resilient_ps.errors import Bug, ResilientPsError, RetryLater

EXIT_UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that is to be made. `schedule`: other faults than the seed's."""

    plan: RunPlan
    schedule: Sequence[Planned] | None = None


def perform(wanted: Sequence[Wanted], files: Files) -> None:
    """Make all of them; the exit code is the worst of what they come to."""
    for each in wanted:
        each.plan.check()
    files.check()
    load_kernels(Watcher())
    runs: list[RunResult] = []
    for each in wanted:
        result = files.write(_make(each, files))
        runs.append(result)
        if len(wanted) > 1:
            remark(line_of(result))
        files.finish(runs, is_last=len(runs) == len(wanted))
    if files.wants_lines:
        _print(runs, files)
    code = exit_code(runs)
    if code:
        raise typer.Exit(code)


def exit_code(runs: Sequence[RunResult]) -> int:
    """0: all held; 1: one was violated; 2: one is not known."""
    verdicts = {run.verdict for run in runs}
    if "violated" in verdicts:
        return EXIT_NEGATIVE
    return EXIT_UNKNOWN if "unknown" in verdicts else 0


def _make(wanted: Wanted, files: Files) -> RunResult:
    plan = wanted.plan
    view = View(
        f"scenario {plan.scenario}" if plan.scenario else f"seed {plan.seed}, {plan.workload}"
    )
    began = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        with view.shown():
            if plan.scenario:
                return play(plan, view, keep=files.logs_of(plan.seed))
            return run(plan, view, schedule=wanted.schedule, keep=files.logs_of(plan.seed))
    except (RetryLater, Bug) as error:
        return _not_run(plan, error, began)


def _not_run(plan: RunPlan, error: ResilientPsError, began: str) -> RunResult:
    """A run that did not come so far that anything could be judged."""
    return RunResult(
        seed=plan.seed,
        command=plan.command(),
        workload=plan.workload,
        verdict="unknown",
        why=f"it could not be run: {error}",
        judged=(),
        faults=(),
        samples=(),
        reigns=(),
        outages=(),
        recovery=(),
        counts=Counts(),
        settings=plan.settings(),
        versions=versions(),
        logs={},
        began=began,
        seconds=0.0,
    )


def _print(runs: Sequence[RunResult], files: Files) -> None:
    if len(runs) == 1:
        print_run(runs[0])
    else:
        print_runs(runs)
    if files.report:
        print(f"\nreport: {files.report}")
    logs = files.keep or (files.logs_of(runs[0].seed) if len(runs) == 1 else None)
    if logs is not None:
        print(f"logs:   {logs}")

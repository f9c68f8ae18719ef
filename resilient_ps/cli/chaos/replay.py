"""`resilient-ps chaos replay`: the run of a report once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from resilient_ps.chaos.live.run_plan import plan_from
from resilient_ps.chaos.report.embedded import embedded
from resilient_ps.chaos.result import RunResult, result_from
from resilient_ps.cli.chaos.files import SEVERAL, Files
from resilient_ps.cli.chaos.performing import Wanted, perform
from resilient_ps.cli.chaos.run import JsonFileOption, KeepOption, ReportOption
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly

BYTES_MOST = 256 << 20
ATTACHED = "attached"


def replay(
    path: Annotated[
        Path, typer.Argument(metavar="REPORT", help="What --report or --json of a run has written.")
    ],
    *,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Which run, if the file has several.")
    ] = None,
    json: JsonFileOption = "",
    report: ReportOption = "",
    keep: KeepOption = None,
) -> None:
    """Make the run of a report again: the same settings, the same faults at the same moments.

    Processes of a real machine do not take the same steps twice; what happens once in a while may
    need more than one attempt.

    Exit codes: as of `chaos run`.

    \b
    Examples:
        resilient-ps chaos replay chaos.html
        resilient-ps chaos replay runs.json --seed 7 --keep logs
    """
    result = _choose(_read(path), seed, path)
    if result.workload == ATTACHED:
        raise BadInput(
            f"{path} is a report of `chaos attach`, on a cluster of yours: run its command again: "
            f"{result.command}"
        )
    plan = plan_from(result.settings, f"{path}.settings")
    schedule = tuple(fault.planned for fault in result.faults)
    perform([Wanted(plan, schedule)], Files(json, report, keep))


def _read(path: Path) -> list[RunResult]:
    """The runs in a file."""
    if path.suffix.lower() in (".html", ".htm"):
        return [result_from(embedded(path), str(path))]
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    if path.stat().st_size > BYTES_MOST:
        raise BadInput(f"{path}: it is larger than {BYTES_MOST >> 20} MiB")
    try:
        document: Any = loads_strictly(path.read_text())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: this is no JSON ({error})") from error
    if isinstance(document, dict) and document.get("format") == SEVERAL:
        runs = document.get("runs")
        if not isinstance(runs, list):
            raise BadInput(f"{path}: it has no list of runs")
        return [result_from(each, f"{path}.runs[{place}]") for place, each in enumerate(runs)]
    return [result_from(document, str(path))]


def _choose(runs: list[RunResult], seed: int | None, path: Path) -> RunResult:
    seeds = [run.seed for run in runs]
    wanted = [run for run in runs if seed is None or run.seed == seed]
    if len(wanted) == 1:
        return wanted[0]
    told = ", ".join(map(str, seeds)) or "none"
    if seed is None:
        raise BadInput(f"{path} has several runs, of seeds {told}: say which one with --seed")
    raise BadInput(f"--seed {seed}: the runs in {path} are of seeds {told}")

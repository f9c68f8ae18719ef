"""What `chaos run` writes and prints of runs that are over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.report.embedded import embedded
from resilient_ps.chaos.result import (
    Counts,
    Judged,
    Outage,
    Recovery,
    RunResult,
    RunVerdict,
    result_from,
)
from resilient_ps.cli.chaos.files import Files
from resilient_ps.cli.chaos.performing import exit_code
from resilient_ps.cli.chaos.replay import _read
from resilient_ps.cli.chaos.telling import line_of, print_run, print_runs


def _result(seed: int, logs: Path, verdict: RunVerdict = "held") -> RunResult:
    outcome = {"held": "true", "violated": "false", "unknown": "unknown"}[verdict]
    kill = Struck(Planned(0, 1.0, "kill-server", ("s1",), 2.0), ("s1",), 1.0, 3.5, "pid 7 ended")
    plan = RunPlan(seed=seed)
    return RunResult(
        seed=seed,
        command=plan.command(),
        workload="one-hot",
        verdict=verdict,
        why="a reason" if verdict == "unknown" else "",
        judged=(Judged("exactly once", outcome, () if verdict == "held" else ("key 7",)),),
        faults=(kill, Struck(Planned(1, 2.0, "kill-worker", ("w0",)), skipped="nobody")),
        samples=(),
        reigns=(),
        outages=(Outage(0, 1.0, 1.4, fault=0),),
        recovery=(Recovery("kill-server", 1, 0.4, 0.4, 0.4),),
        counts=Counts(acknowledged=120, checkpoints=2),
        settings=plan.settings(),
        versions={"python": "3.11"},
        logs={"s1": str(logs / "s1.log")},
        began="2026-07-01T23:30:12+00:00",
        seconds=70.0,
    )


def test_one_run_leaves_its_json_and_names_its_logs_as_seen_from_there(tmp_path: Path) -> None:
    files = Files(json=str(tmp_path / "run.json"), keep=tmp_path / "kept")
    files.check()
    files.write(_result(3, tmp_path / "kept"))
    read = result_from(json.loads((tmp_path / "run.json").read_text()), "run.json")
    assert read.logs == {"s1": "kept/s1.log"}


def test_logs_that_are_not_kept_are_not_named(tmp_path: Path) -> None:
    assert Files().write(_result(3, tmp_path)).logs == {}


def test_a_report_has_its_logs_beside_it_and_can_be_replayed(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    files = Files(report=str(report))
    files.check()
    assert files.logs_of(3) == tmp_path / "report-logs"
    files.write(_result(3, tmp_path / "report-logs"))
    assert embedded(report)["logs"] == {"s1": "report-logs/s1.log"}
    assert [run.seed for run in _read(report)] == [3]


def test_several_seeds_have_a_file_each_where_the_name_says_so(tmp_path: Path) -> None:
    files = Files(json=str(tmp_path / "run-{seed}.json"), keep=tmp_path / "kept", several=True)
    runs = [files.write(_result(seed, tmp_path / "kept" / f"seed-{seed}")) for seed in (4, 5)]
    files.finish(runs)
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == ["run-4.json", "run-5.json"]
    assert files.logs_of(4) == tmp_path / "kept" / "seed-4"


def test_or_else_one_json_file_and_a_page_that_leads_to_the_reports(tmp_path: Path) -> None:
    together, page = tmp_path / "runs.json", tmp_path / "runs.html"
    files = Files(json=str(together), report=str(page), several=True)
    runs = [files.write(_result(seed, tmp_path)) for seed in (4, 5)]
    files.finish(runs)
    assert [run.seed for run in _read(together)] == [4, 5]
    for seed in (4, 5):
        name = f"runs-seed-{seed}.html"
        assert (tmp_path / name).is_file()
        assert name in page.read_text()


def test_the_exit_code_is_the_worst(tmp_path: Path) -> None:
    held, violated, unknown = (
        _result(1, tmp_path, verdict) for verdict in ("held", "violated", "unknown")
    )
    assert exit_code([held]) == 0
    assert exit_code([held, unknown]) == 2
    assert exit_code([held, violated, unknown]) == 1


def test_a_run_is_told_with_every_checker_and_what_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_run(_result(3, tmp_path, "violated"))
    out = capsys.readouterr().out
    assert "VIOLATED  seed 3, one-hot, 1 faults (1 skipped), 70 s" in out
    assert "BROKEN  exactly once\n            key 7" in out
    assert "kill-server        1   0.40 s" in out
    assert "resilient-ps chaos run --seed 3 --workload one-hot" in out


def test_several_runs_are_one_line_each_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [_result(3, tmp_path), replace(_result(4, tmp_path, "violated"), outages=())]
    print_runs(runs)
    out = capsys.readouterr().out
    assert "2 runs: 1 held, 1 violated, 0 unknown; 2 faults, " in out
    assert "again: resilient-ps chaos run --seed 4" in out
    assert line_of(runs[1]) == (
        "seed 4, one-hot: VIOLATED (exactly once), 1 faults, 120 pushes, 70 s"
    )

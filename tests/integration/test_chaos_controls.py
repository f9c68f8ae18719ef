"""What each protection of real servers is there for: without it the right checker notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import Shell

from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.live.scenarios.catalogue import SCENARIOS
from resilient_ps.chaos.live.scenarios.playing import play
from resilient_ps.chaos.result import RunResult, result_from
from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.guards import ALLOWED_BY, UNSAFE

pytestmark = pytest.mark.skipif(find_etcd() is None, reason="no etcd binary (apt: etcd-server)")

COMMAND = [sys.executable, "-m", "resilient_ps.cli.main"]
DEADLINE_S = 110.0
SHORT = "commit-gate"  # the scenario of the default run that must hold
BY_COMMAND = "dedup"  # the one that the default run plays as a command


class Silent:
    """Nobody looks."""

    def phase(self, doing: str) -> None: ...

    def say(self, text: str) -> None: ...

    def show(self, now: object) -> None: ...


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def broken(result: RunResult) -> list[str]:
    return [each.checker for each in result.judged if each.outcome == "false"]


def test_there_is_a_scenario_for_everything_that_can_be_switched_off() -> None:
    assert SCENARIOS.keys() == UNSAFE.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(s, marks=[] if s == SHORT else pytest.mark.soak) for s in SCENARIOS]
)
def test_with_all_rules_the_scenario_holds(name: str, tmp_path: Path) -> None:
    result = play(RunPlan(scenario=name), Silent(), keep=tmp_path)
    assert result.verdict == "held", (result.why, result.judged)
    assert result.counts.acknowledged > 0
    assert all(fault.evidence for fault in result.faults), result.faults
    assert "UNSAFE" not in (tmp_path / "s1.log").read_text()


@pytest.mark.parametrize(
    "name",
    [pytest.param(s, marks=pytest.mark.soak if s == BY_COMMAND else ()) for s in SCENARIOS],
)
def test_without_the_rule_the_right_checker_finds_it_broken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_BY, "1")
    plan = RunPlan(scenario=name, unsafe_disable=(name,))
    result = play(plan, Silent(), keep=tmp_path)
    assert result.verdict == "violated", (result.why, result.judged)
    assert broken(result)[0] == SCENARIOS[name].broken
    assert "UNSAFE SERVER" in (tmp_path / "s1.log").read_text()
    assert result.command.endswith(f"chaos run --unsafe-disable {name}")


def test_the_command_names_the_checker_and_exits_1(tmp_path: Path) -> None:
    written = tmp_path / "result.json"
    done = subprocess.run(
        [*COMMAND, "chaos", "run", "--unsafe-disable", BY_COMMAND, "--json", str(written)],
        env={**os.environ, ALLOWED_BY: "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "every push is applied once" in done.stdout
    told = json.loads(written.read_text())
    assert told["verdict"] == "violated"
    assert broken(result_from(told, str(written)))[0] == SCENARIOS[BY_COMMAND].broken
    assert told["settings"]["unsafe_disable"] == [BY_COMMAND]


@pytest.mark.parametrize("allowed", ["", "0", "yes"])
@pytest.mark.parametrize("command", [("chaos", "run"), ("server", "--etcd", "127.0.0.1:1")])
def test_it_is_refused_where_the_environment_does_not_allow_it(
    shell: Shell, command: tuple[str, ...], allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_BY, allowed)
    ended = shell(*command, "--unsafe-disable", "dedup")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert "loses and doubles updates" in ended.err
    assert f"{ALLOWED_BY}=1" in ended.err


def test_servers_do_not_advertise_it(shell: Shell) -> None:
    assert "unsafe" not in shell("server", "--help").out
    assert "--unsafe-disable" in shell("chaos", "run", "--help").out

"""`chaos run` as a command: a short run holds, tells all there is, and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Shell, descendants, lines_until, start, still_running

from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.result import result_from

SMALL = ("--servers", "3", "--workers", "2", "--etcd", "1", "--store", "none")
RUN_S = 300  # a run takes half a minute on a machine that has nothing else to do
PROGRESS = "progress while nothing is healed"
PLAIN = ("--faults", "kill,pause", "--workload", "one-hot", "--seed", "3")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(RUN_S)
def test_a_short_run_holds_tells_all_and_leaves_nothing_but_its_files(
    tmp_path: Path, temporary: Path
) -> None:
    files = ("--json", str(tmp_path / "run.json"), "--keep", str(tmp_path / "kept"))
    with start(
        "chaos", "run", *SMALL, *PLAIN, "--duration", "6s", *files, temporary=temporary
    ) as process:
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert list(temporary.iterdir()) == []
    result = result_from(json.loads((tmp_path / "run.json").read_text()), "run.json")
    assert (result.verdict, result.seed, result.workload) == ("held", 3, "one-hot")
    assert {each.outcome for each in result.judged} == {"true"}
    happened = [fault for fault in result.faults if not fault.skipped]
    assert happened
    for fault in happened:
        assert fault.struck
        assert fault.evidence
        assert 0 < fault.injected_s < fault.healed_s <= result.healed_s
    assert result.counts.acknowledged > 0
    assert result.samples[-1].clocks[0] > result.samples[0].clocks[0]
    assert {reign.shard for reign in result.reigns} == set(range(6))
    assert {row.kind for row in result.recovery} == {f.planned.kind for f in happened}
    for name in ("s1", "s2", "s3", "w0", "w1", "e0"):
        assert (tmp_path / result.logs[name]).is_file()
    assert "HELD" in out
    assert result.command in out


@pytest.mark.timeout(RUN_S)
def test_a_server_that_nobody_struck_may_not_die(temporary: Path, tmp_path: Path) -> None:
    options = ("--faults", "pause-worker", "--workload", "one-hot", "--duration", "5s")
    files = ("--json", str(tmp_path / "run.json"))
    with start("chaos", "run", *SMALL, *options, *files, temporary=temporary) as process:
        lines_until(process, " s + ")
        os.kill(_server(process.pid, "s2"), signal.SIGKILL)
        out, err = process.communicate()
    assert process.returncode == 1, out + err
    result = result_from(json.loads((tmp_path / "run.json").read_text()), "run.json")
    broken = {each.checker: each.reasons for each in result.judged if each.outcome != "true"}
    assert list(broken) == ["no process dies by itself"]
    assert "s2" in broken["no process dies by itself"][0]
    assert "exit code -9" in broken["no process dies by itself"][0]
    assert list(temporary.iterdir()) == []


def _server(harness: int, name: str) -> int:
    """The process of a server that the harness has started."""
    for pid in descendants(harness):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "--name" in words and words[words.index("--name") + 1] == name:
            return pid
    raise AssertionError(f"there is no server {name}")


@pytest.mark.soak
@pytest.mark.timeout(RUN_S)
def test_with_a_dead_minority_and_a_deaf_server_everything_goes_on(
    tmp_path: Path, temporary: Path
) -> None:
    options = ("--liveness", "--servers", "4", "--workers", "2", "--store", "none")
    files = ("--workload", "one-hot", "--duration", "25s", "--json", str(tmp_path / "run.json"))
    with start("chaos", "run", *options, *files, temporary=temporary) as process:
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    result = result_from(json.loads((tmp_path / "run.json").read_text()), "run.json")
    assert {each.checker: each.outcome for each in result.judged}[PROGRESS] == "true"
    happened = [fault.planned.kind for fault in result.faults if not fault.skipped]
    assert sorted(happened) == ["kill-etcd", "kill-server", "one-way", "one-way", "one-way"]
    assert all(fault.healed_s >= 25 for fault in result.faults)


@pytest.mark.timeout(RUN_S)
def test_ctrl_c_while_faults_happen_leaves_nothing(temporary: Path) -> None:
    with start("chaos", "run", *SMALL, *PLAIN, "--duration", "5m", temporary=temporary) as process:
        lines_until(process, " s + ")
        children = descendants(process.pid)
        assert len(children) >= 6
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    assert not still_running(children)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--duration", "5x"), "--duration '5x': give a time such as 60s, 5m or 1h"),
        (("--duration", "1s"), "--duration 1: use 3 to"),
        (("--seeds", "7"), "--seeds '7': give the first and the last one"),
        (("--seeds", "7..3"), "--seeds '7..3': give the first and the last one"),
        (("--seed", "1", "--seeds", "1..2"), "--seed and --seeds: give one of them"),
        (("--faults", "kill,foo"), "no fault 'foo': give kinds"),
        (("--workload", "nope"), "--workload: there is no 'nope'; use one-hot"),
        (("--workload", "one-hot", "--script", "x.py"), "--script and --workload"),
        (("--script", "no-such-file.py"), "--script: there is no file no-such-file.py"),
        (("--script", "'"), '--script "\'": No closing quotation'),
        (("--consistency", "often"), "--consistency: consistency 'often' is none of"),
        (("--workload", "barrier", "--consistency", "asp"), "there to judge bsp"),
        (("--servers", "2", "--liveness"), "--liveness takes one away"),
        (("--scenario", "dedup", "--servers", "1"), "leave --servers away"),
        (("--report", "report.txt"), "--report report.txt: a report is an HTML file"),
        (("--json", "/no/such/folder/x.json"), "there is no folder /no/such/folder"),
        (("--json", "/"), "--json /: that is a folder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    shell: Shell, options: tuple[str, ...], why: str
) -> None:
    ended = shell("chaos", "run", *options)
    assert ended.code == 2
    assert why in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == ""


def test_the_list_has_all_kinds_and_says_what_is_missing_here(shell: Shell) -> None:
    told = shell("chaos", "list", "--json").json["kinds"]
    assert [each["kind"] for each in told] == list(KINDS)
    for each in told:
        assert set(each["missing_here"]) <= set(each["needs"])
    people = shell("chaos", "list")
    assert people.code == 0
    assert all(kind.text in people.out for kind in KINDS.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no such file"),
        ("{", "this is no JSON"),
        ('{"format": "another"}', "this is no report of `resilient-ps chaos run`"),
        ('{"format": "resilient-ps chaos runs", "runs": []}', "has several runs, of seeds none"),
    ],
)
def test_what_is_no_report_is_not_replayed(
    shell: Shell, tmp_path: Path, text: str | None, why: str
) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    ended = shell("chaos", "replay", str(path))
    assert ended.code == 2
    assert why in ended.err
    assert str(path) in ended.err

"""`resilient-ps run`: processes of a program, whatever becomes of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cli_process import DEADLINE_S, Shell, descendants, start, still_running

SHOWS = """
import os
print(os.environ["RESILIENT_PS_CLUSTER"], os.environ["RESILIENT_PS_ETCD"])
print(os.environ["RESILIENT_PS_RANK"], "of", os.environ["RESILIENT_PS_RANKS"])
"""
DIES_ONCE = """
import os, pathlib, signal, sys
mark = pathlib.Path(sys.argv[1]) / os.environ["RESILIENT_PS_RANK"]
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
FAILS = """
import os, signal, sys
if os.environ["RESILIENT_PS_RANK"] == "1":
    sys.exit("no luck")
signal.pause()
"""
WAITS = "import signal\nprint('there', flush=True)\nsignal.pause()"


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capfd)


def test_each_process_finds_the_cluster_and_its_number(shell: Shell, tmp_path: Path) -> None:
    where = ("--etcd", "10.0.0.1:2379", "--cluster", "ctr")
    ended = shell("run", "--processes", "2", *where, program(tmp_path, SHOWS))
    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [
        "0: 0 of 2",
        "0: ctr 10.0.0.1:2379",
        "1: 1 of 2",
        "1: ctr 10.0.0.1:2379",
    ]


def test_a_killed_process_is_started_again(shell: Shell, tmp_path: Path) -> None:
    ended = shell("run", "--json", program(tmp_path, DIES_ONCE), str(tmp_path))
    assert ended.code == 0
    assert json.loads(ended.out)["restarts"] == [1, 1]
    assert "process 0 was killed (SIGKILL): it is started again (1 of at most 3 times)" in ended.err


def test_a_process_that_fails_ends_all(shell: Shell, tmp_path: Path) -> None:
    before = descendants(os.getpid())
    ended = shell("run", "--processes", "3", program(tmp_path, FAILS))
    assert ended.code == 1
    assert "resilient-ps: process 1 ended with exit code 1: no luck" in ended.err
    assert not still_running(descendants(os.getpid()) - before)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    running = start("run", program(tmp_path, WAITS), temporary=tmp_path)
    assert running.stdout is not None
    assert [running.stdout.readline() for _ in range(2)] != ["", ""]
    below = descendants(running.pid)
    assert len(below) == 2
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 130
    assert not still_running(below)
    assert not list(tmp_path.glob("resilient-ps-run-*"))


@pytest.mark.parametrize("name", ["missing.py", "no-such-command"])
def test_a_program_that_does_not_exist_is_named(shell: Shell, name: str) -> None:
    ended = shell("run", name)
    assert (ended.code, ended.out) == (2, "")
    assert name in ended.err

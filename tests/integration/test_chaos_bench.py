"""The bench of recoveries as a command: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli_process import Shell, descendants, lines_until, start, still_running

SMALL = ("chaos", "bench", "--etcd", "0", "--servers", "2", "--workers", "1")
NO_FAULTS = ("--kills", "0", "--stops", "0", "--etcd-kills", "0", "--pauses", "0")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--etcd", "1"), "an etcd of 1 does not survive the loss of a member; use --etcd 3"),
        (("--etcd", "0"), "the embedded coordination process does not survive"),
        (("--replicas", "1"), "what nobody else holds cannot be taken over"),
        (("--servers", "1"), "what nobody else holds cannot be taken over"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    shell: Shell, options: tuple[str, ...], why: str
) -> None:
    ended = shell("chaos", "bench", *options)
    assert ended.code == 2
    assert why in ended.err
    assert ended.out == ""


def test_a_small_bench_counts_every_push_and_leaves_nothing(tmp_path: Path) -> None:
    faults = (*NO_FAULTS, "--kills", "1", "--stops", "1")
    with start(*SMALL, *faults, "--json", temporary=tmp_path) as process:
        out, err = process.communicate()
    told = json.loads(out)
    assert told["miscounted"] == [], err
    assert told["pushes"] > 0
    measured = {row["kind"]: row["faults"] for row in told["kinds"]}
    assert [measured["kill -9 of a primary"], measured["SIGTERM of a primary"]] == [1, 1]
    assert process.returncode == (0 if told["holds"] else 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak  # `test_chaos_run` has the same of `chaos run`
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    faults = (*NO_FAULTS, "--kills", "1000")
    with start(*SMALL, *faults, temporary=tmp_path) as process:
        lines_until(process, "kill -9 of")
        children = descendants(process.pid)
        assert children
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    assert not still_running(children)
    assert list(tmp_path.iterdir()) == []

"""The demo trains for real, is as good as scikit-learn, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Shell, descendants, lines_until, start, still_running

from resilient_ps.cli.demo import verdict
from resilient_ps.cli.progress import Training, marks_of
from resilient_ps.cli.worker import Told

KEYS = ["samples", "seconds", "samples_per_s", "auc", "auc_sklearn", "logloss", "servers",
        "workers", "coordination"]  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file with something to learn."""
    random = np.random.default_rng(3)
    lines = []
    for _ in range(4000):
        features = sorted(set(random.integers(1, 60, 6).tolist()))
        late = random.random() < 1 / (1 + np.exp(-np.sin(features).sum()))
        lines.append(f"{int(late)} " + " ".join(f"{feature}:1" for feature in features))
    path = tmp_path / "rows.svm"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def run_demo(temporary: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    with start("demo", "--json", *flags, temporary=temporary) as process:
        out, errors = process.communicate(timeout=110)
    assert out.count("\n") == 1, errors
    return process.returncode, json.loads(out), errors


def test_the_demo_learns_which_flights_are_late(temporary: Path) -> None:
    code, result, errors = run_demo(temporary, "--limit", "40000", "--epochs", "2")
    assert code == 0, errors
    assert list(result)[: len(KEYS)] == KEYS
    assert (result["servers"], result["workers"]) == (3, 4)
    assert result["consistency"] == "ssp:3"
    assert 0.7 < result["auc_sklearn"] - 0.005 <= result["auc"] < 0.85
    assert result["samples"] == 80_000
    assert abs(result["logloss"] - result["logloss_sklearn"]) < 0.02
    assert list(temporary.iterdir()) == []


def test_the_demo_trains_on_a_file_under_bsp_without_etcd(temporary: Path, rows: Path) -> None:
    code, result, errors = run_demo(
        temporary, "--dataset", str(rows), "--consistency", "bsp", "--coordination", "embedded",
        "--servers", "2", "--workers", "2", "--epochs", "4", "--batch-size", "100", "--no-sklearn",
    )  # fmt: skip
    assert code == 0, errors
    assert (result["coordination"], result["consistency"]) == ("embedded", "bsp")
    assert "EMBEDDED COORDINATION" in errors
    assert (result["training_rows"], result["held_out_rows"]) == (3200, 800)
    assert result["auc"] > 0.7
    assert result["auc_sklearn"] is None
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "moment",
    [pytest.param("starting 2 servers", marks=pytest.mark.soak), "2 workers are ready"],
)
def test_ctrl_c_leaves_nothing_behind(temporary: Path, rows: Path, moment: str) -> None:
    flags = ("--dataset", str(rows), "--epochs", "1000000", "--servers", "2", "--workers", "2")
    with start("demo", *flags, "--no-sklearn", temporary=temporary) as process:
        lines_until(process, moment)
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert errors.endswith("resilient-ps: interrupted\n")
    assert moment == "starting 2 servers" or len(below) == 5
    assert still_running(below) == set()
    assert list(temporary.iterdir()) == []


def test_the_verdict_is_about_what_scikit_learn_reaches() -> None:
    assert verdict({"auc": 0.7551, "auc_sklearn": 0.76}) is None
    assert verdict({"auc": 0.9, "auc_sklearn": 0.76}) is None
    assert verdict({"auc": 0.7, "auc_sklearn": None}) is None
    worse = verdict({"auc": 0.7549, "auc_sklearn": 0.76})
    assert worse is not None
    assert "0.7549 is 0.0051 below scikit-learn's 0.7600" in worse


# -- a server that is killed in the middle


def test_a_server_killed_in_the_middle_leaves_no_trace_in_the_model_under_bsp(
    temporary: Path, rows: Path
) -> None:
    code, result, errors = run_demo(
        temporary, "--kill", "--dataset", str(rows), "--consistency", "bsp", "--servers", "2",
        "--workers", "2", "--epochs", "20", "--batch-size", "100", "--no-sklearn",
    )  # fmt: skip
    assert code == 0, errors
    killed, calm = result["killed"], result["undisturbed"]
    assert calm["digest"] == result["digest"]
    assert calm["samples"] == result["samples"] == 20 * 3200
    assert killed["in_sync_after_s"] > 0
    for text in (
        f"SIGKILL to {killed['server']}, the primary of shards {killed['shards'][0]}",
        "the other servers went on in its place",
        f"{killed['server']} is started again, with empty memory",
        f"{killed['server']} has caught up after",
    ):
        assert text in errors
    assert list(temporary.iterdir()) == []


def test_a_kill_needs_a_server_that_goes_on(shell: Shell) -> None:
    ended = shell("demo", "--kill", "--servers", "1")
    assert ended.code == 2
    assert "--kill needs at least 2 --servers" in ended.err


def test_the_verdict_on_a_kill_is_about_what_the_consistency_promises() -> None:
    calm = {"auc": 0.75, "digest": "a" * 64}
    result = {"auc": 0.75, "auc_sklearn": None, "digest": "b" * 64, "undisturbed": calm}
    other = verdict({**result, "consistency": "bsp"})
    assert other is not None
    assert "under BSP they must be byte-identical" in other
    assert verdict({**result, "consistency": "bsp", "digest": "a" * 64}) is None
    assert verdict({**result, "consistency": "ssp:3"}) is None
    worse = verdict({**result, "consistency": "ssp:3", "auc": 0.7449})
    assert worse is not None
    assert "0.7449 differs from that of the undisturbed run, 0.7500" in worse


# -- everything is killed in the middle


def test_everything_killed_in_the_middle_leaves_no_trace_in_the_model_under_bsp(
    temporary: Path, rows: Path, tmp_path: Path
) -> None:
    code, result, errors = run_demo(
        temporary, "--checkpoint", str(tmp_path / "store"), "--dataset", str(rows),
        "--consistency", "bsp", "--servers", "2", "--workers", "2", "--epochs", "40",
        "--batch-size", "100", "--no-sklearn",
    )  # fmt: skip
    assert code == 0, errors
    killed, calm = result["killed"], result["undisturbed"]
    assert calm["digest"] == result["digest"]
    assert calm["samples"] == result["samples"] == 40 * 3200
    assert killed["restored_checkpoint"] in killed["checkpoints"]
    assert 0 < killed["samples_in_checkpoint"] < killed["samples_before"]
    assert (result["servers"], killed["servers_after"]) == (2, 1)
    for text in (
        "made while training goes on",
        "SIGKILL to everything: 2 workers, 2 servers and the coordination",
        f"RESUMING job demo on a cluster that was restored from {killed['restored_checkpoint']}"[
            :40
        ],
        f"checkpoint {result['final_checkpoint']} at the end of the training",
    ):
        assert text in errors
    assert list(temporary.iterdir()) == []
    assert list((tmp_path / "store").rglob("manifest.json")) != []


def test_one_story_at_a_time(shell: Shell) -> None:
    ended = shell("demo", "--kill", "--checkpoint", "x")
    assert ended.code == 2
    assert "give --kill or --checkpoint" in ended.err


# -- what is shown meanwhile


def test_what_the_processes_of_a_rank_do_one_after_the_other_is_added_up() -> None:
    training = Training(None, begun_s=0.0)
    training.take([Told(0, "ready", earlier=40), Told(0, "training", samples=30, earlier=40)])
    assert training.samples == 30
    # killed: of its 30 samples 20 had been ticked
    training.take([Told(0, "ready", earlier=60), Told(1, "training", samples=5)])
    assert training.samples == 20 + 5
    training.take([Told(0, "done", samples=7, earlier=60, begun_s=9.0)])
    assert training.samples == 27 + 5


def test_a_dip_of_the_rate_can_be_seen() -> None:
    training = Training(None, begun_s=0.0)
    for half, samples in enumerate([0, 800, 1600, 1600, 2000, 2800]):
        training.take([Told(0, "training", samples=samples)])
        training.look(half / 2)
    assert training.rates == [1600, 1600, 0, 800, 1600]
    assert marks_of(training.rates) == "██▁▅█"
    assert marks_of([]) == ""
    assert marks_of([0.0]) == "▁"

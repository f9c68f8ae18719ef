"""The demo trains for real, is as good as scikit-learn, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from cli_process import descendants, lines_until, start, still_running

from resilient_ps.cli.demo import verdict

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
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def run_demo(temporary: Path, *flags: str) -> tuple[int, dict[str, object], str]:
    with start("demo", "--json", *flags, temporary=temporary) as process:
        out, errors = process.communicate(timeout=110)
    assert out.count("\n") == 1, errors
    return process.returncode, json.loads(out), errors


def test_the_demo_learns_which_flights_are_late(temporary: Path) -> None:
    code, result, errors = run_demo(temporary, "--limit", "100000", "--epochs", "3")
    assert code == 0, errors
    assert list(result)[: len(KEYS)] == KEYS
    assert (result["servers"], result["workers"]) == (3, 4)
    assert result["consistency"] == "ssp:3"
    assert 0.7 < result["auc_sklearn"] - 0.005 <= result["auc"] < 0.85
    assert result["samples"] == 300_000
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


@pytest.mark.parametrize("moment", ["starting 2 servers", "2 workers are ready"])
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

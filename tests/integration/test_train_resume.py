"""`resilient-ps train --store ... --resume`: the command that was killed is given once more."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell, descendants, start, still_running

from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.storage.runtime.open import open_store

EPOCHS, ROWS, BATCH = 60, 1_000, 50
PATIENCE_S = 60.0


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    random = np.random.default_rng(2)
    path = tmp_path / "rows.svm"
    lines = [
        f"{y} {a}:1 {b + 40}:1" for y, a, b in random.integers((0, 1, 1), (2, 40, 40), (ROWS, 3))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def command(rows: Path, store: Path, *more: str) -> tuple[str, ...]:
    return (
        "train", "logistic", "--dataset", str(rows), "--job", "j", "--cluster", "c",
        "--consistency", "bsp", "--epochs", str(EPOCHS), "--batch-size", str(BATCH), "--spawn", "2",
        "--store", str(store), "--checkpoint-every-clocks", "30", "--json", *more,
    )  # fmt: skip


def wait_for_checkpoint(store: Path) -> int:
    """The clock of job `j` in the newest checkpoint, when there is one."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        with StoredCheckpoints(open_store(str(store)), "c") as stored:
            complete = [each.manifest for each in stored.listed() if each.manifest is not None]
        if complete:
            return complete[0].clocks["j"]
        pause.wait(0.05)
    pytest.fail("no checkpoint was made")


def test_the_command_that_was_killed_goes_on_behind_its_newest_checkpoint(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, shell = tmp_path / "store", Shell(capsys)
    nothing = shell(*command(rows, store, "--servers", "1", "--resume"))
    assert nothing.code == 2
    assert "nothing to resume: this cluster began without a checkpoint" in nothing.err
    with start(*command(rows, store, "--servers", "2", "--resume-if-any")) as process:
        clock = wait_for_checkpoint(store)
        below = descendants(process.pid)
        process.kill()
        process.communicate()
    assert still_running(below) == set()
    again = shell(*command(rows, store, "--servers", "1", "--resume"))
    assert again.code == 0, again.err
    assert "RESUMING job j on a cluster that was restored from checkpoint" in again.err
    assert 0 < again.json["samples"] <= EPOCHS * ROWS - clock * BATCH
    assert again.json["checkpoint"] is not None
    over = shell(*command(rows, store, "--servers", "1", "--resume"))
    assert (over.code, over.json["samples"]) == (0, 0)
    assert "job j is done: there is nothing to resume" in over.err

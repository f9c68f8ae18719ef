"""`train --spawn` starts a killed rank again: the training ends as if nothing had been."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell, descendants, lines_until, start, still_running

import resilient_ps as ps
from resilient_ps.cli.workers import RESTARTS
from resilient_ps.client.data_shards import Changed
from resilient_ps.client.launch import RunningCluster
from resilient_ps.coordinator.data_shards import DataShards

ROWS = 400
EPOCHS = 16
PATIENCE_S = 100
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(2, coordination="embedded") as running:
        yield running


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"p{next(NUMBERS)}"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    random = np.random.default_rng(5)
    np.savez(path, y=np.arange(ROWS) % 2, row_offsets=4 * np.arange(ROWS + 1),
             keys=random.integers(0, 50, 4 * ROWS))  # fmt: skip
    return path


def command(
    cluster: RunningCluster, rows: Path, job: str, consistency: str, *flags: str
) -> tuple[str, ...]:
    return (
        "train", "logistic", "--dataset", str(rows), "--spawn", "2", "--job", job, "--table", job,
        "--batch-size", "8", "--epochs", str(EPOCHS), "--consistency", consistency, "--json",
        "--etcd", cluster.etcd, "--cluster", cluster.name, *flags,
    )  # fmt: skip


def train(
    cluster: RunningCluster, rows: Path, job: str, consistency: str, *flags: str
) -> subprocess.Popen[str]:
    return start(*command(cluster, rows, job, consistency, *flags))


def kill_rank_1(parent: int) -> None:
    for pid in descendants(parent):
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0--rank\x001\0"):
            os.kill(pid, signal.SIGKILL)


def model(cluster: RunningCluster, name: str) -> bytes:
    with cluster.connect() as client:
        return client.table(name).pull(np.arange(50, dtype=np.uint64)).tobytes()


def test_a_killed_rank_is_started_again_and_leaves_no_trace_under_bsp(
    cluster: RunningCluster, rows: Path, job: str
) -> None:
    for name in (f"{job}-calm", job):
        with train(cluster, rows, name, "bsp") as process:
            told = lines_until(process, "2 workers are ready")
            if name == job:
                kill_rank_1(process.pid)
                told = lines_until(process, "started again")
                assert (
                    "worker 1 was killed (SIGKILL). It is started again (1 of at most 3" in told[-1]
                )
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert json.loads(out)["samples"] == EPOCHS * ROWS
        ranks = json.loads(out)["ranks"]
        assert [rank["samples"] for rank in ranks] == [EPOCHS * ROWS // 2] * 2
    assert model(cluster, job) == model(cluster, f"{job}-calm")


def test_under_the_dynamic_schedule_all_samples_are_trained_on_too(
    cluster: RunningCluster, rows: Path, job: str
) -> None:
    with train(cluster, rows, job, "asp", "--schedule", "dynamic") as process:
        lines_until(process, "2 workers are ready")
        kill_rank_1(process.pid)
        lines_until(process, "started again")
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert json.loads(out)["samples"] == EPOCHS * ROWS


def test_a_rank_that_is_killed_again_and_again_ends_the_training(
    cluster: RunningCluster, rows: Path, job: str
) -> None:
    with train(cluster, rows, job, "bsp", "--epochs", "1000000") as process:
        lines_until(process, "2 workers are ready")
        below = descendants(process.pid)
        for number in range(RESTARTS):
            kill_rank_1(process.pid)
            lines_until(process, f"started again ({number + 1} of at most {RESTARTS} times)")
            below |= wait_for_rank_1(process.pid)
        kill_rank_1(process.pid)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (3, "")
    assert f"worker 1 was killed (SIGKILL). It had been started again {RESTARTS} times" in errors
    assert still_running(below) == set()


def wait_for_rank_1(parent: int) -> set[int]:
    """Until its new process is there."""
    while True:
        below = descendants(parent)
        for pid in below:
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0--rank\x001\0"):
                return below


def test_a_rank_that_is_not_to_come_back_is_retired(
    cluster: RunningCluster, rows: Path, job: str
) -> None:
    flags = (
        "train", "logistic", "--dataset", str(rows), "--of", "2", "--job", job, "--table", job,
        "--batch-size", "8", "--consistency", "ssp:0", "--schedule", "dynamic", "--json",
        "--etcd", cluster.etcd, "--cluster", cluster.name,
    )  # fmt: skip
    with cluster.connect() as client:
        kv, key = client.catalogue.kv, client.catalogue.keys.data_shards(job)
        with (
            Changed(kv, key, kv.read(key).revision) as changed,
            start(*flags, "--rank", "1") as dead,
        ):
            while client.catalogue.in_hand(job, 1) is None:
                assert changed.wait(PATIENCE_S)
                changed.clear()
            dead.kill()  # in its second clock at the latest, where it waits for rank 0
        other, heir = start(*flags, "--rank", "0"), start(*flags, "--rank", "1", "--retire")
        with other, heir:
            outcomes = [process.communicate(timeout=PATIENCE_S) for process in (heir, other)]
        assert [heir.returncode, other.returncode] == [0, 0], outcomes
        record = DataShards.from_bytes(kv.read(key).items[0].value, key)
        assert (record.doing, record.returned) == ((), ())
        assert record.done(0) == record.per_epoch
        assert client.catalogue.job(job).state == "done"


def test_the_flags_of_the_schedules_are_checked(
    cluster: RunningCluster, rows: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, says in (
        (["--retire"], "--retire and --data-shards need --schedule dynamic"),
        (["--data-shards", "7"], "--retire and --data-shards need --schedule dynamic"),
        (["--retire", "--schedule", "dynamic"], "--retire is for one --rank: without --spawn"),
    ):
        ended = Shell(capsys)(*command(cluster, rows, job, "asp", *flags))
        assert ended.code == 2
        assert says in ended.err

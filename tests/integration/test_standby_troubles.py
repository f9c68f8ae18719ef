"""A store on bad days under a cluster that trains: what is wrong is said, and training goes on."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell
from standby import CLUSTER, PATIENCE_S, Running, cold_standby

import resilient_ps as ps
from resilient_ps.chaos.live.proxy.store import StoreProxy
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.connection import connect
from resilient_ps.errors import NotFound
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

ON_DEMAND = CheckpointSettings(keep_last=100, cut_deadline_s=5)
KEYS = np.arange(500, dtype=np.uint64)
ALWAYS = 1_000_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with SeaweedFS() as process:
        yield process


class Trainer:
    """A rank that trains in a thread of its own; `clock` is the one that it is in."""

    def __init__(self, worker: ps.Worker) -> None:
        self.clock = 0
        self.error: BaseException | None = None
        self._worker = worker
        self._table = worker.sparse_table("t", dim=4, optimiser=ps.Adagrad(lr=0.1))
        self._told = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._table.push(KEYS, np.ones((len(KEYS), 4), np.float32))
                self._worker.tick()
                with self._told:
                    self.clock = self._worker.clock
                    self._told.notify_all()
                self._ending.wait(0.005)
        except BaseException as error:
            self.error = error

    def goes_on(self, clocks: int = 50) -> None:
        with self._told:
            goal = self.clock + clocks
            assert self._told.wait_for(lambda: self.clock >= goal, PATIENCE_S), self.error

    def end(self) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        assert self.error is None, self.error


@contextmanager
def trained(running: Running) -> Iterator[Trainer]:
    etcd = ",".join(running.processes.endpoints)
    with (
        connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client,
        client.worker("j", 0, 1, "bsp") as worker,
    ):
        trainer = Trainer(worker)
        try:
            yield trainer
        finally:
            trainer.end()


def where(running: Running) -> tuple[str, ...]:
    return ("--etcd", ",".join(running.processes.endpoints), "--cluster", CLUSTER)


def test_an_outage_and_a_missing_bucket_are_told_and_training_goes_on(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    shell = Shell(capsys)
    url, keys = f"{seaweedfs.url}/troubles", (seaweedfs.access_key, seaweedfs.secret_key)
    with (
        StoreProxy(seaweedfs.endpoint, credentials=keys) as proxy,
        cold_standby(url, 2, settings=ON_DEMAND, endpoint=proxy.endpoint) as running,
        trained(running) as trainer,
    ):
        first = shell("checkpoint", "create", "--json", *where(running))
        assert first.code == 0, first.err
        fault = proxy.plan("status", method="PUT", status=404, code="NoSuchBucket", times=ALWAYS)
        failed = shell("checkpoint", "create", "--deadline", "5", *where(running))
        assert failed.code == 3, failed
        assert "no such bucket" in failed.err, failed.err
        trainer.goes_on()
        fault.times = 0
        proxy.is_down = True
        assert shell("checkpoint", "create", "--deadline", "2", *where(running)).code == 3
        trainer.goes_on()
        proxy.is_down = False
        again = shell("checkpoint", "create", "--deadline", "60", "--json", *where(running))
        assert again.code == 0, again.err
        assert again.json["clocks"]["j"] > first.json["clocks"]["j"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_training_goes_on(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(capsys)
    with (
        cold_standby(str(small_disk), 2, settings=ON_DEMAND) as running,
        trained(running) as trainer,
    ):
        made = shell("checkpoint", "create", "--json", *where(running))
        assert made.code == 0, made.err
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:  # until the disk is full
                file.write(b"x" * 4096)
        failed = shell("checkpoint", "create", "--deadline", "5", *where(running))
        assert failed.code == 3, failed
        assert "make room" in failed.err, failed.err
        trainer.goes_on()
        listed = shell("checkpoint", "ls", "--json", "--store", str(small_disk), *where(running))
        assert [each["state"] for each in listed.json["checkpoints"]][-1] == "complete"
        ballast.unlink()
        again = shell("checkpoint", "create", "--deadline", "60", "--json", *where(running))
        assert again.code == 0, again.err


def test_a_new_cluster_does_not_begin_on_a_store_that_refuses_it(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(ps.Unavailable, match="no such bucket: create it first"),
        cold_standby("s3://nowhere/x", 1),
    ):
        pass
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ps.Unavailable, match="credentials"), cold_standby(seaweedfs.url, 1):
        pass

"""A living job whose cluster goes back to a checkpoint: ranks resume by themselves, exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from standby import CLUSTER, PATIENCE_S, Running, cold_standby

import resilient_ps as ps
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.restoring import propose_rollback, wait_for_restore
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import RolledBack

ROWS = 1_200
EPOCHS = 2
RANKS = 2
OFTEN = CheckpointSettings(every_clocks=10, keep_last=100, cut_deadline_s=10, loss_grace_s=1)


def numbered_rows() -> SparseArrayDataset:
    keys = np.arange(ROWS, dtype=np.uint64)
    return SparseArrayDataset(np.ones(ROWS), np.arange(ROWS + 1), keys, shuffle_seed=5)


class Rank(threading.Thread):
    """Counts its samples, as a program does that knows of rollbacks."""

    def __init__(self, running: Running, rank: int, mode: str, schedule: Schedule) -> None:
        super().__init__(daemon=True)
        self._etcd = ",".join(running.processes.endpoints)
        self._rank, self._mode, self._schedule = rank, mode, schedule
        self.rolled_back = 0
        self.resumed = 0
        self.clock = 0
        self.error: BaseException | None = None
        self._pause = threading.Event()

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.error = error
            raise

    def _train(self) -> None:
        with (
            ps.connect(self._etcd, CLUSTER, deadline_s=PATIENCE_S) as client,
            client.worker("count", self._rank, RANKS, self._mode) as worker,
        ):
            counts = worker.sparse_table("counts", dim=1, dtype="int64", optimiser=ps.Sum())
            rows = numbered_rows()
            for batch in worker.batches(rows, batch_size=5, epochs=EPOCHS, schedule=self._schedule):
                try:
                    counts.pull(batch.keys)
                    counts.push(batch.keys, np.ones((len(batch), 1), np.int64))
                except RolledBack:
                    self.rolled_back += 1
                    continue
                self.clock = worker.clock
                self._pause.wait(0.01)  # so that training lasts
            self.resumed = worker.resumed


def counts_of(running: Running) -> list[int]:
    etcd = ",".join(running.processes.endpoints)
    with ps.connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client:
        table = client.table("counts")
        assert isinstance(table, ps.SparseTable)
        told = table.pull(np.arange(ROWS, dtype=np.uint64))
        return [int(count) for count in np.unique(told)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with cold_standby(str(tmp_path / "store"), 1, settings=OFTEN) as running:
        yield running


@pytest.mark.parametrize(
    ("mode", "schedule"),
    [
        ("bsp", "static"),
        ("ssp:2", "dynamic"),
        pytest.param("asp", "dynamic", marks=pytest.mark.soak),
    ],
)
def test_every_sample_counts_once_though_the_cluster_goes_back_under_a_living_job(
    running: Running, mode: str, schedule: Schedule, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = [Rank(running, rank, mode, schedule) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    running.wait_for_checkpoints(1)
    with running.catalogue() as catalogue:
        intent = propose_rollback(catalogue, "latest", why="a test")
        incarnation = int(intent.result["incarnation"])
        wait_for_restore(catalogue, incarnation, PATIENCE_S)
    running.wait_for_checkpoints(len(running.checkpoints()) + 1)
    (server,) = running.processes.servers
    running.processes.kill(server.name)  # the only one that holds anything
    running.processes.restart(server.name, wait_ready=False)
    for rank in ranks:
        rank.join(4 * PATIENCE_S)
        assert not rank.is_alive(), rank.clock
        assert rank.error is None
        assert rank.resumed == 2
    assert counts_of(running) == [EPOCHS]
    assert "Resuming" in capfd.readouterr().err

"""All servers of a cluster are told to stop at once, or find another etcd: nothing is forgotten."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from standby import PATIENCE_S, Running, cold_standby

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.cli.resuming import restored
from resilient_ps.coordinator.runtime.processes import EtcdProcess

ON_DEMAND = CheckpointSettings(keep_last=100, cut_deadline_s=10, loss_grace_s=1)
EXIT_SUPERSEDED = 4


def terminate(running: Running) -> None:
    for server in running.processes.servers:
        os.kill(server.pid, signal.SIGTERM)


def train_a_little(running: Running, mode: str) -> None:
    running.train(mode, pause_ms=5)
    for rank in running.ranks:
        rank.wait_until(lambda rank=rank: rank.clock >= 5)  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["bsp", pytest.param("ssp:2", marks=pytest.mark.soak)])
def test_servers_that_are_stopped_together_make_a_checkpoint_first(
    tmp_path: Path, mode: str
) -> None:
    with cold_standby(str(tmp_path), 3, settings=ON_DEMAND) as running:
        train_a_little(running, mode)
        terminate(running)
        codes = [server.wait(PATIENCE_S) for server in running.processes.servers]
        assert codes == [0, 0, 0], running.logs()
        made = len(running.checkpoints())
        assert 1 <= made <= len(codes)  # who asks when one has begun already gets another one


def test_a_second_signal_ends_the_waiting_for_a_checkpoint(tmp_path: Path) -> None:
    with cold_standby(str(tmp_path), 2, settings=ON_DEMAND) as running:
        train_a_little(running, "bsp")
        for rank in running.ranks:
            os.kill(rank.process.pid, signal.SIGSTOP)  # no cut is reached
        terminate(running)
        for server in running.processes.servers:
            while "asks for a checkpoint" not in server.log_tail():
                assert server.is_alive(), server.log_tail()
        terminate(running)
        codes = {server.wait(PATIENCE_S) for server in running.processes.servers}
        assert codes == {128 + signal.SIGTERM}, running.logs()


def test_servers_end_when_etcd_was_wiped_and_new_ones_begin_with_the_newest_checkpoint(
    tmp_path: Path,
) -> None:
    settings = CheckpointSettings(every_clocks=10, keep_last=100, cut_deadline_s=10)
    with cold_standby(str(tmp_path), 2, settings=settings) as running:
        running.train(pause_ms=20)
        running.wait_for_checkpoints(1)
        etcd = running.processes.coordination
        assert isinstance(etcd, EtcdProcess)
        etcd.kill(0)
        shutil.rmtree(etcd.folder / "m0")
        etcd.restart(0)  # the same address, the same cluster id: nothing is in it
        codes = {server.wait(PATIENCE_S) for server in running.processes.servers}
        assert codes == {EXIT_SUPERSEDED}, running.logs()
        for rank in running.ranks:
            rank.kill()
        running.ranks.clear()
        newest = running.checkpoints()[0]
        for server in list(running.processes.servers):
            running.processes.restart(server.name, wait_ready=False)
        with running.catalogue() as catalogue:
            record = restored(catalogue)
            assert record is not None
            assert record.checkpoint == str(newest)
            assert record.incarnation > newest.incarnation

"""A graph whose cluster goes back to a checkpoint, or comes back from the store, ends the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from holders import Holders, holders_of
from standby import CLUSTER, PATIENCE_S, Running, cold_standby

import resilient_ps as ps
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.restoring import propose_rollback, wait_for_restore

EPOCHS = 8
OFTEN = CheckpointSettings(every_clocks=10, keep_last=5, cut_deadline_s=10)
PAUSE_MS = 10


@contextmanager
def holders_on(running: Running, folder: Path) -> Iterator[Holders]:
    """Two processes at work on the graph."""
    folder.mkdir()
    etcd = ",".join(running.processes.endpoints)
    with holders_of(etcd, CLUSTER, "wave", folder, EPOCHS) as holders:
        for _ in range(2):
            holders.start(pause_ms=PAUSE_MS)
        yield holders


def wrongs(running: Running, holders: Holders, earlier: list[int]) -> list[str]:
    etcd = ",".join(running.processes.endpoints)
    with ps.connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client:
        return holders.wrongs(client, earlier)


def test_killed_completely_it_goes_on_from_the_store_on_more_servers(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with cold_standby(store, 1, settings=OFTEN) as running:
        with holders_on(running, tmp_path / "before") as holders:
            running.wait_for_checkpoints(1)
            running.processes.kill_all()
        earlier = [each.process.pid for each in holders.all]
    with (
        cold_standby(store, 3, settings=OFTEN) as running,
        holders_on(running, tmp_path / "after") as holders,
    ):
        holders.wait_for_end()
        assert min(step for each in holders.all for _, step in each.tasks("took")) > 1
        assert wrongs(running, holders, earlier) == []


def test_rolled_back_under_living_holders_it_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with (
        cold_standby(str(tmp_path / "store"), 1, settings=OFTEN) as running,
        holders_on(running, tmp_path / "holders") as holders,
    ):
        running.wait_for_checkpoints(1)
        with running.catalogue() as catalogue:
            intent = propose_rollback(catalogue, "latest", why="a test")
            wait_for_restore(catalogue, int(intent.result["incarnation"]), PATIENCE_S)
        holders.wait_for_end()
        for each in holders.all:
            assert each.wait_to_hear("resumed") == [("resumed", "1")]
        assert wrongs(running, holders, []) == []


@pytest.mark.soak
def test_rolled_back_to_the_beginning_it_is_done_from_the_first_task(tmp_path: Path) -> None:
    never = CheckpointSettings(loss_grace_s=1)
    with (
        cold_standby(str(tmp_path / "store"), 1, settings=never) as running,
        holders_on(running, tmp_path / "holders") as holders,
    ):
        holders.all[0].wait_to_hear("did", 10)
        (server,) = running.processes.servers
        running.processes.kill(server.name)  # the only one that holds anything
        running.processes.restart(server.name, wait_ready=False)
        holders.wait_for_end()
        took = [task for each in holders.all for task in each.tasks("took")]
        assert took.count((0, 1)) == 2
        assert wrongs(running, holders, []) == []

"""`resilient-ps chaos attach`: a cluster of others is hurt within limits, and left as it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import PROGRAM

import resilient_ps as ps
from resilient_ps.chaos.live.attached import AttachedCluster, Whom
from resilient_ps.chaos.live.probe import JOB, TABLE
from resilient_ps.chaos.live.running import Running
from resilient_ps.chaos.live.scene import Skipped
from resilient_ps.chaos.result import result_from
from resilient_ps.client.connection import wait_for_cluster
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.records import ClusterConfig, ServerRecord
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.runtime.local import LocalCluster

CLUSTER = "theirs"
PATIENCE_S = 180.0
WORKER = """
import sys, time
import numpy as np
import resilient_ps as ps

etcd, cluster = sys.argv[1:]
with ps.connect(etcd, cluster) as client, client.worker("theirs", 0, 1, "asp") as worker:
    table = worker.sparse_table("theirs", dim=1, dtype="int64", optimiser=ps.Sum())
    while True:
        table.push(np.arange(10, dtype=np.uint64), np.ones((10, 1), np.int64))
        print("pushed", flush=True)
        time.sleep(0.02)
"""


@dataclass
class Theirs:
    """A cluster of two servers, and a worker."""

    processes: LocalCluster
    worker: subprocess.Popen[bytes]

    @property
    def etcd(self) -> str:
        return ",".join(self.processes.endpoints)

    def attach(self, *options: str) -> subprocess.Popen[str]:
        words = ["chaos", "attach", "--etcd", self.etcd, "--cluster", CLUSTER, *options]
        return subprocess.Popen(
            [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def attached(self, *options: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        with self.attach(*options) as process:
            try:
                told, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        return process.returncode, told, errors

    def left_behind(self) -> list[str]:
        with ps.connect(self.etcd, CLUSTER) as client:
            names = [*client.catalogue.tables(), *(job.name for job in client.catalogue.jobs())]
        return [name for name in names if name in (JOB, TABLE)]

    def running(self) -> list[Running]:
        found = [Running.look(server.pid) for server in self.processes.servers]
        return [each for each in found if each is not None]

    @contextmanager
    def scene(self, whom: Whom | None = None) -> Iterator[AttachedCluster]:
        with AttachedCluster(self.etcd, CLUSTER, whom or Whom()) as scene:
            yield scene


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    flags = ["--lease-ttl", "2", "--shards", "2"]
    with LocalCluster(2, cluster=CLUSTER, flags=flags) as processes:
        etcd = ",".join(processes.endpoints)
        with closing(EtcdKv(etcd)) as kv:
            wait_for_cluster(kv, CLUSTER, PATIENCE_S)
        command = [sys.executable, "-c", WORKER, etcd, CLUSTER]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            threading.Thread(target=worker.stdout.read, daemon=True).start()
            yield Theirs(processes, worker)
            worker.kill()


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Asks again and again; for states that nobody announces."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail(f"waited {PATIENCE_S} s in vain for {what}")


def test_a_cluster_that_comes_through_is_left_as_it_was(theirs: Theirs, tmp_path: Path) -> None:
    before = theirs.running()
    file = tmp_path / "attached.json"
    options = ["--allow", "pause-worker,lease-revoke", "--duration", "4s", "--every", "0"]
    options += ["--max-outage-s", "20", "--seed", "3", "--json", str(file)]
    code, told, errors = theirs.attached(*options)
    assert code == 0, errors
    assert told.startswith("HELD")
    result = result_from(json.loads(file.read_text()), str(file))
    happened = [fault for fault in result.faults if not fault.skipped]
    assert happened
    assert all(fault.evidence for fault in happened)
    assert {fault.planned.kind for fault in result.faults} <= {"pause-worker", "lease-revoke"}
    assert theirs.running() == before
    assert theirs.left_behind() == []


def test_when_the_steady_state_is_left_all_is_healed_at_once(theirs: Theirs) -> None:
    options = ["--allow", "pause-primary", "--duration", "60s", "--max-outage-s", "1.2"]
    code, told, errors = theirs.attached(*options, "--seed", "1")
    assert code == 1, (told, errors)
    assert "BROKEN  the steady state holds" in told
    assert "stopped, all is healed" in errors
    assert not any(process.is_paused for process in theirs.running())
    assert theirs.left_behind() == []


def test_a_cluster_that_is_not_steady_is_not_touched(theirs: Theirs) -> None:
    code, told, errors = theirs.attached("--min-pushes-per-s", "1e9", "--max-outage-s", "2.5")
    assert code == 2, (told, errors)
    assert "nothing was done" in told


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_who_is_paused_goes_on_when_the_command_ends_in_any_way(
    theirs: Theirs, number: signal.Signals
) -> None:
    worker = Running.look(theirs.worker.pid)
    assert worker is not None
    options = ["--allow", "pause-worker", "--duration", "60s", "--max-outage-s", "30"]
    with theirs.attach(*options) as attached:
        try:
            eventually(lambda: worker.is_paused, "the worker to be paused")
            attached.send_signal(number)
            attached.communicate(timeout=PATIENCE_S)
        finally:
            attached.kill()
    eventually(lambda: not worker.is_paused, "the worker to go on")
    assert worker.is_there


def test_only_processes_that_are_named_are_struck(theirs: Theirs) -> None:
    with theirs.scene(Whom(only=frozenset({"s2"}))) as scene:
        assert scene.names("server") == ("s2",)
        assert scene.names("worker") == ()
        for strike in (scene.party("s1").pause, scene.party("s1").kill):
            with pytest.raises(Skipped, match="--on does not name it"):
                strike()
    assert not any(process.is_paused for process in theirs.running())


def test_what_is_found_is_what_runs(theirs: Theirs) -> None:
    with theirs.scene() as scene:
        pids = {name: scene.party(name).pid for name in ("s1", "s2", "w0")}
        assert pids["w0"] == theirs.worker.pid
        assert pids["s1"] == theirs.processes.server("s1").pid
        assert scene.left_alone() == []
        assert scene.lease_ttl_s == 2


@pytest.mark.parametrize(
    ("host", "why"), [("", "shows another command line"), ("elsewhere", "runs on elsewhere")]
)
def test_a_process_that_is_not_certain_to_be_the_server_is_left_alone(
    theirs: Theirs, host: str, why: str
) -> None:
    keys = ClusterKeys(f"recycled-{host}")
    config = ClusterConfig("ab" * 8, 1, 1, 1, 1, 1, 1, "test")
    here = host or socket.gethostname()
    with closing(EtcdKv(theirs.etcd)) as kv:
        lease = kv.grant(60).lease
        record = ServerRecord("s9", 1, "127.0.0.1", 9, "", "", 1.0, lease, "1", os.getpid(), here)
        puts = (
            Put(keys.config, config.to_bytes(), lease),
            Put(keys.server("s9"), record.to_bytes(), lease),
        )
        kv.txn(Txn((), puts))
        with AttachedCluster(theirs.etcd, keys.cluster, Whom()) as scene:
            assert scene.names("server") == ()
            assert why in scene.left_alone()[0]
            with pytest.raises(Skipped, match=why):
                scene.party("s9").kill()
        kv.revoke(lease)


def test_a_process_that_has_the_number_of_another_one_gets_no_signal(theirs: Theirs) -> None:
    worker = Running.look(theirs.worker.pid)
    assert worker is not None
    with pytest.raises(ps.NotFound, match="nothing was signalled"):
        replace(worker, began=worker.began - 1).signal(signal.SIGSTOP)
    assert not worker.is_paused


def test_a_server_that_somebody_starts_again_is_found_under_its_name(theirs: Theirs) -> None:
    with theirs.scene() as scene:
        party = scene.party("s1")
        before = party.pid
        party.kill()
        assert party.state == "dead"
        assert party.exit_code == -signal.SIGKILL
        theirs.processes.server("s1").kill()  # it is dead; this waits for its end
        theirs.processes.restart("s1")
        party.restart()
        assert party.state == "running"
        assert party.pid not in (0, before)
        scene.records.wait_settled(PATIENCE_S)

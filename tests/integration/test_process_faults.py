"""Real processes that stop, die and come back while others train: clear errors, nothing twice."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster
from resilient_ps.coordinator.runtime.processes import EtcdProcess, find_etcd

LEASE_TTL_S = 2
KEYS = np.arange(1000, dtype=np.uint64)
ONES = np.ones((len(KEYS), 1), np.int64)
NUMBERS = itertools.count()
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    flags = ["--lease-ttl", str(LEASE_TTL_S)]
    with ps.local_cluster(2, replicas=1, coordination="etcd", server_flags=flags) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"f{next(NUMBERS)}"


def counted(client: ps.Client, name: str) -> set[int]:
    """How often each key was pushed: all must be equal."""
    table = client.table(name)
    assert isinstance(table, ps.SparseTable)
    return set(table.pull(KEYS).ravel().tolist())


def test_a_paused_server_is_named_at_the_deadline_and_counts_each_push_once(
    cluster: RunningCluster, name: str
) -> None:
    keys = np.arange(100_000, dtype=np.uint64)
    ones = np.ones((len(keys), 16), np.int64)  # far more than a socket takes
    with cluster.connect(deadline_s=2.0) as client, client.worker(name, 0, 1, "asp") as worker:
        table = worker.sparse_table(name, dim=16, dtype="int64", optimiser=ps.Sum())
        table.push_async(keys, ones)
        flush_within(worker, PATIENCE_S)
        cluster.processes.pause("s1")
        try:
            for call in (lambda: table.push(keys, ones), lambda: table.pull(keys)):
                where = r"shard \d+ .*( on s1 at |: its primary s1 is gone)"
                with pytest.raises(ps.DeadlineExceeded, match=where) as caught:
                    call()
                assert "s2" not in str(caught.value)
            with pytest.raises(ps.DeadlineExceeded, match=r"waits for .* earlier .*\bs1\b"):
                worker.tick()
        finally:
            cluster.processes.resume("s1")
        flush_within(worker, PATIENCE_S)  # it may have to be elected again first
    with cluster.connect() as client:
        found = client.table(name)
        assert isinstance(found, ps.SparseTable)
        assert set(found.pull(keys).ravel().tolist()) == {2}


def flush_within(worker: ps.Worker, seconds: float) -> None:
    """Wait for all pushes, however often the worker's own deadline passes."""
    until_s = time.monotonic() + seconds
    while True:
        try:
            return worker.flush()
        except ps.DeadlineExceeded:
            if time.monotonic() > until_s:
                raise


# --- etcd goes away while workers train ----------------------------------------------------------


class Trainer:
    """A rank that pushes and ticks in a thread of its own until it is told to end."""

    def __init__(self, worker: ps.Worker, name: str) -> None:
        self.pushed = 0
        self._worker = worker
        self._table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
        self._ending = threading.Event()
        self._progress = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._table.push(KEYS, ONES)
                self._worker.tick()
                with self._progress:
                    self.pushed += 1
                    self._progress.notify_all()
                self._ending.wait(0.005)
        except BaseException as error:
            self._error = error

    def wait_for_more(self, clocks: int) -> None:
        with self._progress:
            goal = self.pushed + clocks
            assert self._progress.wait_for(lambda: self.pushed >= goal, PATIENCE_S), self._error

    def ask_to_end(self) -> None:
        self._ending.set()

    def end(self) -> int:
        self._thread.join(PATIENCE_S)
        assert self._error is None
        return self.pushed


def wait_until_the_leases_are_over(cluster: RunningCluster, trainers: list[Trainer]) -> None:
    """Servers that cannot renew stop answering: nobody gets on."""
    pause = threading.Event()
    seen, since_s = -1, time.monotonic()
    until_s = since_s + PATIENCE_S
    while time.monotonic() - since_s < 1.0:  # a second without a clock: a hundred of them
        assert time.monotonic() < until_s, "training goes on without etcd for ever"
        pushed = sum(trainer.pushed for trainer in trainers)
        if pushed != seen:
            seen, since_s = pushed, time.monotonic()
        pause.wait(0.05)


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_training_outlives_an_etcd_that_is_gone_for_longer_than_the_leases(
    cluster: RunningCluster, name: str, fault: str
) -> None:
    etcd = cluster.processes.coordination
    assert isinstance(etcd, EtcdProcess)
    with cluster.connect() as client:
        workers = [client.worker(name, rank, 2, ps.SSP(staleness=3)) for rank in range(2)]
        trainers = [Trainer(worker, name) for worker in workers]
        trainers[0].wait_for_more(3)
        if fault == "killed":
            etcd.kill(0)
        else:
            etcd.pause(0)
        wait_until_the_leases_are_over(cluster, trainers)
        if fault == "killed":
            etcd.restart(0)
        else:
            etcd.resume(0)
        for trainer in trainers:
            trainer.wait_for_more(3)
        pushed = _end_together(trainers)
        for worker in workers:
            worker.close()
        assert counted(client, name) == {pushed}


def _end_together(trainers: list[Trainer]) -> int:
    """Both at once: one alone would wait for the other's clock."""
    for trainer in trainers:
        trainer.ask_to_end()
    return sum(trainer.end() for trainer in trainers)


# --- workers that are killed at any moment -------------------------------------------------------

PROGRAM = """
import sys
import numpy as np
import resilient_ps as ps

etcd, cluster, name, clocks = sys.argv[1:]
keys = np.arange(1000, dtype=np.uint64)
ones = np.ones((1000, 1), np.int64)
with (
    ps.connect(etcd, cluster) as client,
    client.worker(name, 0, 1, consistency=ps.SSP(staleness=2)) as worker,
):
    table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
    while worker.clock <= int(clocks):
        pushes = [table.push_async(keys, ones) for _ in range(5)]
        print(worker.clock, flush=True)
        for push in pushes:
            push.result()
        worker.tick()
"""


def test_a_rank_killed_in_the_middle_of_its_pushes_counts_each_of_them_once(
    cluster: RunningCluster, name: str
) -> None:
    clocks = 400
    command = [sys.executable, "-c", PROGRAM, cluster.etcd, cluster.name, name, str(clocks)]
    for dies_behind in (3, 111):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in itertools.islice(process.stdout, dies_behind):
                assert int(line) <= clocks
            process.send_signal(signal.SIGKILL)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    first = int(ended.stdout.split()[0])
    assert 1 < first <= clocks
    with cluster.connect() as client:
        assert counted(client, name) == {5 * clocks}


# --- surroundings that do not work ---------------------------------------------------------------


def test_a_server_that_can_write_neither_log_nor_output_serves(cluster: RunningCluster) -> None:
    command = [sys.executable, "-m", "resilient_ps.cli.main", "server", "--cluster", "full"]
    command += ["--etcd", cluster.etcd, "--listen", "127.0.0.1:0"]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(command, stdout=full, stderr=full) as process,
    ):
        try:
            with ps.connect(cluster.etcd, "full") as client:
                with client.worker("job", 0, 1, "asp") as worker:
                    table = worker.sparse_table("t", dim=1, dtype="int64", optimiser=ps.Sum())
                    table.push(KEYS, ONES)
                assert counted(client, "t") == {1}
        finally:
            process.terminate()


# --- nothing is left behind ----------------------------------------------------------------------


def test_clients_and_workers_that_come_and_go_leave_nothing_behind(
    cluster: RunningCluster, name: str
) -> None:
    def come_and_go(count: int) -> tuple[int, int]:
        for _ in range(count):
            with cluster.connect() as client, client.worker(name, 0, 1, "asp") as worker:
                table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
                table.push(KEYS, ONES)
                worker.tick()
                counted(client, name)
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    threads, descriptors = come_and_go(5)
    more_threads, more_descriptors = come_and_go(45)
    assert more_threads <= threads + 2
    assert more_descriptors <= descriptors + 5
    with cluster.connect() as client:
        assert counted(client, name) == {50}
    for server in cluster.processes.servers:
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 60

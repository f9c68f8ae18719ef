"""A small cluster, and the ranks of a workload in processes of their own, some of them killed."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from resilient_ps.chaos.live.server import server_program
from resilient_ps.chaos.live.workload import LiveWorkload, Progress
from resilient_ps.chaos.result import Judged
from resilient_ps.checkpoints.standby import Standby
from resilient_ps.client.connection import (
    CLUSTER_VARIABLE,
    ETCD_VARIABLE,
    Client,
    connect,
    wait_for_cluster,
)
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.runtime.spawn import spawn

PATIENCE_S = 60.0
CLUSTER = "live"


class Ranks:
    """The processes of a workload."""

    def __init__(self, processes: LocalCluster, load: LiveWorkload, folder: Path) -> None:
        self.load = load
        self.clocks: tuple[int, ...] = (0,) * load.ranks
        self.seen: list[Progress] = []
        self._processes = processes
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int) -> None:
        where = {
            ETCD_VARIABLE: ",".join(self._processes.endpoints),
            CLUSTER_VARIABLE: self._processes.cluster,
        }
        environment = {**where, **self.load.environment(rank)}
        command = self.load.command(rank)
        self._running[rank] = spawn(command, self.log_of(rank), environment=environment)

    def kill(self, rank: int) -> None:
        self._running[rank].kill()
        self._running[rank].wait()

    def wait_for_clocks(self, clocks: int) -> None:
        """So many more, of every rank."""
        goal = max(self.clocks) + clocks
        self._wait(lambda: min(self.clocks) >= goal, f"clock {goal}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            progress = self.load.progress()
            self.seen.append(progress)
            self.clocks = progress.clocks or self.clocks
            if condition():
                return
            for rank, process in self._running.items():
                if process.poll():
                    pytest.fail(f"rank {rank} ended with {process.returncode}: {self.tail(rank)}")
            pause.wait(0.05)
        told = [f"{s.name} {s.is_alive()}: {s.log_tail()}" for s in self._processes.servers]
        told += [self.tail(rank) for rank in self._running]
        pytest.fail("\n".join([f"waited in vain for {what}; at {self.clocks}", *told]))

    def tail(self, rank: int) -> str:
        return self.log_of(rank).read_text()[-3000:]

    def log_of(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"

    def exit_code(self, rank: int) -> int | None:
        return self._running[rank].poll()

    def end(self) -> None:
        self.load.ask_to_end()
        for rank, process in self._running.items():
            assert process.wait(PATIENCE_S) == 0, self.tail(rank)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def judge(self) -> dict[str, Judged]:
        with self.connect() as client:
            return {each.checker: each for each in self.load.judge(client)}

    def connect(self) -> Client:
        etcd = ",".join(self._processes.endpoints)
        return connect(etcd, self._processes.cluster, deadline_s=PATIENCE_S)


@contextmanager
def ranks_of(processes: LocalCluster, load: LiveWorkload, folder: Path) -> Iterator[Ranks]:
    """All ranks run when the block begins, and none when it ends."""
    ranks = Ranks(processes, load, folder)
    try:
        for rank in range(load.ranks):
            ranks.start(rank)
        yield ranks
    finally:
        ranks.close()


@contextmanager
def small_cluster(
    folder: Path, servers: int = 2, standby: Standby | None = None
) -> Iterator[LocalCluster]:
    """Two replicas of four shards; what servers apply is kept in `folder`, where that is set."""
    flags = ["--shards", "4", "--lease-ttl", "2"]
    program = server_program(folder)
    with LocalCluster(
        servers, replicas=2, cluster=CLUSTER, flags=flags, program=program, standby=standby
    ) as processes:
        kv = EtcdKv(processes.endpoints)
        try:
            wait_for_cluster(kv, processes.cluster, PATIENCE_S)
        finally:
            kv.close()
        try:
            yield processes
        finally:  # told to stop, servers would hand over, and make a checkpoint, for nobody
            processes.kill_all()

"""A cluster with a cold standby, and ranks in processes of their own: all of it can be killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from standby_program import BATCH_SIZE, ROWS, WEIGHTS

import resilient_ps as ps
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.cli.resuming import restored
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.connection import connect
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.runtime.open import open_store

PROGRAM = Path(__file__).with_name("standby_program.py")
CLUSTER = "standby"
LEASE_TTL_S = 2
PATIENCE_S = 60.0
RANKS = 2
EPOCHS = 3
CLOCKS = ROWS * EPOCHS // (BATCH_SIZE * RANKS)
EVERY_CLOCKS = CheckpointSettings(every_clocks=20, keep_last=100, cut_deadline_s=10)


class Rank:
    """One rank in a process; `clock` is the last that it has told."""

    def __init__(self, processes: LocalCluster, rank: int, mode: str, pause_ms: int) -> None:
        etcd = ",".join(processes.endpoints)
        command = [sys.executable, str(PROGRAM), etcd, CLUSTER, str(rank), str(RANKS), mode]
        assert processes.folder is not None
        self._log = (processes.folder / f"rank-{rank}.log").open("wb")
        self.process = subprocess.Popen(
            [*command, str(EPOCHS), str(pause_ms)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.clock = 0
        self.began_at = 0
        self.ended = False
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            with self._told:
                self.clock = int(words[-1])
                self.began_at = self.clock if words[0] == "ready" else self.began_at
                self.ended = words[0] == "ended"
                self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._told:
            self._told.wait_for(lambda: condition() or not self._reader.is_alive(), PATIENCE_S)
            assert condition(), f"rank at clock {self.clock}: {self.last_words()}"

    def wait_for_end(self) -> None:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert (code, self.ended) == (0, True), self.last_words()

    def last_words(self) -> str:
        return Path(self._log.name).read_bytes()[-3000:].decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


@dataclass
class Running:
    """A cluster whose ranks train."""

    processes: LocalCluster
    url: str
    ranks: list[Rank] = field(default_factory=list)

    def train(self, mode: str = "bsp", *, pause_ms: int = 0) -> None:
        """`pause_ms`: in each clock, so that training does not end too early."""
        for rank in range(RANKS):
            self.ranks.append(Rank(self.processes, rank, mode, pause_ms))

    @contextmanager
    def catalogue(self) -> Iterator[Catalogue]:
        """Once the cluster is served, and what it began with is registered."""
        etcd = ",".join(self.processes.endpoints)
        with connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client:
            restored(client.catalogue)
            yield client.catalogue

    def checkpoints(self) -> list[CheckpointId]:
        """Complete ones, the newest first."""
        with StoredCheckpoints(open_store(self.url), CLUSTER) as stored:
            return [each.id for each in stored.listed() if each.state == "complete"]

    def wait_for_checkpoints(self, count: int) -> None:
        """While ranks train."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            if len(self.checkpoints()) >= count:
                return
            for rank in self.ranks:
                assert rank.process.poll() is None, rank.last_words()
            pause.wait(0.05)
        pytest.fail(f"{len(self.checkpoints())} of {count} checkpoints: {self.logs()}")

    def kill_everything(self) -> None:
        for rank in self.ranks:
            rank.process.kill()
        self.processes.kill_all()
        for rank in self.ranks:
            rank.kill()
        self.ranks.clear()

    def logs(self) -> str:
        return "\n".join(f"{s.name}:\n{s.log_tail()}" for s in self.processes.servers)


@contextmanager
def cold_standby(
    url: str,
    servers: int,
    *,
    settings: CheckpointSettings = EVERY_CLOCKS,
    restore: str = "auto",
    endpoint: str = "",
    shards: int = 0,
) -> Iterator[Running]:
    """A new cluster on this store."""
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    standby = Standby(StorePlace(url, endpoint), settings, restore)
    flags = ["--lease-ttl", str(LEASE_TTL_S), "--shards", str(shards)]
    with ExitStack() as stack:
        processes = LocalCluster(servers, cluster=CLUSTER, standby=standby, flags=flags)
        stack.enter_context(processes)
        running = Running(processes, url)
        try:
            yield running
        finally:  # told to stop, servers would wait for ranks that are gone, to make a checkpoint
            running.kill_everything()


@dataclass(frozen=True)
class Outcome:
    """What training has come to: counts of samples, and the bytes of both models."""

    counts: tuple[int, ...]
    weights: bytes
    bias: bytes


def outcome_of(running: Running) -> Outcome:
    etcd = ",".join(running.processes.endpoints)
    with connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client:
        counts, weights, bias = (client.table(n) for n in ("counts", "weights", "bias"))
        assert isinstance(counts, ps.SparseTable)
        assert isinstance(weights, ps.SparseTable)
        assert isinstance(bias, ps.DenseTable)
        told = counts.pull(np.arange(ROWS, dtype=np.uint64))
        return Outcome(
            tuple(np.unique(told).tolist()),
            weights.pull(np.arange(WEIGHTS, dtype=np.uint64)).tobytes(),
            bias.pull().tobytes(),
        )

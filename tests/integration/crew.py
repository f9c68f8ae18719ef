"""A cluster of real processes that tests hurt, and ranks that count their pushes meanwhile."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.chaos.live.orders import Order
from resilient_ps.chaos.live.prober import key_of
from resilient_ps.chaos.live.records import Records
from resilient_ps.chaos.live.server import server_program
from resilient_ps.chaos.live.straight import StraightWriter
from resilient_ps.client.connection import wait_for_cluster
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import EtcdProcess, find_etcd, start_etcd
from resilient_ps.runtime.local import LocalCluster

LEASE_TTL_S = 2
PATIENCE_S = 40.0
"""How long a test waits for what must come; nothing that passes takes that long."""
PAUSE_S = 0.05  # between the pushes of a rank: servers that start need most of the machine
CLUSTER = "hurt"
KEYS = np.arange(1000, dtype=np.uint64)
ONES = np.ones((len(KEYS), 1), np.int64)
NUMBERS = itertools.count()


@dataclass
class Hurt:
    """A running cluster."""

    processes: LocalCluster
    folder: Path
    kv: EtcdKv
    records: Records

    @property
    def etcd(self) -> EtcdProcess:
        coordination = self.processes.coordination
        assert isinstance(coordination, EtcdProcess)
        return coordination

    @property
    def endpoints(self) -> str:
        return ",".join(self.processes.endpoints)

    def connect(self, deadline_s: float = PATIENCE_S, *, unix_sockets: bool = True) -> ps.Client:
        return ps.connect(self.endpoints, CLUSTER, deadline_s=deadline_s, unix_sockets=unix_sockets)

    def record(self, shard: int) -> ShardRecord:
        found = self.records.look().shard(shard)
        assert found is not None
        return found

    @property
    def shards(self) -> int:
        return len(self.records.look().shards)

    def settle(self) -> None:
        """Wait until all running processes are registered, and every shard is where it should be.

        Until the lease of its predecessor has ended, a restarted server is not: the shards look as
        they were before it died.
        """
        eventually(self._all_registered, "all servers to be registered")
        try:
            self.records.wait_settled(PATIENCE_S)
        except ps.Unavailable as error:
            told = [f"{s.name}:\n{s.log_tail()}" for s in self.processes.servers]
            pytest.fail("\n".join([str(error), *told]))

    def _all_registered(self) -> bool:
        running = {s.pid for s in self.processes.servers if s.is_alive()}
        return running <= {record.pid for record in self.records.look().servers}

    def hang(self, name: str, what: Literal["gil", "loop"], seconds: float) -> Order:
        """Make a server hang."""
        return Order(self.folder, name, what, seconds)

    def straight_writer(self, client: ps.Client, name: str) -> StraightWriter:
        """To all shards that the server leads, whatever becomes of it."""
        keys = {shard: key_of(shard, self.shards) for shard in self.records.led_by(name)}
        address = self.processes.server(name).address
        writer = StraightWriter(client, address, f"straight{next(NUMBERS)}", keys)
        writer.begin()
        return writer


@contextmanager
def hurt_cluster(
    servers: int = 3,
    *,
    replicas: int = 2,
    min_in_sync: int = 1,
    shards: int = 6,
    members: int = 1,
    lease_ttl_s: int = LEASE_TTL_S,
    options: Callable[[EtcdProcess], Mapping[str, Sequence[str]]] | None = None,
) -> Iterator[Hurt]:
    """`members`: of etcd. `options`: further ones of single servers, when etcd runs."""
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd = stack.enter_context(start_etcd(members=members, heartbeat_ms=20, election_ms=200))
        flags = ["--lease-ttl", str(lease_ttl_s), "--shards", str(shards)]
        processes = LocalCluster(
            servers,
            replicas=replicas,
            min_in_sync=min_in_sync,
            cluster=CLUSTER,
            coordinate=lambda: etcd,
            flags=flags,
            flags_of=None if options is None else options(etcd),
            program=server_program(folder),
        )
        stack.enter_context(processes)
        kv = stack.enter_context(closing(EtcdKv(processes.endpoints)))
        wait_for_cluster(kv, CLUSTER, PATIENCE_S)
        hurt = Hurt(processes, folder, kv, Records(kv, CLUSTER, min(replicas, servers)))
        hurt.settle()
        yield hurt


class Rank:
    """A rank that pushes ones to all keys, in a thread of its own, and counts."""

    def __init__(self, client: ps.Client, job: str, rank: int, of: int, consistency: Any) -> None:
        self.pushed = 0
        self._worker = client.worker(job, rank, of, consistency)
        self._table = self._worker.sparse_table(job, dim=1, dtype="int64", optimiser=ps.Sum())
        self._ending = threading.Event()
        self._progress = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._table.push(KEYS, ONES)
                self._worker.tick()
                with self._progress:
                    self.pushed += 1
                    self._progress.notify_all()
                self._ending.wait(PAUSE_S)
        except BaseException as error:
            self._error = error
            with self._progress:
                self._progress.notify_all()

    def wait_for_more(self, clocks: int = 5) -> None:
        with self._progress:
            goal = self.pushed + clocks
            self._progress.wait_for(lambda: self.pushed >= goal or self._error, PATIENCE_S)
            assert self.pushed >= goal, self._error or f"{self.pushed} of {goal} clocks"

    def ask_to_end(self) -> None:
        self._ending.set()

    def end(self) -> int:
        self._thread.join(PATIENCE_S)
        assert self._error is None, self._error
        assert not self._thread.is_alive(), "a rank hangs"
        self._worker.close()
        return self.pushed


@contextmanager
def ranks_at_work(
    hurt: Hurt, count: int = 2, consistency: Any = "asp", *, unix_sockets: bool = True
) -> Iterator[list[Rank]]:
    """Ranks that push while the block runs. In the end every push must have counted once."""
    job = f"job{next(NUMBERS)}"
    with hurt.connect(unix_sockets=unix_sockets) as client:
        ranks = [Rank(client, job, rank, count, consistency) for rank in range(count)]
        for each in ranks:
            each.start()
        try:
            for each in ranks:
                each.wait_for_more()
            yield ranks
            for each in ranks:
                each.wait_for_more()
        finally:
            for each in ranks:
                each.ask_to_end()
        pushed = sum(each.end() for each in ranks)
        assert counted(client, job) == {pushed}


def counted(client: ps.Client, name: str) -> set[int]:
    """How often the keys were pushed, as the table holds it: all equally often."""
    table = client.table(name)
    assert isinstance(table, ps.SparseTable)
    return set(table.pull(KEYS).ravel().tolist())


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Asks again and again; for states that nobody announces."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail(f"waited {PATIENCE_S} s in vain for {what}")

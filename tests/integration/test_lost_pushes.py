"""Answers that get lost, and then the server too that gave them: a push counts once all the same.

Clients reach the servers through proxies, so that an answer can be lost and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from crew import NUMBERS, Hurt, eventually, hurt_cluster

import resilient_ps as ps
from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.network import Network
from resilient_ps.runtime.spawn import free_ports

SERVERS = ("s1", "s2")
KEY = np.array([7], np.uint64)
ONE = np.ones((1, 1), np.int64)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network")) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(network: Network) -> Iterator[Hurt]:
    targets = [f"127.0.0.1:{port}" for port in free_ports(len(SERVERS))]
    own = {
        name: ("--listen", target, "--advertise", network.open(name, target))
        for name, target in zip(SERVERS, targets, strict=True)
    }
    with hurt_cluster(2, shards=1, options=lambda _: own) as hurt:
        yield hurt


@pytest.mark.parametrize("copied", [False, True], ids=["backup", "replica seeded by a copy"])
def test_a_push_whose_answer_was_lost_with_its_server_counts_once(
    cluster: Hurt, network: Network, copied: bool
) -> None:
    name = f"lost{next(NUMBERS)}"
    with (
        cluster.connect() as reader,
        cluster.connect(unix_sockets=False) as client,
        client.worker(name, 0, 1, "asp") as worker,
    ):
        table = worker.sparse_table(name, dim=1, dtype="int64", optimiser=ps.Sum())
        table.push(KEY, ONE)
        primary = cluster.record(0).primary
        backup = next(server for server in SERVERS if server != primary)
        silence = network.apply(Rule("drop", targets=(primary,), way="answers"))
        push = table.push_async(KEY, ONE)
        eventually(lambda: held(reader, name) == 2, "the push to be applied")
        if copied:
            cluster.processes.kill(backup)
            cluster.processes.restart(backup)
            cluster.settle()
        assert not push.done()
        cluster.processes.kill(primary)
        network.lift(network.apply(Rule("reset", targets=(primary,))))  # they never come
        network.lift(silence)
        push.result()
        table.push(KEY, ONE)
        worker.tick()
        assert held(reader, name) == 3
    cluster.processes.restart(primary)
    cluster.settle()


def held(client: ps.Client, name: str) -> int:
    table = client.table(name)
    assert isinstance(table, ps.SparseTable)
    return int(table.pull(KEY)[0, 0])

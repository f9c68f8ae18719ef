"""Many tasks, and many holders that wait for them: each task is done once, and etcd stays small."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from crew import CLUSTER, NUMBERS, Hurt, hurt_cluster

import resilient_ps as ps
from resilient_ps.coordinator.keys import ClusterKeys

KEYS = ClusterKeys(CLUSTER)
DEADLINE_S = 600.0


@pytest.fixture(scope="module")
def hurt() -> Iterator[Hurt]:
    with hurt_cluster(2, shards=2) as hurt:
        yield hurt


def all_done_once(hurt: Hurt, lanes: int, steps: int, holders: int) -> None:
    """Each step of a lane comes after the step before of all lanes."""
    graph = ps.Graph(f"scale{next(NUMBERS)}", steps=steps)
    graph.add("lane", width=lanes)
    graph.after("lane", "lane", lag=1)
    with hurt.connect(DEADLINE_S) as client, ThreadPoolExecutor(holders) as threads:

        def hold(_number: int) -> int:
            with client.tasks(graph, deadline_s=DEADLINE_S, lease_ttl_s=60) as tasks:
                table = tasks.sparse_table(graph.name, dim=1, dtype="int64", optimiser=ps.Sum())

                def count(task: ps.Task) -> None:
                    key = np.array([task.rank * steps + task.step - 1], np.uint64)
                    table.push(key, np.ones((1, 1), np.int64))

                return tasks.run(count)

        done = list(threads.map(hold, range(holders)))
        assert sum(done) == lanes * steps
        table = client.table(graph.name)
        assert isinstance(table, ps.SparseTable)
        counts = table.pull(np.arange(lanes * steps, dtype=np.uint64))
        assert np.unique(counts).tolist() == [1]
    kept = hurt.kv.read(KEYS.graph_parts(graph.name), prefix=True).items
    assert len(kept) == -(-lanes // 64)  # 64 lanes in one value, however many steps are done


def test_200_tasks_are_done_once_by_40_holders_most_of_which_wait(hurt: Hurt) -> None:
    all_done_once(hurt, lanes=4, steps=50, holders=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("lanes", "steps"), [(4, 2_500), (500, 20)], ids=["narrow", "wide"])
def test_10_000_tasks_are_done_once_by_500_holders(hurt: Hurt, lanes: int, steps: int) -> None:
    all_done_once(hurt, lanes, steps, holders=500)

"""With --min-in-sync 2, one server alone acknowledges nothing, says why, and forgets nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from crew import Hurt, hurt_cluster

import resilient_ps as ps

KEYS = np.arange(100, dtype=np.uint64)
ONES = np.ones((100, 1), np.int64)
DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hurt]:
    with hurt_cluster(2, shards=2, min_in_sync=2) as hurt:
        yield hurt


def test_pushes_wait_for_a_second_copy_and_go_on_when_it_is_there(cluster: Hurt) -> None:
    victim = "s1"  # primary of one shard, and backup of the other
    assert len(cluster.records.led_by(victim)) == 1
    with (
        cluster.connect(DEADLINE_S) as client,
        client.worker(victim, 0, 1, "asp") as worker,
    ):
        table = worker.sparse_table(victim, dim=1, dtype="int64", optimiser=ps.Sum())
        table.push(KEYS, ONES)
        cluster.processes.kill(victim)
        why = rf"shard \d+ \(epoch .* too few servers hold it: 1 of 2, and waits for {victim}"
        with pytest.raises(ps.RetryLater, match=why):
            table.push(KEYS, ONES)
        cluster.processes.restart(victim)
        cluster.settle()
        flush(worker)
        table.push(KEYS, ONES)
        worker.tick()
        assert set(table.pull(KEYS).ravel().tolist()) == {3}


def flush(worker: ps.Worker) -> None:
    """Wait for all pushes, however often the worker's own deadline passes."""
    while True:
        try:
            return worker.flush()
        except ps.RetryLater:
            continue

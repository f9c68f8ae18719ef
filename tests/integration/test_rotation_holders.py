"""Matrix factorisation by rotation in several processes: who dies changes no byte of the model.

The program is `examples/rotation_mf.py`, as anybody runs it; rank 0 compares the model with that of
one process alone, and its exit code says whether they are the same.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from crew import CLUSTER, LEASE_TTL_S, Hurt, eventually, hurt_cluster

import resilient_ps as ps
from resilient_ps.client.connection import CLUSTER_VARIABLE, ETCD_VARIABLE, RANK_VARIABLE

PROGRAM = Path(__file__).parents[2] / "examples" / "rotation_mf.py"
SAME = "metric same_bytes_as_alone 1"
PATIENCE_S = 90.0


@pytest.fixture
def hurt() -> Iterator[Hurt]:
    """A cluster for each test: the graph has a fixed name."""
    with hurt_cluster(2, shards=4) as hurt:
        yield hurt


class Crowd:
    """The processes that share the tasks."""

    def __init__(self, hurt: Hurt, folder: Path, epochs: int) -> None:
        self._hurt = hurt
        self._folder = folder
        self._words = ["--epochs", str(epochs), "--pause-ms", "10"]
        self._numbers = itertools.count()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, rank: int) -> str:
        name = f"h{next(self._numbers)}"
        where = {
            ETCD_VARIABLE: self._hurt.endpoints,
            CLUSTER_VARIABLE: CLUSTER,
            RANK_VARIABLE: str(rank),
        }
        with self._log(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, str(PROGRAM), *self._words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | where,
            )
        return name

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def told(self, name: str) -> str:
        return self._log(name).read_text()

    def wait_for_tasks(self, name: str, count: int) -> None:
        """It has told of so many more."""
        goal = self.told(name).count("task ") + count
        eventually(lambda: self._has_told(name, goal), f"{name} to tell of {goal} tasks")

    def _has_told(self, name: str, goal: int) -> bool:
        assert not self.running[name].poll(), self.told(name)
        return self.told(name).count("task ") >= goal

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def wait_for_end(self) -> None:
        for name, process in self.running.items():
            assert process.wait(PATIENCE_S) == 0, self.told(name)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def crowd(hurt: Hurt, tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(hurt, tmp_path, epochs=8)
    yield crowd
    crowd.close()


def meddle(hurt: Hurt) -> None:
    """Somebody adds to a factor when all is done."""
    with hurt.connect() as client, client.worker("meddler", 0, 1, "asp") as worker:
        table = worker.table("films/users")
        assert isinstance(table, ps.SparseTable)
        change = np.zeros((1, table.spec.dim), np.float32)
        change[0, 0] = 1e-3
        table.push(np.array([7], np.uint64), change)
        worker.tick()


def test_a_model_whose_holder_and_server_were_killed_is_that_of_one_process(
    hurt: Hurt, crowd: Crowd
) -> None:
    first, victim, _ = (crowd.start(rank) for rank in range(3))
    crowd.wait_for_tasks(victim, 4)
    crowd.kill(victim)
    crowd.start(1)
    crowd.wait_for_tasks(first, 4)
    hurt.processes.kill("s1")
    crowd.wait_for_end()
    assert SAME in crowd.told(first)
    meddle(hurt)  # the negative control: one factor is a little different
    again = crowd.start(0)
    assert crowd.running.pop(again).wait(PATIENCE_S) == 1
    assert "differs from that of one process alone" in crowd.told(again)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_model_whose_holders_die_again_and_again_is_that_of_one_process(
    hurt: Hurt, tmp_path: Path
) -> None:
    crowd = Crowd(hurt, tmp_path, epochs=60)
    try:
        first, paused, victim = (crowd.start(rank) for rank in range(3))
        for turn in range(6):
            crowd.wait_for_tasks(victim, 3 + turn)
            crowd.kill(victim)
            victim = crowd.start(2)
            if turn == 2:
                crowd.wait_for_tasks(paused, 1)
                crowd.signal(paused, signal.SIGSTOP)
                threading.Event().wait(3 * LEASE_TTL_S)
                crowd.signal(paused, signal.SIGCONT)
            if turn == 4:
                hurt.processes.kill("s2")
        crowd.wait_for_end()
        assert SAME in crowd.told(first)
    finally:
        crowd.close()

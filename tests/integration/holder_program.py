"""A process that does tasks of a wavefront: run by `holders`, several at a time.

It prints a line for each task that it has taken, and `waits` where it waits for a line of input in
the middle of it: in those of `wait_in`, [rank, step], or ["first"]. Each task is signed with the
number of the process, before and after the middle. `pause_ms`: in each task, so that it all lasts.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import resilient_ps as ps
from resilient_ps.models.wavefront import BlockRidge

ROWS, FEATURES = 64, 16
BLOCKS, DATA_SHARDS, EPOCHS = 4, 8, 2
DEADLINE_S = 60.0


def ridge(name: str, epochs: int = EPOCHS) -> BlockRidge:
    return BlockRidge(
        ROWS, FEATURES, blocks=BLOCKS, data_shards=DATA_SHARDS, epochs=epochs, l2=0.01, name=name
    )


def planted() -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(ROWS, FEATURES)) / np.sqrt(FEATURES)
    return x, x @ rng.normal(size=FEATURES)


def key_of(rank: int, step: int) -> int:
    return rank * 1_000_000 + step


class Watched:
    """As the tasks; says what it does, signs it, and waits where it is told to."""

    def __init__(self, tasks: ps.Tasks, name: str, wait_in: list[Any], pause_ms: int) -> None:
        self.sparse_table = tasks.sparse_table
        self.dense_table = tasks.dense_table
        self._tasks = tasks
        self._wait_in = wait_in
        self._pause_s = pause_ms / 1000
        self._signed = tasks.sparse_table(
            f"{name}/signed", dim=1, dtype="int64", optimiser=ps.Sum()
        )

    def run(self, work: Callable[[Any], None]) -> int:
        def watched(task: ps.Task) -> None:
            say("took", task.rank, task.step)
            try:
                self._sign(task)
                if [task.rank, task.step] in self._wait_in or "first" in self._wait_in:
                    self._wait_in = [each for each in self._wait_in if each != "first"]
                    say("waits", task.rank, task.step)
                    read_line()
                time.sleep(self._pause_s)
                self._sign(task)
                work(task)
                say("did", task.rank, task.step)
            except ps.Fenced:
                say("fenced", task.rank, task.step)
                raise
            except ps.RolledBack:
                say("rolled-back", task.rank, task.step)
                raise

        return self._tasks.run(watched)

    def _sign(self, task: ps.Task) -> None:
        key = np.array([key_of(task.rank, task.step)], np.uint64)
        self._signed.push(key, np.array([[os.getpid()]]))


def read_line() -> None:
    """Wait in short turns: a signal right before a wait would be heard at its end only."""
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    sys.stdin.readline()


def say(*words: object) -> None:
    print(*words, flush=True)


def main(etcd: str, cluster: str, name: str, options: str) -> None:
    asked = json.loads(options)
    model = ridge(name, asked.get("epochs", EPOCHS))
    with (
        ps.connect(etcd, cluster, deadline_s=DEADLINE_S) as client,
        client.tasks(
            model.schedule.graph, deadline_s=DEADLINE_S, lease_ttl_s=asked["lease_ttl_s"]
        ) as tasks,
    ):
        say("ready")
        watched = Watched(tasks, name, asked.get("wait_in", []), asked.get("pause_ms", 0))
        ended = model.train(watched, *planted())
        say("resumed", tasks.resumed)
    say("ended", ended)


if __name__ == "__main__":
    main(*sys.argv[1:])

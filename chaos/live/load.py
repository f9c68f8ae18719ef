"""Workers that push all the time: processes of their own, so that they hold up no prober.

    python -m resilient_ps.chaos.live.load ENDPOINTS CLUSTER JOB RANK OF

Each pushes ones to the same keys until it gets SIGTERM; then it prints how often.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from resilient_ps.client.connection import Client, connect
from resilient_ps.client.future import Future
from resilient_ps.client.tables import SparseTable
from resilient_ps.errors import Unavailable
from resilient_ps.runtime.spawn import spawn
from resilient_ps.tables.optimisers import Sum

TABLE = "load"
JOB = "load"
KEYS = np.arange(1_000, dtype=np.uint64)
UNDER_WAY = 4  # pushes
TICK_EVERY = 32
DEADLINE_S = 120.0
END_DEADLINE_S = 60.0


class Load:
    """`workers` such processes. A context: it begins when they push, and ends them."""

    def __init__(self, endpoints: str, cluster: str, workers: int, folder: Path) -> None:
        self.pushed = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = folder / "load.log"
        program = [sys.executable, "-m", "resilient_ps.chaos.live.load", endpoints, cluster, JOB]
        self._commands = [[*program, str(rank), str(workers)] for rank in range(workers)]

    def __enter__(self) -> Self:
        for command in self._commands:
            self._processes.append(spawn(command, self._log, stdout=subprocess.PIPE))
        for process in self._processes:
            if _line_of(process) != "pushing":
                raise Unavailable(f"a load process did not begin: {self._tail()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        for process in self._processes:
            self._end(process, in_order=kind is None)

    def _end(self, process: subprocess.Popen[bytes], *, in_order: bool) -> None:
        try:
            process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        line = _line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        if in_order and process.returncode:
            raise Unavailable(f"a load process failed: {self._tail()}")
        self.pushed += int(line) if in_order else 0

    def miscounted(self, client: Client) -> list[str]:
        """After the end: whether the table holds another number than was acknowledged."""
        table = client.table(TABLE)
        assert isinstance(table, SparseTable)
        held = set(table.pull(KEYS).ravel().tolist())
        if held == {self.pushed}:
            return []
        return [f"load: {self.pushed} pushes acknowledged, {min(held)} to {max(held)} applied"]

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-1000:].strip()


def _line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode(errors="replace").strip()


def main(endpoints: str, cluster: str, job: str, rank: str, of: str) -> None:
    """The process itself."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ending.append(number))
    ones = np.ones((len(KEYS), 1), np.int64)
    pushed = 0
    with (
        connect(endpoints, cluster, deadline_s=DEADLINE_S) as client,
        client.worker(job, int(rank), int(of), "asp") as worker,
    ):
        table = worker.sparse_table(TABLE, dim=1, dtype="int64", optimiser=Sum())
        under_way: list[Future[None]] = [table.push_async(KEYS, ones)]
        print("pushing", flush=True)
        while not ending:
            under_way.append(table.push_async(KEYS, ones))
            if len(under_way) > UNDER_WAY:
                under_way.pop(0).result()
                pushed += 1
                if pushed % TICK_EVERY == 0:
                    worker.tick()
        for push in under_way:
            push.result()
            pushed += 1
        worker.tick()
    print(pushed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

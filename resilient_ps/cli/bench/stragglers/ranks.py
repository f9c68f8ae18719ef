"""The processes of one run, from the outside: started, heard, ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from resilient_ps.cli.bench.stragglers.worker import GO, Order, Told
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.errors import DeadlineExceeded, Unavailable
from resilient_ps.runtime.spawn import spawn

READY_DEADLINE_S = 120.0
LISTEN_S = 0.2
LOG_TAIL_BYTES = 2000
_READ_BYTES = 1 << 16
ONE_BLAS_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class RankProcess:
    """One rank. `told`: all that it has told so far."""

    def __init__(self, order: Order, rank: int, folder: Path) -> None:
        self.rank = rank
        self.told: list[Told] = []
        self._log = folder / f"{order.job}-{rank}.log"
        module = "resilient_ps.cli.bench.stragglers.worker"
        command = [sys.executable, "-m", module, order.to_json(), str(rank)]
        self._process = spawn(
            command, self._log, stdout=subprocess.PIPE, environment=ONE_BLAS_THREAD
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        self._unread = b""
        os.set_blocking(self._pipe.fileno(), False)

    def fileno(self) -> int:
        """For poll."""
        return self._pipe.fileno()

    def go(self) -> None:
        """Let it begin."""
        self._process.send_signal(GO)

    def read(self) -> None:
        """Take in what it has told. Raises `Unavailable` when it has ended with an error."""
        data = self._pipe.read(_READ_BYTES)
        if data:
            *lines, self._unread = (self._unread + data).split(b"\n")
            self.told += [Told(*json.loads(line)) for line in lines]
        elif data is not None and self._process.wait() != 0:
            said = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise Unavailable(f"worker {self.rank} ended too early: {said or 'without a word'}")

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Ranks:
    """All ranks of a run; a context manager, which ends them."""

    def __init__(self, order: Order, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self.processes: list[RankProcess] = []

    def start(self) -> None:
        """All of them; returns when all are ready."""
        for rank in range(self._order.slowness.ranks):
            with INTERRUPTS.held():
                self.processes.append(RankProcess(self._order, rank, self._folder))
        until_s = time.monotonic() + READY_DEADLINE_S
        while not all(process.told for process in self.processes):
            if time.monotonic() > until_s:
                raise DeadlineExceeded(f"workers were not ready after {READY_DEADLINE_S:g} s")
            self.listen()

    def run(self, on_news: Callable[[int], None]) -> float:
        """Let all begin, until the first has done its last clock; monotonic seconds of the begin.

        `on_news` is told the number of clocks that all ranks together have done.
        """
        begun_s = time.monotonic()
        for process in self.processes:
            process.go()
        while max(process.told[-1].clock for process in self.processes) < self._order.clocks:
            self.listen()
            on_news(sum(process.told[-1].clock for process in self.processes))
        return begun_s

    def listen(self) -> None:
        """Wait a little for news. Raises what a rank failed with."""
        poll = select.poll()
        by_fd = {process.fileno(): process for process in self.processes}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(LISTEN_S * 1000):
            by_fd[descriptor].read()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        with INTERRUPTS.held():
            for process in self.processes:
                process.end()

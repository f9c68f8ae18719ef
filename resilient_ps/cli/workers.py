"""Worker processes on this machine: started together, listened to, and ended together.

A process that was killed is started again: the new one takes its rank over, and goes on behind the
rank's last clock. What else ends a process too early ends the training.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from resilient_ps.cli.exits import EXIT_BUG, EXIT_SUPERSEDED, EXIT_UNREACHABLE, EXIT_WRONG_CALL
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.plan import TrainPlan
from resilient_ps.cli.worker import GO, Told
from resilient_ps.errors import (
    BadInput,
    Bug,
    DeadlineExceeded,
    FixTheCall,
    Reopen,
    ResilientPsError,
    Unavailable,
)
from resilient_ps.runtime.spawn import spawn

MAX_WORKERS = 64
READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 5.0
LOG_TAIL_BYTES = 2000
RESTARTS = 3  # of one rank
RESTART_FIRST_S = 0.5  # then twice as long each time
_READ_BYTES = 1 << 16
_KINDS: dict[int, type[ResilientPsError]] = {
    EXIT_WRONG_CALL: FixTheCall,
    EXIT_UNREACHABLE: Unavailable,
    EXIT_SUPERSEDED: Reopen,
    EXIT_BUG: Bug,
}


class WorkerKilled(Unavailable):
    """A signal has ended a worker process."""


class WorkerProcess:
    """One rank in a process of its own. Its log goes to a file."""

    def __init__(self, rank: int, command: Sequence[str], log: Path) -> None:
        self.rank = rank
        self.log = log
        self.told: Told | None = None
        self.fresh: list[Told] = []  # not looked at yet
        self.killed = False
        self.released = False  # was `GO` sent?
        self._unread = b""
        self._process = spawn(command, log, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Has it ended well?"""
        return self.told is not None and self.told.state == "done"

    def fileno(self) -> int:
        """For poll."""
        return self._pipe.fileno()

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def read(self) -> None:
        """Take in what it has told. Raises what it failed with."""
        data = self._pipe.read(_READ_BYTES)
        if data:
            *lines, self._unread = (self._unread + data).split(b"\n")
            self.fresh += [Told(**json.loads(line)) for line in lines]
            self.told = self.fresh[-1] if self.fresh else self.told
        elif data is not None and not self.ended:
            raise self._failure()

    def end(self) -> None:
        """Wait for its end, which was asked for; kill it if it takes too long."""
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe.close()

    def _failure(self) -> ResilientPsError:
        try:
            code = self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            return Bug(f"worker {self.rank} closed its output, and lives on")
        said = self._last_words()
        if code < 0:
            name = signal.Signals(-code).name
            self.killed = True
            return WorkerKilled(f"worker {self.rank} was killed ({name}). {said}".strip())
        return _KINDS.get(code, ResilientPsError)(f"worker {self.rank}: {said or f'exit {code}'}")

    def _last_words(self) -> str:
        text = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        before, mark, told = text.rpartition("resilient-ps: ")
        return told if mark and (not before or before.endswith("\n")) else text


class WorkerGroup:
    """All ranks of a job; use it as a context manager. `say` tells people of restarts."""

    def __init__(
        self,
        plan: TrainPlan,
        of: int,
        *,
        etcd: str,
        cluster: str,
        folder: Path,
        deadline_s: float,
        say: Callable[[str], None],
    ) -> None:
        if not 1 <= of <= MAX_WORKERS:
            raise BadInput(f"{of} worker processes: use 1 to {MAX_WORKERS}")
        self.workers: list[WorkerProcess] = []  # by rank: the present process
        self._of = of
        self._folder = folder
        self._say = say
        self._going = False
        self._restarts = [0] * of
        self._due_s: dict[int, float] = {}  # by rank: when to start it again
        program = [sys.executable, "-m", "resilient_ps.cli.main", "train", *plan.flags()]
        where = ["--etcd", etcd, "--cluster", cluster, "--deadline", str(deadline_s)]
        self._command = [*program, *where, "--of", str(of), "--told"]

    def start(self) -> None:
        """Start all processes, and wait until each has loaded its data and opened its tables."""
        for rank in range(self._of):
            with INTERRUPTS.held():
                self.workers.append(self._process(rank))
        until_s = time.monotonic() + READY_DEADLINE_S
        while not all(worker.told for worker in self.workers):
            if time.monotonic() > until_s:
                late = [str(worker.rank) for worker in self.workers if not worker.told]
                raise DeadlineExceeded(
                    f"after {READY_DEADLINE_S:g} s these workers were not ready: {', '.join(late)}"
                )
            self.listen(0.5)

    def go(self) -> None:
        """Let all begin."""
        self._going = True
        for worker in self.workers:
            self._release(worker)

    def listen(self, timeout_s: float) -> None:
        """Wait for news, at most so long. Raises what a worker failed with."""
        now_s = time.monotonic()
        for rank in sorted(rank for rank, due_s in self._due_s.items() if due_s <= now_s):
            self._start_again(rank)
        poll = select.poll()
        by_fd = {w.fileno(): w for w in self.workers if not w.ended and not w.killed}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        until_s = min([now_s + timeout_s, *self._due_s.values()])
        for descriptor, _ in poll.poll(max(0.0, until_s - now_s) * 1000):
            worker = by_fd[descriptor]
            try:
                worker.read()
            except WorkerKilled as error:
                self._on_killed(worker, error)
            self._release(worker)

    @property
    def ended(self) -> bool:
        """Have all ended well?"""
        return all(worker.ended for worker in self.workers)

    def kill(self) -> None:
        """SIGKILL to all; nobody is started again."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)

    def stop(self) -> None:
        """End all that still run."""
        for worker in self.workers:
            if not worker.ended:
                worker.signal(signal.SIGTERM)
        for worker in self.workers:
            worker.end()
        self.workers = []

    def _process(self, rank: int) -> WorkerProcess:
        log = self._folder / f"worker-{rank}-{self._restarts[rank]}.log"
        return WorkerProcess(rank, [*self._command, "--rank", str(rank)], log)

    def _release(self, worker: WorkerProcess) -> None:
        if self._going and worker.told is not None and not worker.released:
            worker.released = True
            worker.signal(GO)

    def _on_killed(self, worker: WorkerProcess, error: WorkerKilled) -> None:
        done = self._restarts[worker.rank]
        if done == RESTARTS:
            raise Unavailable(f"{error} It had been started again {RESTARTS} times before.")
        self._restarts[worker.rank] += 1
        self._due_s[worker.rank] = time.monotonic() + RESTART_FIRST_S * 2**done
        self._say(f"{error} It is started again ({done + 1} of at most {RESTARTS} times).")

    def _start_again(self, rank: int) -> None:
        del self._due_s[rank]
        dead = self.workers[rank]
        with INTERRUPTS.held():
            self.workers[rank] = self._process(rank)
        self.workers[rank].fresh = dead.fresh
        dead.end()

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        with INTERRUPTS.held():
            self.stop()

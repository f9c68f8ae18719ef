"""The processes of a cluster under names that stay: killed, paused, stopped, and started anew.

Every party is in a session of its own, and signals go to all processes of it: a worker may have
begun others. Ctrl-C strikes the main thread between any two steps; therefore processes are started
in a thread that it does not reach (`unbroken`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from resilient_ps.chaos.live.scene import Role, State
from resilient_ps.coordinator.runtime.processes import EtcdProcess
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.server_process import read_ready, tail_of
from resilient_ps.runtime.spawn import spawn
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS

SERVES_DEADLINE_S = 90.0
"""For a party to serve: what it needs at its start, such as etcd, may be struck meanwhile."""
RETRY_PAUSE_S = 0.5
SIGNAL_DEADLINE_S = 5.0
LOOK_S = 1.0  # at etcd, before it is asked again whether a majority runs
_POLL_S = 0.005

T = TypeVar("T")
Environment = Mapping[str, str]
Started = Callable[[str, int], None]
"""Told of each start: name and process id."""


def unbroken(do: Callable[[], T]) -> T:
    """Do it in a thread of its own, and wait: Ctrl-C takes effect when it is done."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


def process_state(pid: int) -> str:
    """As the kernel says: R, S, D run or wait, T is stopped, Z is over; "" when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(") ")[2][:1]


def orphans_of(leader: int) -> list[int]:
    """What is left of the session of a process that is over: its number is nobody else's as long
    as there is any."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":  # state, parent, group, session
                found.append(int(folder.name))
    return [] if leader in found else sorted(found)


class ProcessParty:
    """What all parties share; see `scene.Party`. `_spawn` and `_wait_until_it_serves` differ."""

    role: Role

    def __init__(self, name: str, log: Path, started: Started) -> None:
        self.name = name
        self.log = log
        self.asked_to_end = False
        self.starts = 0
        self._started = started
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int:
        """Of the present process, also of one that is over; 0 before the first."""
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Of the present process; None while it runs. Negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    @property
    def state(self) -> State:
        """What the kernel says of the present process."""
        code = self.exit_code
        if code is not None or self._process is None:
            return "ended" if code == 0 else "dead"
        return "paused" if process_state(self._process.pid) == "T" else "running"

    @property
    def runs(self) -> bool:
        """It is there, paused or not."""
        return self.state in ("running", "paused")

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing starts it again but `restart`."""
        self.asked_to_end = True
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel has stopped it. `Unavailable` if it is over."""
        self._signal(signal.SIGSTOP)
        until_s = time.monotonic() + SIGNAL_DEADLINE_S
        while (state := self.state) != "paused":
            if state != "running" or time.monotonic() > until_s:
                raise Unavailable(f"{self.name} cannot be paused: it is {state}")
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """SIGCONT; no error if it is over."""
        self._signal(signal.SIGCONT)

    def stop(self, deadline_s: float) -> int:
        """SIGTERM, and wait for the end: the exit code. It is killed at the deadline."""
        self.asked_to_end = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        assert self._process is not None, "it was started when it was made known"
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def start(self, environment: Environment | None = None) -> None:
        """Start it once; return when it serves. Raises as `restart` does."""
        with self._starting:
            self._start(environment, SERVES_DEADLINE_S)

    def restart(self, environment: Environment | None = None) -> None:
        """Start it, and again when it ends before it serves, as a supervisor does.

        Returns when it serves. Raises `BadInput` when it runs, and `Unavailable` with the end of
        its log when it does not serve in time.
        """
        until_s = time.monotonic() + SERVES_DEADLINE_S
        with self._starting:
            while True:
                try:
                    self._start(environment, max(until_s - time.monotonic(), 0.1))
                    return
                except Unavailable:
                    gives_up = self._closed or self.asked_to_end or time.monotonic() > until_s
                    if gives_up or self.exit_code is None:
                        raise
                    time.sleep(RETRY_PAUSE_S)

    def adopt(self, process: subprocess.Popen[bytes]) -> None:
        """It has been started elsewhere for the first time."""
        self._process = process
        self.starts = 1
        self._started(self.name, process.pid)

    def close(self) -> None:
        """End it for good, whatever other threads are about. May be called again."""
        self._closed = True
        self.kill()
        with self._starting:  # who was about to start it saw that it is closed, or we see it now
            self.kill()
        self._end_orphans()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    # --

    def _spawn(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _wait_until_it_serves(
        self, process: subprocess.Popen[bytes], deadline_s: float
    ) -> None:  # raises Unavailable
        raise NotImplementedError

    def _start(self, environment: Environment | None, deadline_s: float) -> None:
        if self.runs:
            raise BadInput(f"{self.name} is running: kill or stop it first")
        process = unbroken(lambda: self._launch(environment))
        self._wait_until_it_serves(process, deadline_s)

    def _launch(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        if self._closed:
            raise Unavailable(f"{self.name} is not started any more: the cluster is ending")
        self.starts += 1
        self._mark()
        self._end_orphans()
        before = self._process
        if before is not None and before.stdout is not None:
            before.stdout.close()
        self.asked_to_end = False
        self._process = process = self._spawn(environment)
        self._started(self.name, process.pid)
        return process

    def _end_orphans(self) -> None:
        for pid in orphans_of(self.pid) if self.pid else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _mark(self) -> None:
        """A line in the log, which goes on with what the new process says."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps(
            {"ts": at, "event": "party started", "party": self.name, "n": self.starts}
        )
        with self.log.open("a") as log:
            log.write(f"{line}\n")

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


class ServerParty(ProcessParty):
    """A server: its command prints `ready NAME HOST:PORT` once it serves. `public`: where it is
    dialled."""

    role = "server"

    def __init__(
        self,
        name: str,
        log: Path,
        started: Started,
        command: Sequence[str],
        environment: Environment,
        public: str,
    ) -> None:
        super().__init__(name, log, started)
        self.public = public
        self._command = list(command)
        self._environment = dict(environment)

    def _spawn(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        merged = {**self._environment, **(environment or {})}
        return spawn(self._command, self.log, stdout=subprocess.PIPE, environment=merged)

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        read_ready(process, self.name, self.log, deadline_s)


class WorkerParty(ProcessParty):
    """A worker, of which we know nothing but its command. It may end in order."""

    role = "worker"

    def __init__(
        self,
        name: str,
        log: Path,
        started: Started,
        command: Sequence[str],
        environment: Environment,
    ) -> None:
        super().__init__(name, log, started)
        self._command = list(command)
        self._environment = dict(environment)

    def _spawn(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        return spawn(
            self._command, self.log, environment={**self._environment, **(environment or {})}
        )

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        """It runs: that is all that can be said."""


class EtcdParty(ProcessParty):
    """A member of etcd. Without a majority none of them answers: then a restart does not wait."""

    role = "etcd"

    def __init__(
        self, name: str, log: Path, started: Started, etcd: EtcdProcess, number: int
    ) -> None:
        super().__init__(name, log, started)
        self._etcd = etcd
        self._number = number
        self.adopt(etcd.process(number))

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients, past all proxies."""
        return self._etcd.endpoints[self._number]

    def _spawn(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        return self._etcd.launch(self._number, environment)

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        until_s = time.monotonic() + deadline_s
        while self._majority_runs():
            try:
                self._etcd.wait_ready(self._number, deadline_s=LOOK_S)
                return
            except Unavailable:
                if process.poll() is not None or time.monotonic() > until_s:
                    raise

    def _majority_runs(self) -> bool:
        pids = self._etcd.pids
        running = sum(process_state(pid) not in ("", "T", "Z") for pid in pids)
        return running > len(pids) // 2


class StoreParty(ProcessParty):
    """SeaweedFS, which keeps its data and its ports."""

    role = "store"

    def __init__(self, name: str, log: Path, started: Started, store: SeaweedFS) -> None:
        super().__init__(name, log, started)
        self.store = store
        assert store.process is not None, "it was started when it was made"
        self.adopt(store.process)

    def _spawn(self, environment: Environment | None) -> subprocess.Popen[bytes]:
        return self.store.launch()

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        self.store.wait_until_it_stores()


def end_of(party: ProcessParty) -> str:
    """Why it is over, with the end of its log."""
    return (
        f"{party.name} ended with exit code {party.exit_code}; its log ends: {tail_of(party.log)}"
    )

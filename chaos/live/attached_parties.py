"""Processes of a cluster that somebody else runs: found, paused, ended, and never started by us.

Only the process that was found under its name is ever signalled: a process that was given its
number later is not (`Running`). Who pauses tells the guardian first, a small process that lets the
paused go on should this one be killed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from resilient_ps.chaos.live.programs import guardian
from resilient_ps.chaos.live.running import Running
from resilient_ps.chaos.live.scene import Role, Skipped, State
from resilient_ps.errors import NotFound, RetryLater, Unavailable

END_DEADLINE_S = 10.0
RETURN_DEADLINE_S = 60.0
"""For a supervisor to start again what was ended, and for it to register."""
POLL_S = 0.05
LOOK_EVERY_S = 0.5  # for a successor of a process that is over


class Found(NamedTuple):
    """A process that bears a name at this moment. `process` None: it is not ours to strike.

    `pid` 0: there is none. `why_not`: what keeps us from it.
    """

    process: Running | None = None
    pid: int = 0
    why_not: str = ""


class Guardian:
    """See `programs/guardian.py`. A context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def tell(self, what: str, process: Running) -> None:
        """`paused` or `resumed`. Raises `Unavailable` when it is gone: then nothing is paused."""
        assert self._child.stdin is not None
        try:
            with self._lock:
                self._child.stdin.write(f"{what} {process.pid} {process.began}\n".encode())
                self._child.stdin.flush()
        except OSError as error:
            raise Unavailable(f"the guardian of paused processes has ended: {error}") from error


class AttachedParty:
    """See `scene.Party`. `find` tells which process bears the name now."""

    def __init__(
        self, name: str, role: Role, find: Callable[[], Found], guardian: Guardian
    ) -> None:
        self.name = name
        self.role: Role = role
        self.asked_to_end = False
        self._find = find
        self._guardian = guardian
        self._found = find()
        self._looked_s = time.monotonic()
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Of the process that was found last."""
        return self._found.pid

    @property
    def why_not(self) -> str:
        """What keeps us from striking it; "" when nothing does."""
        return self._found.why_not

    @property
    def state(self) -> State:
        """`dead` until somebody has started another one under its name."""
        process = self._found.process
        if process is None or not process.is_there:
            self._look_again()
            process = self._found.process
        if process is None:
            return "running" if self._found.why_not else "dead"
        if not process.is_there:
            return "dead"
        return "paused" if process.is_paused else "running"

    @property
    def exit_code(self) -> int | None:
        """Of a process that we ended: the signal. Others do not tell us."""
        return self._exit_code

    @property
    def log(self) -> Path:
        """Where its standard error goes, if that is a file."""
        place = Path(f"/proc/{self.pid}/fd/2")
        with contextlib.suppress(OSError):
            if place.is_file():
                return place.resolve()
        return Path("/dev/null")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(self._process(), signal.SIGKILL, END_DEADLINE_S)
        self._exit_code = -signal.SIGKILL

    def stop(self, deadline_s: float) -> int:
        """SIGTERM, and wait for the end; it is killed at the deadline. 0: it ended in time."""
        try:
            self._end(self._process(), signal.SIGTERM, deadline_s)
            self._exit_code = 0
        except Unavailable:
            self.kill()
        return self._exit_code or 0

    def pause(self) -> None:
        """SIGSTOP, and wait until it stands."""
        process = self._process()
        self._guardian.tell("paused", process)
        self._signal(process, signal.SIGSTOP)
        until_s = time.monotonic() + END_DEADLINE_S
        while not process.is_paused:
            if not process.is_there or time.monotonic() > until_s:
                raise Unavailable(f"{self.name} (process {process.pid}) cannot be paused")
            time.sleep(POLL_S)

    def resume(self) -> None:
        """SIGCONT; no error if it is over."""
        process = self._found.process
        if process is None:
            return
        with contextlib.suppress(NotFound):
            process.signal(signal.SIGCONT)
        self._guardian.tell("resumed", process)

    def restart(self, environment: Mapping[str, str] | None = None) -> None:
        """Wait until somebody else has started it again. Raises `Unavailable` when nobody does."""
        until_s = time.monotonic() + RETURN_DEADLINE_S
        while self.state == "dead":
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"{self.name} has not come back within {RETURN_DEADLINE_S:g} s: to start again "
                    "what ends is a supervisor's work (systemd, Kubernetes, ...), or yours"
                )
            time.sleep(POLL_S)

    # --

    def _process(self) -> Running:
        """What may be struck. Raises `Skipped`."""
        process = self._found.process
        if process is None:
            raise Skipped(f"{self.name} is not struck: {self._found.why_not or 'it is over'}")
        return process

    def _end(self, process: Running, number: signal.Signals, deadline_s: float) -> None:
        self.asked_to_end = True
        self._signal(process, number)
        with contextlib.suppress(NotFound):
            process.signal(signal.SIGCONT)
        until_s = time.monotonic() + deadline_s
        while process.is_there:
            if time.monotonic() > until_s:
                raise Unavailable(f"{self.name} (process {process.pid}) does not end")
            time.sleep(POLL_S)

    def _signal(self, process: Running, number: signal.Signals) -> None:
        try:
            process.signal(number)
        except NotFound as error:
            raise Skipped(f"{self.name}: {error}") from error

    def _look_again(self) -> None:
        """For its successor. One that is over stays known until there is one."""
        if time.monotonic() < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        try:
            found = self._find()
        except RetryLater:
            return  # etcd does not say
        if found.process is not None and found.process.is_there:
            self._found, self.asked_to_end, self._exit_code = found, False, None
        elif self._found.process is None:
            self._found = found

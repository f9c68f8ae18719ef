"""Processes of a program of the user's on this machine: started together, and ended together.

What they print is shown as it comes, each line with the number of its process. A process that was
killed is started again, a few times; one that fails ends all.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.output import remark
from resilient_ps.client.connection import RANK_VARIABLE, RANKS_VARIABLE
from resilient_ps.errors import ResilientPsError, Unavailable
from resilient_ps.runtime.spawn import spawn

MAX_PROCESSES = 256
RESTARTS = 3  # of one process
RESTART_FIRST_S = 0.5  # then twice as long each time
LISTEN_S = 0.1
STOP_DEADLINE_S = 5.0
LAST_WORDS_BYTES = 2000
_READ_BYTES = 1 << 16


class ProgramFailed(ResilientPsError):
    """A process has ended with an error."""


class _Lines:
    """Shows what has been written, line by line, behind the number of the process."""

    def __init__(self, number: int, source: IO[bytes], target: IO[str]) -> None:
        self._before = f"{number}: "
        self._source = source
        self._target = target
        self._unread = b""

    def show(self) -> None:
        while data := self._source.read(_READ_BYTES):
            *lines, self._unread = (self._unread + data).split(b"\n")
            self._write(lines)

    def end(self) -> None:
        self.show()
        if self._unread:
            self._write([self._unread])
        self._source.close()

    def _write(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._target.write(f"{self._before}{line.decode(errors='replace')}\n")
        self._target.flush()


class _Process:
    """One process, with a file for its standard error."""

    def __init__(
        self, number: int, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.number = number
        self._log = log
        self.popen = spawn(command, log, stdout=subprocess.PIPE, environment=environment)
        assert self.popen.stdout is not None
        os.set_blocking(self.popen.stdout.fileno(), False)
        self.output = self.popen.stdout
        self._lines = (_Lines(number, self.output, sys.stdout), self._errors(log))

    def _errors(self, log: Path) -> _Lines:
        return _Lines(self.number, log.open("rb"), sys.stderr)

    def show(self) -> None:
        for lines in self._lines:
            lines.show()

    def end(self) -> None:
        """Wait for its end, which was asked for; kill it if it takes too long."""
        try:
            self.popen.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for lines in self._lines:
            lines.end()

    def last_words(self) -> str:
        text = self._log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        return text.rpartition("\n")[2]


class Programs:
    """`count` processes of a command; use it as a context manager."""

    def __init__(
        self, command: Sequence[str], count: int, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.restarts = [0] * count
        self._command = command
        self._environment = {**environment, RANKS_VARIABLE: str(count)}
        self._folder = folder
        self._running: dict[int, _Process] = {}
        self._due_s = dict.fromkeys(range(count), 0.0)  # when to start which

    def run(self) -> None:
        """Until all have ended well. Raises `ProgramFailed` for the first that has not."""
        while self._running or self._due_s:
            self._start_what_is_due()
            self._listen()
            for process in list(self._running.values()):
                if process.popen.poll() is not None:
                    self._look_at_end(process)

    def _start_what_is_due(self) -> None:
        now_s = time.monotonic()
        for number in [number for number, due_s in self._due_s.items() if due_s <= now_s]:
            log = self._folder / f"process-{number}-{self.restarts[number]}.log"
            environment = {**self._environment, RANK_VARIABLE: str(number)}
            with INTERRUPTS.held():
                self._running[number] = _Process(number, self._command, log, environment)
            del self._due_s[number]

    def _listen(self) -> None:
        poll = select.poll()
        for process in self._running.values():
            poll.register(process.output, select.POLLIN)
        poll.poll(LISTEN_S * 1000)
        for process in self._running.values():
            process.show()

    def _look_at_end(self, process: _Process) -> None:
        number, code = process.number, process.popen.returncode
        process.end()
        del self._running[number]
        if code > 0:
            raise ProgramFailed(
                f"process {number} ended with exit code {code}: {process.last_words()}"
            )
        if code < 0:
            self._start_again(number, signal.Signals(-code).name)

    def _start_again(self, number: int, killed_by: str) -> None:
        done = self.restarts[number]
        if done == RESTARTS:
            raise Unavailable(
                f"process {number} was killed ({killed_by}); it had been started again {RESTARTS} "
                "times before"
            )
        self.restarts[number] += 1
        self._due_s[number] = time.monotonic() + RESTART_FIRST_S * 2**done
        remark(
            f"process {number} was killed ({killed_by}): it is started again ({done + 1} of at "
            f"most {RESTARTS} times)"
        )

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        with INTERRUPTS.held():
            for process in self._running.values():
                if process.popen.poll() is None:
                    process.popen.terminate()
            for process in self._running.values():
                process.end()

"""Child processes that never outlive this one, and ports for them.

The kernel can kill a child when its parent dies (`PR_SET_PDEATHSIG`), but takes the death of the
*thread* that started it for that. So all children are started from one thread that lives as long
as the process. The request itself is made by a few lines of Python that then become the program:
code between fork and exec (`preexec_fn`) is not safe in a process with threads.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from resilient_ps.errors import Unavailable

_DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"  # it died before we asked
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class _Spawner:
    """The thread that starts children; it is started with the first one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        done: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

        def job() -> None:
            try:
                done.put(start())
            except Exception as error:
                done.put(error)

        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="spawner", daemon=True)
                self._thread.start()
        self._jobs.put(job)
        result = done.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _serve(self) -> None:
        while True:
            self._jobs.get()()


_SPAWNER = _Spawner()


def spawn(
    command: Sequence[str],
    log: Path | None,
    *,
    stdout: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `command` (an absolute path and arguments). Standard error is appended to `log` (None:
    to that of this process), and standard output too unless `stdout` (as for `Popen`) says
    otherwise. `environment` is set beside what this process has; `pass_fds` stay open in the child.
    The child has a session of its own, so that Ctrl-C in a terminal reaches only this process,
    which then stops it in order.
    """
    wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]

    def start() -> subprocess.Popen[bytes]:
        with os.fdopen(os.dup(2), "ab") if log is None else log.open("ab") as sink:
            return subprocess.Popen(
                wrapper,
                stdin=subprocess.DEVNULL,
                stdout=sink if stdout is None else stdout,
                stderr=sink,
                start_new_session=True,
                pass_fds=pass_fds,
                env=None if environment is None else {**os.environ, **environment},
            )

    try:
        return _SPAWNER.run(start)
    except OSError as error:
        raise Unavailable(f"cannot start {command[0]}: {error}") from error


def free_ports(count: int) -> list[int]:
    """Different loopback ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ReservedPorts:
    """Loopback ports that are nobody else's until `close`, also while nothing listens on them.

    A socket that is bound and does not listen keeps others away, and lets those in that set
    `SO_REUSEADDR`, as servers do; who dials it is refused.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self) -> int:
        """One more."""
        one = socket.socket()
        self._sockets.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

    def close(self) -> None:
        """Give all of them back. May be called again."""
        while self._sockets:
            self._sockets.pop().close()

"""A whole cluster on this machine: a coordination process and some server processes.

For trying things out, for demos and tests. Everything that it makes goes away with it: on leaving
the context, on an exception, on Ctrl-C, at the normal end of this process; and when this process
is killed, so are the others.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from resilient_ps.coordinator.runtime.processes import Coordination, Prefer, start_coordination
from resilient_ps.errors import BadInput
from resilient_ps.runtime.listening import MAX_UNIX_PATH_BYTES
from resilient_ps.runtime.server_process import READY_DEADLINE_S, ServerProcess

MAX_SERVERS = 64
STOP_DEADLINE_S = 10.0
_BEEN_UP: set[tuple[str, ...]] = set()
"""Programs of which a process has been ready: its compiled kernels lie in the cache since then."""
SERVER_PROGRAM = (sys.executable, "-m", "resilient_ps.cli.main", "server")


class LocalCluster:
    """`servers` server processes named s1, s2, ... and their coordination.

    `prefer`: real etcd, the embedded coordination process, or etcd where it is installed.
    `flags`: further flags of every server. `program`: what is run in place of the server command.
    Use it as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        servers: int,
        *,
        cluster: str = "local",
        prefer: Prefer = "auto",
        flags: Sequence[str] = (),
        program: Sequence[str] = SERVER_PROGRAM,
    ) -> None:
        if not 1 <= servers <= MAX_SERVERS:
            raise BadInput(f"a local cluster of {servers} servers: use 1 to {MAX_SERVERS}")
        self.cluster = cluster
        self.servers: list[ServerProcess] = []
        self.folder: Path | None = None
        self._count = servers
        self._prefer = prefer
        self._flags = tuple(flags)
        self._program = tuple(program)
        self._coordination: Coordination | None = None

    @property
    def coordination(self) -> Coordination:
        """The coordination process; its `kind` says whether it is etcd or the embedded one."""
        if self._coordination is None:
            raise BadInput("the local cluster is not running: call start first")
        return self._coordination

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where the coordination listens."""
        return self.coordination.endpoints

    def start(self) -> None:
        """Start all processes and wait until each server serves.

        `Unavailable`, with the end of its log, when one does not; nothing is left running then.
        """
        atexit.register(self.stop)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="resilient-ps-local-"))
            self._coordination = start_coordination(prefer=self._prefer)
            for number in range(1, self._count + 1):
                self.servers.append(self._start_server(f"s{number}"))
                if self._program not in _BEEN_UP:  # let one compile, and the others load
                    self.servers[0].wait_ready(READY_DEADLINE_S)
                    _BEEN_UP.add(self._program)
            for server in self.servers:
                server.wait_ready(READY_DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and remove the folder. May be called again."""
        for server in self.servers:
            server.ask_to_stop()
        for server in self.servers:
            server.wait(STOP_DEADLINE_S)
        if self._coordination is not None:
            self._coordination.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)
        self.servers, self._coordination, self.folder = [], None, None

    def kill(self, index: int) -> None:
        """SIGKILL server `index` (from 0), and wait for its end."""
        self.servers[index].kill()

    def pause(self, index: int) -> None:
        """SIGSTOP server `index`."""
        self.servers[index].pause()

    def resume(self, index: int) -> None:
        self.servers[index].resume()

    def restart(self, index: int) -> None:
        """Start a killed server anew under its name, and wait until it serves."""
        old = self.servers[index]
        if old.is_alive():
            raise BadInput(f"server {old.name} is running: kill it first")
        self.servers[index] = self._start_server(old.name)
        self.servers[index].wait_ready(READY_DEADLINE_S)

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_server(self, name: str) -> ServerProcess:
        assert self.folder is not None
        unix_path = str(self.folder / f"{name}.sock")
        if len(os.fsencode(unix_path)) > MAX_UNIX_PATH_BYTES:
            unix_path = ""  # a very long TMPDIR: TCP does as well
        command = [*self._program, "--name", name, "--cluster", self.cluster]
        command += ["--etcd", ",".join(self.endpoints), "--listen", "127.0.0.1:0"]
        command += ["--initial-servers", str(self._count), "--log-format", "json"]
        command += ["--unix", unix_path] if unix_path else []
        log = self.folder / f"{name}.log"
        return ServerProcess(name, [*command, *self._flags], log, unix_path)

"""A whole cluster on this machine: a coordination process and some server processes.

For trying things out, for demos and tests. Everything that it makes goes away with it: on leaving
the context, on an exception, on Ctrl-C, at the normal end of this process; and when this process
is killed, so are the others.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from resilient_ps.checkpoints.standby import Standby
from resilient_ps.coordinator.placement import MAX_REPLICAS
from resilient_ps.coordinator.runtime.processes import Coordination, Prefer, start_coordination
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.runtime.listening import MAX_UNIX_PATH_BYTES
from resilient_ps.runtime.server_process import READY_DEADLINE_S, ServerProcess

MAX_SERVERS = 64
STOP_DEADLINE_S = 15.0  # for servers to hand over what they serve; then they are killed
REPLICAS = 2
_BEEN_UP: set[tuple[str, ...]] = set()
"""Programs of which a process has been ready: its compiled kernels lie in the cache since then."""
SERVER_PROGRAM = (sys.executable, "-m", "resilient_ps.cli.main", "server")


class LocalCluster:
    """`servers` server processes named s1, s2, ... and their coordination.

    `replicas`: how many servers hold each shard, as far as there are so many. `min_in_sync`: how
    many must hold a write before it is acknowledged. `prefer`: real etcd, the embedded coordination
    process, or etcd where it is installed; `coordinate` starts another one. `standby`: where and
    when checkpoints are made, and which one the cluster begins with. `flags`: further flags of
    every server; `flags_of`: of single ones, by name. `program`: what is run in place of the server
    command. Use it as a context manager, or call `start` and `stop`.

    Single servers are named in `kill`, `pause`, `resume`, `stop_server` and `restart`.
    """

    def __init__(
        self,
        servers: int,
        *,
        replicas: int = REPLICAS,
        min_in_sync: int = 1,
        cluster: str = "local",
        prefer: Prefer = "auto",
        coordinate: Callable[[], Coordination] | None = None,
        standby: Standby | None = None,
        flags: Sequence[str] = (),
        flags_of: Mapping[str, Sequence[str]] | None = None,
        program: Sequence[str] = SERVER_PROGRAM,
    ) -> None:
        if not 1 <= servers <= MAX_SERVERS:
            raise BadInput(f"a local cluster of {servers} servers: use 1 to {MAX_SERVERS}")
        check_replicas(replicas, min_in_sync)
        if min_in_sync > servers:
            raise BadInput(
                f"--min-in-sync {min_in_sync} with --servers {servers}: use at most {servers}, or "
                "more servers"
            )
        self.cluster = cluster
        self.servers: list[ServerProcess] = []
        self.folder: Path | None = None
        self._count = servers
        self._coordinate = coordinate or partial(start_coordination, prefer)
        self._flags = ("--replicas", str(replicas), "--min-in-sync", str(min_in_sync), *flags)
        if standby is not None and standby.store:
            self._flags = (*self._flags, *standby.flags())
        self._flags_of = dict(flags_of or {})
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
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="resilient-ps-local-"))
            self._coordination = self._coordinate()
            atexit.register(self.stop)  # after the coordination's own: so it runs before that
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
        until_s = time.monotonic() + STOP_DEADLINE_S
        for server in self.servers:
            server.wait(max(until_s - time.monotonic(), 0))
        if self._coordination is not None:
            self._coordination.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)
        self.servers, self._coordination, self.folder = [], None, None

    def server(self, name: str) -> ServerProcess:
        """The process that has this name now. Raises `NotFound`."""
        for server in self.servers:
            if server.name == name:
                return server
        names = ", ".join(server.name for server in self.servers) or "none, it is not running"
        raise NotFound(f"no server {name!r} in this cluster; there are {names}")

    def kill(self, name: str) -> None:
        """SIGKILL a server, and wait for its end."""
        self.server(name).kill()

    def kill_all(self) -> None:
        """SIGKILL all servers and the coordination: nothing of the cluster's memory is left."""
        for server in self.servers:  # all of them before one is waited for
            if server.is_alive():
                os.kill(server.pid, signal.SIGKILL)
        for server in self.servers:
            server.kill()
        for member in range(len(self.coordination.pids)):
            self.coordination.kill(member)

    def pause(self, name: str) -> None:
        """SIGSTOP a server: it hangs, its connections stay open."""
        self.server(name).pause()

    def resume(self, name: str) -> None:
        """SIGCONT a paused server."""
        self.server(name).resume()

    def stop_server(self, name: str, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM a server; its exit code when it has ended. It is killed at the deadline."""
        server = self.server(name)
        server.ask_to_stop()
        return server.wait(deadline_s)

    def restart(self, name: str, *, wait_ready: bool = True) -> None:
        """Start an ended server anew under its name, with empty memory; wait until it serves."""
        old = self.server(name)
        if old.is_alive():
            raise BadInput(f"server {old.name} is running: kill or stop it first")
        new = self._start_server(old.name)
        self.servers[self.servers.index(old)] = new
        if wait_ready:
            new.wait_ready(READY_DEADLINE_S)

    def dead(self) -> list[ServerProcess]:
        """Servers that have ended though nobody asked them to."""
        return [each for each in self.servers if not each.is_asked_to_end and not each.is_alive()]

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
        command += [*self._flags, *self._flags_of.get(name, ())]
        return ServerProcess(name, command, log, unix_path)


def check_replicas(replicas: int, min_in_sync: int) -> None:
    """Raises `BadInput` for what no cluster can keep."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadInput(f"--replicas {replicas}: use 1 to {MAX_REPLICAS}")
    if not 1 <= min_in_sync <= replicas:
        raise BadInput(
            f"--min-in-sync {min_in_sync} with --replicas {replicas}: use 1 to {replicas}, because "
            "no shard ever has more than its replicas in sync"
        )

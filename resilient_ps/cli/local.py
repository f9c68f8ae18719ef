"""`resilient-ps local`: a whole cluster on this machine, in the foreground."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.standby import Standby
from resilient_ps.cli.exits import EXIT_UNREACHABLE
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.options import (
    Coordination,
    CoordinationOption,
    JsonOption,
    MinInSyncOption,
    ReplicasOption,
    ServersOption,
    print_json,
)
from resilient_ps.cli.output import remark, shout
from resilient_ps.cli.progress import Watcher
from resilient_ps.cli.storing import with_standby
from resilient_ps.engine import ENGINE
from resilient_ps.runtime.local import REPLICAS, LocalCluster
from resilient_ps.tables.warm_up import warm_up

POLL_S = 0.2
IN_MEMORY = (
    "EMBEDDED COORDINATION: no etcd is used. The coordination state is in the memory of one "
    "process on this machine, is not replicated, and is lost when that process ends. "
    "To keep anything, install etcd (on Debian: apt-get install etcd-server)."
)


@with_standby()
def local(
    *,
    servers: ServersOption = 3,
    coordination: CoordinationOption = Coordination.AUTO,
    cluster: Annotated[str, typer.Option("--cluster", help="Name of the cluster.")] = "local",
    shards: Annotated[
        int, typer.Option(min=0, max=1024, help="Number of shards; 0: 4 per server.")
    ] = 0,
    replicas: ReplicasOption = REPLICAS,
    min_in_sync: MinInSyncOption = 1,
    standby: Standby,
    json: JsonOption = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C, and say how to connect to it.

    Everything is on loopback ports, and in a temporary folder that is removed at the end. Servers
    and coordination end with this command, however it ends. With --store, checkpoints stay there,
    and the next cluster of this name begins with the newest one.

    \b
    Examples:
        resilient-ps local
        resilient-ps local --servers 2 --coordination embedded
        resilient-ps local --servers 3 --replicas 3 --min-in-sync 2
        resilient-ps local --store ./checkpoints --checkpoint-every-s 60
        resilient-ps local --json      # then read one line of JSON, and work
    """
    processes = LocalCluster(
        servers,
        replicas=replicas,
        min_in_sync=min_in_sync,
        cluster=cluster,
        prefer=coordination.value,
        standby=standby,
        flags=["--shards", str(shards)],
    )
    load_kernels(Watcher())
    with running(processes):
        try:
            if json:
                print_json(_as_json(processes))
            else:
                _introduce(processes)
            _watch(processes)
        except KeyboardInterrupt:
            remark("stopping")


def load_kernels(watcher: Watcher) -> None:
    """Compile them before several servers do so at once: the first time takes up to a minute."""
    with watcher.stage("loading kernels (the first time on a machine, compiling them)") as stage:
        warmed = warm_up()
        stage.done = (
            f"{ENGINE} kernels are ready: {warmed.compiled} compiled, {warmed.loaded} loaded"
        )
        if ENGINE == "native":
            stage.done = "native kernels are ready"


@contextmanager
def running(processes: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, started; at the end nothing of it is left, whenever Ctrl-C comes."""
    try:
        with INTERRUPTS.held():
            processes.start()
        yield processes
    finally:
        with INTERRUPTS.held():
            processes.stop()


@contextmanager
def cluster_for(servers: int, cluster: str, etcd: str, standby: Standby) -> Iterator[str]:
    """Endpoints of the coordination: as told, or of a cluster of our own."""
    if not servers:
        yield etcd
        return
    processes = LocalCluster(servers, cluster=cluster, standby=standby)
    watcher = Watcher()
    load_kernels(watcher)
    with ExitStack() as stack:
        with watcher.stage(f"starting {servers} servers") as stage:
            stack.enter_context(running(processes))
            stage.done = f"{servers} servers are up, coordination: {processes.coordination.kind}"
        yield ",".join(processes.endpoints)


def _as_json(processes: LocalCluster) -> dict[str, Any]:
    return {
        "cluster": processes.cluster,
        "etcd": ",".join(processes.endpoints),
        "coordination": processes.coordination.kind,
        "servers": [
            {"server": s.name, "address": str(s.address), "pid": s.pid, "log": str(s.log)}
            for s in processes.servers
        ],
    }


def _introduce(processes: LocalCluster) -> None:
    etcd, name = ",".join(processes.endpoints), processes.cluster
    kind = processes.coordination.kind
    if kind == "embedded":
        shout(IN_MEMORY)
    print(f"cluster {name!r} is running: {len(processes.servers)} servers, coordination {kind}")
    for server in processes.servers:
        print(f"  {server.name}  {server.address}  pid {server.pid}  log {server.log}")
    print("connect with")
    print(f"  shell   resilient-ps status --etcd {etcd} --cluster {name}")
    print(f'  python  client = resilient_ps.connect("{etcd}", cluster="{name}")', flush=True)
    remark("Ctrl-C ends it")


def _watch(processes: LocalCluster) -> None:
    """Until Ctrl-C; says so when a server dies, and ends when none is left."""
    gone: set[str] = set()
    while len(gone) < len(processes.servers):
        time.sleep(POLL_S)
        for server in processes.dead():
            if server.name not in gone:
                gone.add(server.name)
                shout(f"server {server.name} has ended (exit code {server.wait()}): {server.log}")
                remark(server.log_tail())
    shout("no server is left")
    raise typer.Exit(EXIT_UNREACHABLE)

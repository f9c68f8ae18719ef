"""`resilient-ps server`: one server process of a cluster."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from resilient_ps import __version__
from resilient_ps.checkpoints.bootstrap import RestoreWish
from resilient_ps.checkpoints.standby import Standby
from resilient_ps.cli.options import (
    ClusterOption,
    EtcdOption,
    LogFormatOption,
    LogLevelOption,
    MinInSyncOption,
    ReplicasOption,
)
from resilient_ps.cli.storing import MetricsOption, check_store, store_options, with_standby
from resilient_ps.cli.unsafe import HiddenUnsafeOption, disabled
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.placement import MAX_SHARDS
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.engine import ENGINE
from resilient_ps.guards import without
from resilient_ps.node import Node, NodeSettings, build_node
from resilient_ps.runtime.addresses import Address, parse_address
from resilient_ps.runtime.blob_bridge import BLOB_THREADS
from resilient_ps.runtime.host import Host
from resilient_ps.runtime.listening import listen_on
from resilient_ps.runtime.local import REPLICAS, check_replicas
from resilient_ps.runtime.logs import Logger, route_logging
from resilient_ps.runtime.malloc import keep_freed_memory
from resilient_ps.runtime.parallel import Cores
from resilient_ps.storage.runtime.open import OpenedStore, open_store
from resilient_ps.tables.warm_up import warm_up

ETCD_DEADLINE_S = 3.0
PROCESS_BITS = 62  # of the random number that names a process


class NodeDirectory:
    """Finds servers in the view of the node itself."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def address_of(self, server: str) -> Address | None:
        """Where the node believes the server to be."""
        found = self._node.address_of(server)
        if found is None:
            return None
        unix_path = found.unix_path if found.hostname == socket.gethostname() else ""
        return Address(found.host, found.port, unix_path)


@with_standby()
def server(
    *,
    cluster: ClusterOption = "default",
    etcd: EtcdOption = "127.0.0.1:2379",
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to listen on; port 0 takes any free one.")
    ] = "127.0.0.1:7070",
    advertise: Annotated[
        str, typer.Option(help="HOST:PORT that others connect to; default: as --listen.")
    ] = "",
    unix: Annotated[
        str, typer.Option(help="Path of a Unix socket for clients on this machine.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of this server in the cluster; default: host and port.")
    ] = "",
    zone: Annotated[str, typer.Option(help="Failure zone, such as a rack.")] = "",
    weight: Annotated[float, typer.Option(help="Share of the shards, relative to others.")] = 1.0,
    initial_servers: Annotated[
        int, typer.Option(min=1, help="A new cluster begins when so many servers are there.")
    ] = 1,
    shards: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_SHARDS,
            help="Shards of a new cluster, fixed for ever; 0: 4 per initial server.",
        ),
    ] = 0,
    replicas: ReplicasOption = REPLICAS,
    min_in_sync: MinInSyncOption = 1,
    lease_ttl: Annotated[
        int,
        typer.Option(min=1, help="Seconds without a sign of life after which a server is gone."),
    ] = 5,
    grace: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds that a server may be gone before others take copies in its place.",
        ),
    ] = 60.0,
    standby: Standby,
    metrics: MetricsOption = "",
    log_format: LogFormatOption = "auto",
    log_level: LogLevelOption = "info",
    unsafe_disable: HiddenUnsafeOption = [],  # noqa: B006 (typer copies it)
) -> None:
    """Serve shards of a cluster, until SIGTERM or Ctrl-C.

    Prints `ready NAME HOST:PORT` on standard output once it accepts connections; its log says
    when it is registered in the cluster. SIGTERM or Ctrl-C: it hands its shards over to other
    servers first; a second one ends it at once. The number of shards, of their replicas and of
    those that must be in sync are fixed by the first server of a new cluster.

    With --store, checkpoints are made while training goes on, and a new cluster begins with the
    newest one. Give all servers the same options on them: any of them may be the coordinator.
    Credentials come from where the AWS tools look for them (AWS_ACCESS_KEY_ID and so on).

    \b
    Examples:
        resilient-ps server --cluster ctr --etcd 10.0.0.1:2379,10.0.0.2:2379 \\
            --listen 0.0.0.0:7070 --advertise 10.0.0.7:7070 --zone rack-3
        resilient-ps server --cluster ctr --store s3://backups/training \\
            --checkpoint-every-s 300 --keep-last 5 --metrics 127.0.0.1:9464
        resilient-ps server --listen 127.0.0.1:0 --initial-servers 2
    """
    check_replicas(replicas, min_in_sync)
    unsafe = disabled(unsafe_disable)
    keep_freed_memory()
    log = Logger(format=log_format, level=log_level)
    listening = listen_on(listen, unix or None)
    address = listening.address
    public = parse_address(advertise, "--advertise") if advertise else address
    name = name or f"{socket.gethostname()}:{public.port}"
    log = log.bind(server=name)
    route_logging(log)
    record = ServerRecord(
        server=name,
        process=secrets.randbits(PROCESS_BITS) | 1 << PROCESS_BITS,
        host=public.host,
        port=public.port or address.port,
        unix_path=str(Path(unix).absolute()) if unix else "",
        zone=zone,
        weight=weight,
        lease=0,
        version=__version__,
        pid=os.getpid(),
        hostname=socket.gethostname(),
    )
    record.to_bytes()  # refuses wrong flags now, with their names
    wishes = ClusterWishes(
        initial_servers=initial_servers,
        shards=shards,
        replicas=replicas,
        min_in_sync=min_in_sync,
        grace_s=grace,
    )
    cores = Cores()
    settings = NodeSettings(
        cluster,
        record,
        lease_ttl,
        wishes,
        checkpoints=standby.settings if standby.store else None,
        restore=RestoreWish(standby.restore, standby.from_cluster),
        loss_grace_s=standby.settings.loss_grace_s,
        guards=without(unsafe),
        unsafe=unsafe,
    )
    node = build_node(settings, secrets.randbits, cores, _wall_s)
    kv = EtcdKv(etcd)
    with ExitStack() as stack:
        stack.callback(listening.close)
        stack.callback(kv.close)
        store = _open_store(standby, stack)  # a wrong URL is told before etcd is asked
        found = kv.read(ClusterKeys(cluster).config, deadline_s=ETCD_DEADLINE_S)
        if store is not None:
            check_store(standby.store, cluster, log, is_new=not found.items)
        _load_kernels(log)
        host = Host(
            node,
            listening=listening,
            kv=kv,
            blobs=store,
            blob_threads=_blob_threads(standby),
            directory=NodeDirectory(node),
            hello=node.hello,
            log=log,
            ready=lambda: _say_ready(name, address, log),
        )
        if metrics:
            from resilient_ps.runtime.metrics import MetricsEndpoint, Source  # few servers need it

            figures: list[Source] = [node.namespace_figures]
            figures += [] if store is None else [store.metrics.figures]
            if node.conductor is not None:
                figures.append(node.conductor.figures)
            endpoint = stack.enter_context(MetricsEndpoint(metrics, figures))
            log.info("metrics", address=endpoint.address)
        code = host.run()
    if code:
        raise typer.Exit(code)


def _wall_s() -> int:
    """For people and retention; nothing that has to be right depends on it."""
    return int(time.time())


def _open_store(standby: Standby, stack: ExitStack) -> OpenedStore | None:
    """The store, with a connection for each of the host's threads."""
    if not standby.store:
        return None
    options = store_options(standby.store, concurrency=_blob_threads(standby))
    store = open_store(standby.store.url, options, apart=True)
    stack.callback(store.close)
    return store


def _blob_threads(standby: Standby) -> int:
    """As many as objects may be in flight; reads need some too."""
    return max(BLOB_THREADS, standby.settings.upload_concurrency)


def _load_kernels(log: Logger) -> None:
    started = time.monotonic()
    warmed = warm_up()
    log.info(
        "kernels ready",
        engine=ENGINE,
        kernels=warmed.kernels,
        compiled=warmed.compiled,
        seconds=round(time.monotonic() - started, 2),
    )


def _say_ready(name: str, address: Address, log: Logger) -> None:
    try:
        print(f"ready {name} {address}", flush=True)
    except OSError as error:  # a full disk or a closed pipe is no reason not to serve
        log.warning("ready line not written", error=str(error))

"""A single-node coordination process for machines without etcd: etcd's API over a model in memory.

    python -m resilient_ps.coordinator.runtime.embedded --listen 127.0.0.1:2379

For local clusters, demonstrations and tests. It keeps nothing on disk: when it ends, the cluster's
coordination state is gone. When it listens it prints `listening on HOST:PORT` to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Sequence

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.endpoints import parse_address
from resilient_ps.coordinator.runtime.servicers import (
    MAX_REQUEST_BYTES,
    KvServicer,
    LeaseServicer,
    MaintenanceServicer,
    Store,
)
from resilient_ps.coordinator.runtime.watch_servicer import WatchServicer
from resilient_ps.errors import BadInput, ResilientPsError, Unavailable

VERSION = "3.4.0"
"""The version of etcd's API whose subset is served (clients look at it)."""
MAX_CALLS = 4_096
STOP_GRACE_S = 0.5
EXIT_BAD_INPUT = 2
EXIT_UNAVAILABLE = 3

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else two processes share a port and each gets half of the calls
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


async def serve(listen: str) -> None:
    """Serves until SIGTERM or SIGINT. `Unavailable` when the address cannot be used."""
    model = MemoryKv(
        # Random, so that a client notices a restart, and no lease of before is taken for a new one.
        cluster_id=secrets.randbelow(2**62) + 1,
        first_lease=secrets.randbelow(2**61) + 1,
    )
    store = Store(model)
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    rpc.add_KVServicer_to_server(KvServicer(store), server)
    rpc.add_LeaseServicer_to_server(LeaseServicer(store), server)
    rpc.add_WatchServicer_to_server(WatchServicer(store), server)
    rpc.add_MaintenanceServicer_to_server(MaintenanceServicer(store, VERSION), server)
    address = parse_address(listen, lowest_port=0)
    port = _bind(server, address)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    expiry = asyncio.create_task(store.expire_for_ever())
    print(
        "embedded coordination process: one node, state in memory only, lost when it ends; "
        "use etcd where it must survive",
        file=sys.stderr,
        flush=True,
    )
    print(f"listening on {address.rpartition(':')[0]}:{port}", flush=True)
    await stopping.wait()
    expiry.cancel()
    store.close()
    await server.stop(STOP_GRACE_S)


def _bind(server: grpc.aio.Server, address: str) -> int:
    try:
        port = int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise _cannot_listen(address, error) from error
    if not port:
        raise _cannot_listen(address, "no reason given")
    return port


def _cannot_listen(address: str, reason: object) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: {reason}; the port may be in use: choose another, or 0"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m resilient_ps.coordinator.runtime.embedded",
        description="Single-node coordination process with etcd's API. State in memory only.",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:2379", metavar="HOST:PORT", help="port 0: any free one"
    )
    options = parser.parse_args(arguments)
    try:
        asyncio.run(serve(options.listen))
    except ResilientPsError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_UNAVAILABLE
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

"""What the commands of `ns` are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from resilient_ps.cli.options import Where
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.runtime.etcd import EtcdKv

NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Name of the namespace, as in ctr/emb.")
]
GraphArgument = Annotated[str, typer.Argument(metavar="GRAPH", help="Name of the graph of tasks.")]


@contextmanager
def opened(where: Where) -> Iterator[tuple[EtcdKv, ClusterKeys]]:
    """etcd, and the cluster's keys."""
    keys = ClusterKeys(where.cluster)
    kv = EtcdKv(where.etcd)
    try:
        yield kv, keys
    finally:
        kv.close()

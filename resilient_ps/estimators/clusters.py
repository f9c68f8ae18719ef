"""Where estimators train: a cluster that somebody runs, or one of this process's own.

The own one (one server, no replica) is started by the first fit that has no other, serves all of
this process's fits, one after the other, and ends with the process.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from resilient_ps.client.connection import DEFAULT_CLUSTER
from resilient_ps.client.launch import RunningCluster
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import LocalCluster

OWN = "estimators"


@dataclass(frozen=True, slots=True)
class Place:
    """Endpoints of etcd, a cluster's name, and the name that a fit's job and tables get."""

    etcd: str
    cluster: str
    name: str


class _OwnCluster:
    """This process's cluster; started when it is first needed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._processes: LocalCluster | None = None
        self._pid = 0

    def started(self) -> RunningCluster:
        """Running; anew after a fork, and where one of its processes has died."""
        processes = self._processes
        if processes is not None and self._pid == os.getpid() and not processes.dead():
            return RunningCluster(processes)
        if processes is not None and self._pid == os.getpid():
            processes.stop()
        self._pid = os.getpid()
        self._processes = processes = LocalCluster(1, replicas=1, cluster=OWN)
        processes.start()
        running = RunningCluster(processes)
        running.connect().close()  # waits until all shards are served
        return running

    def stop(self) -> None:
        """End it; the next fit starts another one."""
        with self.lock:
            if self._processes is not None and self._pid == os.getpid():
                self._processes.stop()
            self._processes = None


_OWN_CLUSTER = _OwnCluster()


def stop_own_cluster() -> None:
    """End this process's cluster of estimators, if there is one, before the process ends."""
    _OWN_CLUSTER.stop()


@contextmanager
def place_of(cluster: str | None, name: str | None) -> Iterator[Place]:
    """Where to train. `cluster`: "HOST:PORT[,HOST:PORT...]/NAME", the endpoints of its etcd and its
    name ("default" where there is none); None: the own one, which is held meanwhile.

    Raises `BadInput` for other texts.
    """
    if cluster is None:
        with _OWN_CLUSTER.lock:
            running = _OWN_CLUSTER.started()
            yield Place(running.etcd, running.name, name or "fit")
        return
    if not isinstance(cluster, str) or not cluster.partition("/")[0]:
        raise BadInput(f"cluster={cluster!r}: give 'HOST:PORT/NAME' of etcd and cluster, or None")
    etcd, _, named = cluster.partition("/")
    yield Place(etcd, named or DEFAULT_CLUSTER, name or f"fit-{uuid.uuid4().hex[:12]}")

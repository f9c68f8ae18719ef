"""A holder of tasks is alive: its key in etcd, under a lease that a thread of its own keeps.

While the key is there, what was granted to the holder is its own. When the process ends, hangs as a
whole or cannot reach etcd for longer than the lease, the key goes, and its task is granted to
somebody else; what it writes after that is refused. A process that comes back registers again,
under the same name.

The thread does nothing but wait and ask etcd, so it needs the interpreter for some microseconds
every quarter of the lease. A program that calls native code which keeps the interpreter for itself
for longer than that needs a longer lease.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import DEFAULT_DEADLINE_S, Compare, Kv, Put, Txn
from resilient_ps.coordinator.task_records import HolderRecord
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, RetryLater

LEASE_TTL_S = 10
LEASE_LEAST_S = 1
LEASE_MOST_S = 3_600
BEATS_PER_LEASE = 4
STOP_S = 0.5  # how long `stop` waits for the thread
AGAIN_S = 0.2  # between two attempts to register


def holder_name() -> str:
    """A name that no other process has, now or later."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


class Holding:
    """The registration of one process as a holder of a graph's tasks."""

    def __init__(self, kv: Kv, keys: ClusterKeys, graph: str, ttl_s: int = LEASE_TTL_S) -> None:
        if not isinstance(ttl_s, int) or not LEASE_LEAST_S <= ttl_s <= LEASE_MOST_S:
            raise BadInput(
                f"lease_ttl_s={ttl_s!r}: whole seconds from {LEASE_LEAST_S} to {LEASE_MOST_S}"
            )
        self.name = holder_name()
        self._kv = kv
        self._ttl_s = ttl_s
        self._call_s = ttl_s / BEATS_PER_LEASE
        self._graph_key = keys.graph(graph)
        self._key = keys.holder(graph, self.name)
        self._record = HolderRecord(os.uname().nodename, os.getpid()).to_bytes()
        self._graph = graph
        self._lease = 0
        self._stopped = threading.Event()
        name = f"holder of {graph}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Register, and keep it so. Raises `NotFound` where the graph is gone, `RetryLater`.

        Where it is not known whether it was done (etcd has lost its leader), it is done again.
        """
        until_s = time.monotonic() + deadline_s
        while True:
            left_s = until_s - time.monotonic()
            try:
                self._register(left_s)
                break
            except RetryLater:
                if time.monotonic() + AGAIN_S >= until_s:
                    raise
            self._stopped.wait(AGAIN_S)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Give everything back, soon."""
        self._stopped.set()

    def stop(self) -> None:
        """Give everything back at once, where etcd can be reached."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _register(self, deadline_s: float) -> None:
        lease = self._kv.grant(self._ttl_s, deadline_s=deadline_s).lease
        there = Compare(self._graph_key, "version", ">", 0)
        put = Put(self._key, self._record, lease)
        if not self._kv.txn(Txn((there,), (put,)), deadline_s=deadline_s).succeeded:
            raise NotFound(f"graph {self._graph!r} was removed")
        self._lease = lease

    def _run(self) -> None:
        pause_s = self._call_s
        while not self._stopped.wait(pause_s):
            pause_s = self._beat()
        self._leave()

    def _beat(self) -> float:
        """Seconds until the next one."""
        try:
            if not self._kv.refresh(self._lease, deadline_s=self._call_s):
                self._register(self._call_s)
        except RetryLater:
            return self._call_s / BEATS_PER_LEASE  # of the lease there is something left
        except ResilientPsError:
            pass  # no graph any more, or another etcd: who asks for a task is told so
        return self._call_s

    def _leave(self) -> None:
        with suppress(ResilientPsError):  # then it ends by itself
            self._kv.revoke(self._lease, deadline_s=STOP_S)

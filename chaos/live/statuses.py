"""What servers say of themselves during a run, and of what they hold when it is over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import TracebackType
from typing import Any, Self

from resilient_ps.chaos.checkers.replicas import ReplicaState, check_replicas
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.client.inspect import ASKED_AT_ONCE, ServerProbe
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.digests import QUESTION
from resilient_ps.errors import ResilientPsError, Unavailable
from resilient_ps.routing import address_of

EVERY_S = 2.0
ASK_DEADLINE_S = 1.0
DIGESTS_DEADLINE_S = 60.0
REST_POLL_S = 0.3


class CopiedBytes:
    """Asks all servers now and then how much they have copied: a killed one takes it along.

    A context, with a thread. `servers` tells who is there now.
    """

    def __init__(self, cluster: str, servers: Callable[[], list[ServerRecord]]) -> None:
        self._cluster = cluster
        self._servers = servers
        self._copied: dict[tuple[str, int], int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def total(self) -> int:
        """Of all processes that there were: at least so many."""
        return sum(list(self._copied.values()))

    def ask(self) -> None:
        """Ask now."""
        for record, told in _ask_all(self._cluster, self._servers(), "status", ASK_DEADLINE_S):
            if isinstance(told, dict):
                key = record.server, int(told["process"])
                self._copied[key] = max(self._copied.get(key, 0), int(told["copied_bytes"]))

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.ask()


def replicas_verdict(cluster: str, look: Callable[[], ClusterView], deadline_s: float) -> Verdict:
    """Are the in-sync replicas of each shard identical? Waits until all have come to rest."""
    until_s = time.monotonic() + deadline_s
    while True:
        try:
            verdict = check_replicas(_states(cluster, look()))
        except ResilientPsError as error:
            verdict = Verdict("unknown", (str(error),))
        if verdict.outcome != "unknown" or time.monotonic() > until_s:
            return verdict
        time.sleep(REST_POLL_S)


def _states(cluster: str, view: ClusterView) -> list[ReplicaState]:
    in_sync = {(r.shard, member) for r in view.shards for member in r.in_sync}
    states: list[ReplicaState] = []
    for record, told in _ask_all(cluster, view.servers, QUESTION, DIGESTS_DEADLINE_S):
        if not isinstance(told, dict):
            raise Unavailable(f"server {record.server} does not tell what it holds: {told}")
        states += [
            ReplicaState(int(r["shard"]), record.server, int(r["lsn"]), str(r["digest"]))
            for r in told["replicas"]
            if (int(r["shard"]), (record.server, record.process)) in in_sync
        ]
    return states


def _ask_all(
    cluster: str, servers: list[ServerRecord], what: str, deadline_s: float
) -> list[tuple[ServerRecord, Any]]:
    """What each server answers, or the error for which it does not."""

    def ask(record: ServerRecord) -> tuple[ServerRecord, Any]:
        with closing(ServerProbe(cluster, record.server, address_of(record))) as probe:
            try:
                return record, probe.ask(deadline_s, what)
            except (ResilientPsError, json.JSONDecodeError) as error:
                return record, error

    if not servers:
        return []
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(servers))) as threads:
        return list(threads.map(ask, servers))

"""How much a cluster is written to by its users, as its servers tell: for steady states.

What is counted are entries of the shards' logs, without those of our own probe. A server that does
not answer is asked again later; meanwhile its shards count as they were.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import Any, Self

from resilient_ps.chaos.live.workload import Progress
from resilient_ps.client.inspect import ServerProbe, ask_all
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.routing import address_of

NAME = "attached"
EVERY_S = 1.0
ASK_DEADLINE_S = 0.5
LOOKS_MOST = 3_600


class Writes:
    """A context, with a thread. `servers`: those that live; `own`: pushes of our own so far,
    acknowledged and unanswered."""

    def __init__(
        self,
        cluster: str,
        servers: Callable[[], list[ServerRecord]],
        own: Callable[[], tuple[int, int]],
    ) -> None:
        self._cluster = cluster
        self._servers = servers
        self._own = own
        self._lsns: dict[int, int] = {}
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_MOST)
        self._told = 0
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

    def per_s(self, window_s: float) -> float | None:
        """Over the last so many seconds; None while there are not so many."""
        looks = list(self._looks)
        if not looks:
            return None
        last_s, last = looks[-1]
        for at_s, count in reversed(looks):
            if last_s - at_s >= window_s:
                return max(0.0, (last - count) / (last_s - at_s))
        return None

    # -- as a run wants to know it of a workload

    @property
    def name(self) -> str:
        return NAME

    def progress(self) -> Progress:
        """Since it was last asked for."""
        total = self._looks[-1][1] if self._looks else 0
        before, self._told = self._told, max(self._told, total)
        return Progress(pushes=max(0, total - before))

    def counts(self) -> tuple[int, int, int, int]:
        """Of our own pushes: nobody tells how many of the users' are acknowledged."""
        acked, doubtful = self._own()
        return acked, 0, doubtful, 0

    def metrics(self) -> dict[str, float]:
        """Over all the time."""
        looks = list(self._looks)
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return {}
        rate = (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
        return {"writes of others a second": round(rate, 1)}

    # --

    def _run(self) -> None:
        while True:
            self._look()
            if self._ending.wait(EVERY_S):
                return

    def _look(self) -> None:
        probes = [ServerProbe(self._cluster, r.server, address_of(r)) for r in self._servers()]
        try:
            told = ask_all(probes, ASK_DEADLINE_S)
        finally:
            for probe in probes:
                with closing(probe):
                    pass
        if not any(isinstance(each, dict) for each in told.values()):
            return
        for each in told.values():
            if isinstance(each, dict):
                self._take(each)
        total = sum(self._lsns.values()) - self._own()[0]
        self._looks.append((time.monotonic(), max(0, total)))

    def _take(self, told: dict[str, Any]) -> None:
        for shard in told.get("shards", ()):
            number, lsn = int(shard["shard"]), int(shard["lsn"])
            self._lsns[number] = max(lsn, self._lsns.get(number, 0))

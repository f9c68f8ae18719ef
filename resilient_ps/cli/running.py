"""A group of workers in training: watched until all of them are done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilient_ps.cli.progress import Training, Watcher
from resilient_ps.cli.worker import Told
from resilient_ps.cli.workers import WorkerGroup
from resilient_ps.client.connection import Client
from resilient_ps.client.inspect import ServerProbe, ask_all

LISTEN_S = 0.1
ASK_SERVERS_EVERY_S = 1.0
ASK_DEADLINE_S = 0.5


@dataclass(frozen=True, slots=True)
class Trained:
    """`seconds`: from the first worker's beginning to the last one's end."""

    samples: int
    seconds: float
    loss: float | None
    ranks: tuple[Told, ...]

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class ServerWatch:
    """What the servers say of a job, asked again and again."""

    def __init__(self, client: Client, job: str) -> None:
        servers = client.routing().servers
        self._job = job
        self._probes = [
            ServerProbe(client.cluster, name, at) for name, at in sorted(servers.items())
        ]
        self._entries: dict[str, int] = {}
        self._asked_s = 0.0

    def look(self, training: Training, now_s: float) -> None:
        """Tell the training the log entries per second of each server, and the ranks' clocks."""
        passed_s = now_s - self._asked_s
        if passed_s < ASK_SERVERS_EVERY_S:
            return
        asked = ask_all(self._probes, ASK_DEADLINE_S)
        told = {name: status for name, status in asked.items() if isinstance(status, dict)}
        entries = {name: sum(int(s["lsn"]) for s in t["shards"]) for name, t in told.items()}
        training.server_rates = {
            name: (count - self._entries[name]) / passed_s
            for name, count in entries.items()
            if name in self._entries
        }
        training.clocks = self._clocks(told)
        self._entries, self._asked_s = entries, now_s

    def _clocks(self, told: dict[str, Any]) -> dict[int, int]:
        """As one server sees them: what several say was not true at the same moment."""
        for status in told.values():
            for job in status["jobs"]:
                if job["job"] == self._job:
                    return {int(rank): int(at) + 1 for rank, at in job["ticked"].items()}
        return {}

    def close(self) -> None:
        """Close the connections."""
        for probe in self._probes:
            probe.close()


def train_together(
    group: WorkerGroup, servers: ServerWatch, watcher: Watcher, total: int | None
) -> Trained:
    """Let all workers begin, and show how they get on. Raises what one of them failed with."""
    training = Training(total, time.monotonic())
    group.go()
    with watcher.training():
        while not group.ended:
            group.listen(LISTEN_S)
            for worker in group.workers:
                training.take(worker.fresh)
                worker.fresh.clear()
            servers.look(training, time.monotonic())
            watcher.show(training)
    return summed_up([training.ranks[rank] for rank in sorted(training.ranks)], training.loss)


def summed_up(ranks: Sequence[Told], loss: float | None) -> Trained:
    """The whole of what all ranks have told at their ends."""
    begun_s = min(told.begun_s for told in ranks)
    ended_s = max(told.at_s for told in ranks)
    return Trained(sum(told.samples for told in ranks), ended_s - begun_s, loss, tuple(ranks))

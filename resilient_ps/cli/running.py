"""A group of workers in training: watched until all of them are done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

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


class ServerRates:
    """Log entries per second of each server, from its status."""

    def __init__(self, cluster: str, client: Client) -> None:
        servers = client.routing().servers
        self._probes = [ServerProbe(cluster, name, at) for name, at in sorted(servers.items())]
        self._before: dict[str, int] = {}
        self._asked_s = 0.0

    def look(self, now_s: float) -> dict[str, float] | None:
        """The rates since the last look; None when it is too early for another."""
        passed_s = now_s - self._asked_s
        if passed_s < ASK_SERVERS_EVERY_S:
            return None
        told = ask_all(self._probes, ASK_DEADLINE_S)
        entries = {
            name: sum(int(shard["lsn"]) for shard in status["shards"])
            for name, status in told.items()
            if isinstance(status, dict)
        }
        rates = {
            name: (count - self._before[name]) / passed_s
            for name, count in entries.items()
            if name in self._before
        }
        self._before, self._asked_s = entries, now_s
        return rates

    def close(self) -> None:
        for probe in self._probes:
            probe.close()


def train_together(
    group: WorkerGroup, rates: ServerRates, watcher: Watcher, total: int | None
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
            training.server_rates = rates.look(time.monotonic()) or training.server_rates
            watcher.show(training)
    return summed_up([training.ranks[rank] for rank in sorted(training.ranks)], training.loss)


def summed_up(ranks: Sequence[Told], loss: float | None) -> Trained:
    """The whole of what all ranks have told at their ends."""
    begun_s = min(told.begun_s for told in ranks)
    ended_s = max(told.at_s for told in ranks)
    return Trained(sum(told.samples for told in ranks), ended_s - begun_s, loss, tuple(ranks))

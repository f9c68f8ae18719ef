"""A group of workers in training: watched until all of them are done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from resilient_ps.cli.progress import Training, Watcher
from resilient_ps.cli.worker import Told
from resilient_ps.cli.workers import WorkerGroup
from resilient_ps.client.connection import Client
from resilient_ps.client.report import ClusterReport, inspect_cluster
from resilient_ps.errors import RetryLater

LISTEN_S = 0.1
ASK_SERVERS_EVERY_S = 1.0
ASK_DEADLINE_S = 0.5


@dataclass(frozen=True, slots=True)
class Trained:
    """`seconds`: from the first worker's beginning to the last one's end.

    `rates`: samples per second, every half a second, where that was watched.
    """

    samples: int
    seconds: float
    loss: float | None
    ranks: tuple[Told, ...]
    rates: tuple[float, ...] = ()

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class ServerWatch:
    """What a cluster says of itself and of a job, asked again and again."""

    def __init__(self, client: Client, job: str) -> None:
        self.report: ClusterReport | None = None  # the last one
        self._client = client
        self._job = job
        self._lsns: dict[int, int] = {}  # by shard
        self._asked_s = 0.0

    def look(self, training: Training, now_s: float) -> None:
        """Once a second tell the training how servers and shards are doing, and the clocks."""
        passed_s = now_s - self._asked_s
        if passed_s >= ASK_SERVERS_EVERY_S and self.ask():
            assert self.report is not None
            training.server_rates = self._rates(self.report, passed_s)
            training.shard_states = dict(Counter(shard.state for shard in self.report.shards))
            jobs = [job for job in self.report.jobs if job.job == self._job]
            training.clocks = jobs[0].clocks if jobs else {}
            self._asked_s = now_s

    def ask(self) -> bool:
        """Ask now. False where there is no answer: while etcd elects a leader, for instance."""
        client = self._client
        try:
            self.report = inspect_cluster(
                client.catalogue.kv, client.cluster, deadline_s=ASK_DEADLINE_S
            )
        except RetryLater:
            return False
        return True

    def _rates(self, report: ClusterReport, passed_s: float) -> dict[str, float]:
        """By server: log entries per second of the shards that it is the primary of."""
        rates = {server.server: 0.0 for server in report.servers if server.alive}
        for shard in report.shards:
            if shard.lsn is None:
                continue
            before = self._lsns.get(shard.shard)
            self._lsns[shard.shard] = shard.lsn
            if before is not None and shard.primary in rates:
                rates[shard.primary] += max(0, shard.lsn - before) / passed_s
        return rates


def train_together(
    group: WorkerGroup,
    servers: ServerWatch,
    watcher: Watcher,
    total: int | None,
    disturb: Callable[[Training, float], None] | None = None,
) -> Trained:
    """Let all workers begin, and show how they get on. Raises what one of them failed with.

    `disturb` is called again and again, with the time.
    """
    training = Training(total, time.monotonic())
    group.go()
    with watcher.training():
        while not group.ended:
            group.listen(LISTEN_S)
            for worker in group.workers:
                training.take(worker.fresh)
                worker.fresh.clear()
            servers.look(training, time.monotonic())
            if disturb is not None:
                disturb(training, time.monotonic())
            watcher.show(training)
    told = [training.ranks[rank] for rank in sorted(training.ranks)]
    return replace(summed_up(told, training.loss), rates=tuple(training.rates))


def summed_up(ranks: Sequence[Told], loss: float | None) -> Trained:
    """The whole of what all ranks have told at their ends."""
    begun_s = min(told.begun_s for told in ranks)
    ended_s = max(told.at_s for told in ranks)
    return Trained(sum(told.samples for told in ranks), ended_s - begun_s, loss, tuple(ranks))

"""The availability probe: to each shard it pushes 20 times a second, and notes each answer.

Unlike the probers of the bench it takes everything that comes: an error, a rollback or a deadline
is an outage like any other, and it goes on. Each shard's probe pushes the number 1 to a key of its
own, so in the end the table shows whether anything was lost or applied twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.faults.silences import Notes, Span
from resilient_ps.chaos.live.prober import key_of
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.errors import ResilientPsError
from resilient_ps.tables.optimisers import Sum

JOB = TABLE = "availability-probe"
EVERY_S = 0.05
REOPEN_PAUSE_S = 0.2
NOTES_MOST = 2_000_000
ERRORS_MOST = 20
END_DEADLINE_S = 90.0


@dataclass(eq=False)
class Probe:
    """Of one shard. `doubtful`: pushes without an answer, which may have been applied.

    `turn`: held by the one probe of all that ends a clock.
    """

    client: Client
    shard: int
    shards: int
    key: int
    due_clock: Callable[[str], int]
    turn: threading.Lock
    acked_s: deque[float] = field(default_factory=lambda: deque(maxlen=NOTES_MOST))
    ticks: list[Span] = field(default_factory=list)
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=ERRORS_MOST))
    acked: int = 0
    doubtful: int = 0

    def run(self, ending: threading.Event) -> None:
        """Until it is to end, as a new process of its rank after each error."""
        while not ending.is_set():
            try:
                with self.client.worker(JOB, self.shard, self.shards, "asp") as worker:
                    self._push_on(worker, ending)
            except ResilientPsError as error:
                self.errors.append(str(error))
                ending.wait(REOPEN_PAUSE_S)

    def _push_on(self, worker: Worker, ending: threading.Event) -> None:
        table = worker.sparse_table(TABLE, dim=1, dtype="int64", optimiser=Sum())
        key, one = np.array([self.key], np.uint64), np.ones((1, 1), np.int64)
        next_s = time.monotonic()
        while not ending.is_set():
            self.doubtful += 1
            table.push(key, one)
            self.doubtful -= 1
            self.acked += 1
            self.acked_s.append(time.monotonic())
            if worker.clock <= self.due_clock(JOB):
                self._tick(worker)
            next_s = max(next_s + EVERY_S, time.monotonic())
            ending.wait(next_s - time.monotonic())

    def _tick(self, worker: Worker) -> None:
        """End the clock, if no other probe is about to: a tick needs all shards, and those whose
        probes push tell which one it is that holds it up."""
        if not self.turn.acquire(blocking=False):
            return
        begun_s = time.monotonic()
        self.ticks.append(Span(begun_s, begun_s + END_DEADLINE_S))
        try:
            worker.tick()
        finally:
            self.ticks[-1] = Span(begun_s, time.monotonic())
            self.turn.release()

    @property
    def last_s(self) -> float:
        """When it was answered last; 0: never yet."""
        return self.acked_s[-1] if self.acked_s else 0.0


class Probes:
    """One probe per shard. A context: within it they run, each in a thread.

    `client`: whose calls should have a deadline longer than any outage that is to be measured.
    `due_clock` tells, by job, what clock a checkpoint waits for; 0: none.
    """

    def __init__(self, client: Client, shards: int, due_clock: Callable[[str], int]) -> None:
        self._client = client
        self._ending = threading.Event()
        turn = threading.Lock()
        self._probes = [
            Probe(client, shard, shards, key_of(shard, shards), due_clock, turn)
            for shard in range(shards)
        ]
        self._threads = [
            threading.Thread(target=probe.run, args=(self._ending,), daemon=True)
            for probe in self._probes
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()

    def stop(self) -> list[int]:
        """Let each end its last push; the shards whose probes have not ended by the deadline."""
        self._ending.set()
        until_s = time.monotonic() + END_DEADLINE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        pairs = zip(self._probes, self._threads, strict=True)
        return [probe.shard for probe, thread in pairs if thread.is_alive()]

    def answered_since(self, at_s: float) -> list[int]:
        """The shards that have acknowledged something since this moment."""
        return [probe.shard for probe in self._probes if probe.last_s >= at_s]

    def pushes(self) -> tuple[int, int]:
        """So far: acknowledged, and without an answer."""
        return sum(p.acked for p in self._probes), sum(p.doubtful for p in self._probes)

    def last_answers(self, zero_s: float) -> dict[int, float]:
        """By shard: when it last acknowledged something, in seconds since `zero_s`."""
        return {probe.shard: probe.last_s - zero_s for probe in self._probes}

    def notes(self, zero_s: float) -> Mapping[int, Notes]:
        """What was noted of each shard, in seconds since `zero_s`."""
        return {
            probe.shard: Notes(
                [at - zero_s for at in list(probe.acked_s)],
                [Span(t.from_s - zero_s, t.to_s - zero_s) for t in list(probe.ticks)],
            )
            for probe in self._probes
        }

    def errors(self) -> list[str]:
        """What probes were told instead of an answer, the last of it."""
        return [f"shard {p.shard}: {text}" for p in self._probes for text in list(p.errors)]

    def counted(self, client: Client) -> Verdict:
        """After the end: does the table hold what was acknowledged, once?"""
        table = client.table(TABLE)
        assert isinstance(table, SparseTable)
        keys = np.array([probe.key for probe in self._probes], np.uint64)
        held = table.pull(keys).ravel().tolist()
        pairs = list(zip(self._probes, held, strict=True))
        return judge(_miscounted(pairs), checked=sum(held), what="pushes of the probe")


def _miscounted(pairs: Iterable[tuple[Probe, int]]) -> list[str]:
    return [
        f"shard {probe.shard}: {probe.acked} pushes of the probe acknowledged, {probe.doubtful} "
        f"without an answer, and {held} applied"
        for probe, held in pairs
        if not probe.acked <= held <= probe.acked + probe.doubtful
    ]

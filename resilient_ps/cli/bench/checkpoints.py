"""What checkpoints cost: beside plain puts and gets of the same sizes, on the same store.

A local cluster of one server holds a sparse table under Adagrad with random values, which do not
compress. Every round measures ours and the plain one right after the other; what is judged is the
ratio within a round.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.cli.bench.cases import row_keys
from resilient_ps.cli.bench.plain_store import PlainStore
from resilient_ps.cli.output import opened_catalogue
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.checkpoints import propose_cut, wait_for_cut
from resilient_ps.client.data_shards import Changed
from resilient_ps.client.launch import RunningCluster, local_cluster
from resilient_ps.client.restoring import how_far, propose_rollback
from resilient_ps.client.tables import SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.errors import DeadlineExceeded
from resilient_ps.storage.blobs import BlobGot
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import checkpoint_prefix
from resilient_ps.storage.reading import read_manifest
from resilient_ps.storage.runtime.open import OpenedStore
from resilient_ps.tables.optimisers import Adagrad

CLUSTER, TABLE, DIM = "bench-checkpoint", "bench/stored", 16
ROW_BYTES = 8 + 2 * DIM * 4  # key, values, state
DEADLINE_S = 300.0
FILL_KEYS = 100_000
PUSH_KEYS = 2_000
MODERATE_KEYS, MODERATE_PER_S = 500, 100
CONCURRENCY = CheckpointSettings().upload_concurrency
LOOK_S = 0.5  # where no change is heard of
LEAST_S = 0.01  # a restore that takes less is not measured
MS = 1_000.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Measured:
    """One figure: a value per round. `least`: the bar is a lower bound, else an upper one."""

    name: str
    unit: str  # "x": a ratio
    bar: float | None = None
    least: bool = True
    values: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)  # what a ratio is made of
    plain: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.values)

    @property
    def holds(self) -> bool | None:
        """Is the bar reached? None: there is none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.least else self.value <= self.bar

    def add_ratio(self, ours: float, plain: float) -> None:
        """Of two rates that were measured in one round."""
        self.ours.append(ours)
        self.plain.append(plain)
        self.values.append(ours / plain)


class Trained(NamedTuple):
    """What a worker did meanwhile: requests, for how long, and the longest push."""

    pushes: int
    seconds: float
    longest_s: float

    @property
    def per_s(self) -> float:
        """Pushes per second."""
        return self.pushes / self.seconds

    def and_then(self, more: Trained) -> Trained:
        """Both, as one."""
        pushes, seconds = self.pushes + more.pushes, self.seconds + more.seconds
        return Trained(pushes, seconds, max(self.longest_s, more.longest_s))


class Bench:
    """A cluster whose table is filled, and a plain user of the same store."""

    def __init__(
        self, cluster: RunningCluster, store: OpenedStore, plain: PlainStore, rows: int, say: Say
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._plain = plain
        self._say = say
        self._rng = np.random.default_rng(1)
        self._jobs = 0
        self.rows = rows
        self.state_bytes = rows * ROW_BYTES

    # -- the parts of a measurement

    @contextmanager
    def worker(self) -> Iterator[tuple[Worker, SparseTable]]:
        """The only worker of a new job; at the end the job is done."""
        self._jobs += 1
        name = f"bench-{self._jobs}"
        with self._cluster.connect(DEADLINE_S) as client:
            with client.worker(name, 0, 1, "asp") as worker:
                yield worker, self._open(worker)
            client.end_job(name, "done")

    def _open(self, worker: Worker) -> SparseTable:
        return worker.sparse_table(TABLE, dim=DIM, optimiser=Adagrad(lr=0.01))

    def touch(self, numbers: NDArray[Any]) -> None:
        """Push random gradients to the rows of these numbers."""
        with self.worker() as (worker, table):
            for at in range(0, len(numbers), FILL_KEYS):
                keys = row_keys(numbers[at : at + FILL_KEYS].astype(np.uint64))
                table.push(keys, self._gradients(len(keys)))
            worker.tick()

    def touch_all(self) -> None:
        """Every row: the next checkpoint is a full one."""
        self.touch(np.arange(self.rows))

    def _gradients(self, count: int) -> NDArray[Any]:
        return self._rng.standard_normal((count, DIM), np.float32)

    def checkpoint(self) -> tuple[CheckpointRecord, float]:
        """Make one: its record, and the seconds from the wish to its being published.

        What was stored before is on the disk by then: it would be written at this one's expense.
        """
        os.sync()
        with opened_catalogue(self._cluster.etcd, CLUSTER, DEADLINE_S) as catalogue:
            start_s = time.perf_counter()
            number = propose_cut(catalogue, why="measured", by="bench")
            record = wait_for_cut(catalogue, number, DEADLINE_S)
            return record, time.perf_counter() - start_s

    def sizes(self, record: CheckpointRecord) -> list[int]:
        """Of the objects with content that were written for this checkpoint."""
        manifest, own = self._manifest(record)
        return [each.nbytes for each in manifest.objects if each.name.startswith(own)]

    def _manifest(self, record: CheckpointRecord) -> tuple[Manifest, str]:
        """And what the names of its own objects begin with."""
        got = self._store.do(read_manifest(record.manifest, record.nbytes, record.sha256))
        assert isinstance(got, BlobGot)
        manifest: Manifest = got.decoded
        return manifest, checkpoint_prefix(CLUSTER, manifest.id)

    def warm_up(self) -> None:
        """A checkpoint, and a plain upload of the same sizes, that nobody measures."""
        record, _ = self.checkpoint()
        self._plain.put(self.sizes(record))

    # -- figures

    def save_and_restore(self, rounds: int) -> Iterator[Measured]:
        """Full checkpoints, and going back to them."""
        save = Measured("save", "x", 0.9)
        restore = Measured("restore", "x", 0.9)
        decided = Measured("until a restore is decided", "ms")
        for turn in range(rounds):
            self._say(f"save and restore, round {turn + 1} of {rounds}")
            self.touch_all()
            record, seconds = self.checkpoint()
            sizes = self.sizes(record)
            os.sync()
            save.add_ratio(sum(sizes) / seconds, sum(sizes) / self._plain.put(sizes))
            decided_s, seconds = self._restore(record)
            decided.values.append(decided_s * MS)
            restore.add_ratio(sum(sizes) / seconds, sum(sizes) / self._plain.get(sizes))
        yield save
        yield restore
        yield decided

    def _restore(self, record: CheckpointRecord) -> tuple[float, float]:
        """Seconds until servers know what to restore, and from then until all shards serve.

        Before, the coordinator looks whether all objects are there, and marks the new incarnation.
        """
        with (
            opened_catalogue(self._cluster.etcd, CLUSTER, DEADLINE_S) as catalogue,
            self._any_change(catalogue) as changed,
            ThreadPoolExecutor(1) as pool,
        ):
            before = self._incarnation(catalogue)
            wished_s = time.perf_counter()
            pool.submit(propose_rollback, catalogue, record.id, why="measured")
            begun_s = 0.0
            while time.perf_counter() - wished_s < DEADLINE_S:
                changed.clear()
                far, now_s = how_far(catalogue), time.perf_counter()
                if far is not None and far.incarnation > before:
                    begun_s = begun_s or now_s
                    if far.done:
                        # Of a small state both are seen in one look.
                        return begun_s - wished_s, max(now_s - begun_s, LEAST_S)
                changed.wait(LOOK_S)  # looking takes CPU from what is measured
        raise DeadlineExceeded("the restore that is measured does not end")

    def _any_change(self, catalogue: Catalogue) -> Changed:
        kv, keys = catalogue.kv, catalogue.keys
        return Changed(kv, keys.prefix, kv.read(keys.config).revision)

    def _incarnation(self, catalogue: Catalogue) -> int:
        far = how_far(catalogue)
        return 0 if far is None else far.incarnation

    def second_checkpoints(self) -> Iterator[Measured]:
        """How much is uploaded when one row in twenty was touched."""
        self.touch_all()
        self.checkpoint()
        twentieth = self.rows // 20
        uniform = self._rng.choice(self.rows, twentieth, replace=False)
        for name, numbers in (("uniform", uniform), ("zipf", self._zipf_rows(twentieth))):
            self._say(f"a second checkpoint, {name}")
            self.touch(numbers)
            record, _ = self.checkpoint()
            share = Measured(f"second checkpoint after 5 % ({name})", "x", 0.15, least=False)
            share.values.append(record.uploaded_bytes / self.state_bytes)
            yield share

    def _zipf_rows(self, count: int) -> NDArray[Any]:
        """So many distinct rows, as zipf-distributed keys touch them."""
        found: NDArray[Any] = np.empty(0, np.int64)
        while len(found) < count:
            found = np.union1d(found, self._zipf(4 * count))
        return self._rng.permutation(found)[:count]

    def _zipf(self, count: int) -> NDArray[Any]:
        return self._rng.zipf(1.2, count) % self.rows

    def beside_training(self, rounds: int) -> Iterator[Measured]:
        """What a worker at full speed feels of a checkpoint, and of a plain upload.

        Half of the plain one comes before ours and half behind it: machines become faster and
        slower meanwhile, by more than what is to be seen. Its sizes and rate are those of the last
        checkpoint beside training; the first of these is not measured.
        """
        kept = Measured("training kept during a checkpoint", "x", 0.9)
        stall = Measured("longest push that it adds", "ms", 100.0, least=False)
        self._say("training beside a checkpoint")
        sizes, rate, _ = self._checkpoint_beside_training()
        for turn in range(rounds):
            self._say(f"training beside checkpoints, round {turn + 1} of {rounds}")
            begun_s = time.perf_counter()
            half = len(sizes) // 2
            before = self._plain_beside_training(sizes[:half], rate)
            sizes, rate, ours = self._checkpoint_beside_training()
            behind = self._plain_beside_training(sizes[half:], rate)
            control = before.and_then(behind)
            kept.add_ratio(ours.per_s, control.per_s)
            stall.values.append(max(0.0, ours.longest_s - control.longest_s) * MS)
            stall.ours.append(ours.longest_s * MS)
            stall.plain.append(control.longest_s * MS)
            parts = ", ".join(f"{each.per_s:,.0f}" for each in (before, ours, behind))
            self._say(f"{time.perf_counter() - begun_s:.0f} s: {parts} pushes/s")
        yield kept
        yield stall

    def _checkpoint_beside_training(self) -> tuple[list[int], float, Trained]:
        """A full one: the sizes of its objects, their bytes per second, and what was trained."""
        self.touch_all()
        os.sync()
        record, ours = self._while_training(self.checkpoint)
        sizes = self.sizes(record[0])
        return sizes, sum(sizes) / record[1], ours

    def _plain_beside_training(self, sizes: list[int], rate: float) -> Trained:
        """For as long as a checkpoint of these bytes takes, to the end of its last pause."""

        def put() -> None:
            end_s = time.perf_counter() + sum(sizes) / rate
            self._plain.put(sizes, rate)
            time.sleep(max(0.0, end_s - time.perf_counter()))

        os.sync()
        trained: Trained = self._while_training(put)[1]
        return trained

    def memory(self) -> Measured:
        """What a server needs beside the state while it is saved, at a moderate rate of pushes."""
        self._say("memory during a checkpoint")
        overhead = Measured("memory during a checkpoint", "of the state", 0.15, least=False)
        self.touch_all()
        pid = self._cluster.processes.servers[0].pid
        self._while_training(lambda: time.sleep(2.0), moderate=True)
        before = _forget_peak(pid)
        self._while_training(self.checkpoint, moderate=True)
        beside = sum(_own_memory(child) for child in _children(pid))
        overhead.values.append((_memory(pid, "VmHWM") - before + beside) / self.state_bytes)
        return overhead

    def _while_training(self, work: Callable[[], Any], *, moderate: bool = False) -> Any:
        """Push zipf-distributed keys as long as `work` lasts."""
        done = threading.Event()
        result: list[Any] = []

        def run() -> None:
            try:
                result.append(work())
            finally:
                done.set()

        count = MODERATE_KEYS if moderate else PUSH_KEYS
        keys = [row_keys(np.unique(self._zipf(count)).astype(np.uint64)) for _ in range(50)]
        if moderate:
            numbers = [self._rng.choice(self.rows, count, replace=False) for _ in range(50)]
            keys = [row_keys(chosen.astype(np.uint64)) for chosen in numbers]
        values = self._gradients(count)
        with self.worker() as (worker, table):
            thread = threading.Thread(target=run)
            table.push(keys[0], values[: len(keys[0])])
            worker.tick()
            thread.start()
            trained = _train(worker, table, keys, values, done, moderate=moderate)
            thread.join()
        return result[0], trained


def _train(
    worker: Worker,
    table: SparseTable,
    keys: list[NDArray[np.uint64]],
    values: NDArray[np.float32],
    done: threading.Event,
    *,
    moderate: bool,
) -> Trained:
    pushes, longest_s, start_s = 0, 0.0, time.perf_counter()
    while not done.is_set():
        begun_s = time.perf_counter()
        chosen = keys[pushes % len(keys)]
        table.push(chosen, values[: len(chosen)])
        longest_s = max(longest_s, time.perf_counter() - begun_s)
        worker.tick()
        pushes += 1
        if moderate:
            due_s = start_s + pushes / MODERATE_PER_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
    return Trained(pushes, time.perf_counter() - start_s, longest_s)


def _memory(pid: int, field_name: str) -> int:
    """Bytes, as Linux tells them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _children(pid: int) -> list[int]:
    """The processes that this one has started: of a server, the one that transfers objects."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _own_memory(pid: int) -> int:
    """What it does not share with the one that started it."""
    return _memory(pid, "VmRSS") - _memory(pid, "RssShmem")


def _forget_peak(pid: int) -> int:
    """Let the peak begin anew; what is used now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def prepared(
    url: str, store: OpenedStore, state_mib: int, say: Say
) -> AbstractContextManager[Bench]:
    """A cluster whose checkpoints go to `url`, with a table of so many MiB."""
    return prepared_as(Bench, url, store, state_mib, say)


AnyBench = TypeVar("AnyBench", bound=Bench)


@contextmanager
def prepared_as(
    kind: type[AnyBench], url: str, store: OpenedStore, state_mib: int, say: Say
) -> Iterator[AnyBench]:
    """As `prepared`, with a table of another kind."""
    settings = CheckpointSettings(keep_last=2)
    with ExitStack() as stack:
        plain = PlainStore(url, CONCURRENCY)
        stack.callback(plain.close)
        say("starting a cluster")
        cluster = stack.enter_context(
            local_cluster(
                1, replicas=1, name=CLUSTER, store=url, checkpoints=settings, restore="none"
            )
        )
        bench = kind(cluster, store, plain, (state_mib << 20) // ROW_BYTES, say)
        say(f"filling {bench.rows:,} rows")
        bench.touch_all()
        say("warming the store up")  # it takes memory that it keeps
        bench.warm_up()
        yield bench

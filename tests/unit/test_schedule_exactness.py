"""Every sample counts once: ranks that die, come back and retire at any moment, step by step.

The production code of both schedules runs on a coordination store in memory, and on a model of what
all shards together keep of a rank. One thread takes one step of one process at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from resilient_ps.client.batches import DynamicBatches, static_batches
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.data_shards import Leases
from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec
from resilient_ps.coordinator.data_shards import DataShards
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Kv, Put, Txn, TxnResult
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import ClusterConfig
from resilient_ps.coordinator.repeats import writes_nothing
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.data import SparseArrayDataset
from resilient_ps.errors import (
    BadInput,
    DeadlineExceeded,
    Fenced,
    FixTheCall,
    NotRepeatable,
    RolledBack,
)
from resilient_ps.ids import WorkerId

ROWS = 61
EPOCHS = 2
BATCH_SIZE = 4
PUSHES = 3  # of a batch
KEYS = ClusterKeys("prod")
CONFIG = ClusterConfig("c0ffee00", 1, 4, 1, 1, 1, 64, "s1")


class Killed(BaseException):
    """The process is gone: nothing in it may catch this."""


@dataclass
class KeptRank:
    """What the shards keep of a rank."""

    incarnation: int = 0
    ticked: int = 0
    cursor: Any = None
    open: list[list[int]] = field(default_factory=list)  # keys of the open clock's pushes
    repeated: int = 0  # how many of them the present process has pushed
    left: bool = False
    cursors: list[Any] = field(default_factory=lambda: [None])  # of each clock


class Shards:
    """All shards together: who pushed what, and how often each sample was counted."""

    def __init__(self, mode: Consistency) -> None:
        self.mode = mode
        self.incarnation = 1
        self.counts = np.zeros(ROWS, np.int64)
        self.pushed: list[tuple[int, list[int]]] = []  # the clock, and what was counted in it
        self.ranks: dict[int, KeptRank] = {}

    def as_of(self, clock: int) -> Shards:
        """What a checkpoint of this clock is restored as."""
        restored = Shards(self.mode)
        restored.incarnation = self.incarnation + 1
        for at, keys in self.pushed:
            if at <= clock:
                restored._count(at, keys)
        for rank, kept in self.ranks.items():
            cursors = kept.cursors[: clock + 1]
            restored.ranks[rank] = KeptRank(0, clock, cursors[-1], cursors=cursors)
        return restored

    def _count(self, clock: int, keys: list[int]) -> None:
        self.counts[keys] += 1
        self.pushed.append((clock, keys))

    def take_over(self, rank: int, incarnation: int) -> KeptRank:
        kept = self.ranks.setdefault(rank, KeptRank())
        kept.incarnation, kept.repeated = incarnation, 0
        if isinstance(self.mode, BSP):
            kept.open = []
        return kept

    def push(self, worker: WorkerId, keys: list[int]) -> None:
        kept = self._kept(worker)
        if kept.repeated < len(kept.open):
            if kept.open[kept.repeated] != keys:
                raise NotRepeatable(f"rank {worker.rank} repeats its clock differently")
        else:
            kept.open.append(keys)
            if not isinstance(self.mode, BSP):
                self._count(kept.ticked + 1, keys)
        kept.repeated += 1

    def tick(self, worker: WorkerId, cursor: Any) -> None:
        kept = self._kept(worker)
        if kept.repeated != len(kept.open):
            raise NotRepeatable(f"rank {worker.rank} left out a push")
        if isinstance(self.mode, BSP):
            for keys in kept.open:
                self._count(kept.ticked + 1, keys)
        kept.ticked += 1
        kept.open, kept.repeated = [], 0
        kept.cursor = json.loads(json.dumps(cursor))
        kept.cursors.append(kept.cursor)

    def _kept(self, worker: WorkerId) -> KeptRank:
        kept = self.ranks[worker.rank]
        if worker.incarnation < kept.incarnation or kept.left:
            raise Fenced(f"rank {worker.rank} was taken over")
        return kept


class ShakyKv(MemoryClient):
    """A store some of whose answers are lost, and whose user dies in some of its calls."""

    def __init__(self, store: MemoryKv, random: np.random.Generator, faults: float) -> None:
        super().__init__(store)
        self._random = random
        self._faults = faults
        self.dying = False

    def txn(self, txn: Txn, **options: Any) -> TxnResult:
        fault = self._random.random() / self._faults if self._faults else 1.0
        self._perhaps_die(fault < 0.2)
        if fault < 0.4 and not writes_nothing(txn):
            raise DeadlineExceeded("a request was lost")
        result = super().txn(txn, **options)
        self._perhaps_die(0.4 <= fault < 0.6)
        if 0.6 <= fault < 0.8:
            raise DeadlineExceeded("an answer was lost")
        return result

    def _perhaps_die(self, chosen: bool) -> None:
        if self.dying and chosen:
            raise Killed


class Process:
    """A process of a rank, as the schedules see a worker; `step` runs it a little further."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run = run
        self.rank = rank
        self.of = run.ranks
        self.resumed = 0
        self._take_over(held=0)
        self.consistency = run.mode
        self.retiring = False
        self.taken = 0
        self.over = False
        self._steps = self._life()

    def _take_over(self, held: int) -> None:
        run, rank = self.run, self.rank
        drawn = Catalogue(run.calm, "prod", 1.0).draw_incarnation("job", rank, held=held)
        self.id = WorkerId(run.job.job, rank, drawn)
        self.incarnation = run.shards.incarnation
        kept = run.shards.take_over(rank, drawn)
        self.clock, self.cursor = kept.ticked + 1, kept.cursor
        self.has_batch = False
        self._opened_at = self.clock

    def resume(self) -> None:
        self._take_over(self.id.incarnation)
        self.resumed += 1

    def check_incarnation(self) -> None:
        if self.incarnation != self.run.shards.incarnation:
            raise RolledBack("the cluster was rolled back")

    @property
    def settled(self) -> bool:
        if not self.run.guarded or isinstance(self.consistency, BSP):
            return True
        return not self.has_batch and (self.id.incarnation == 1 or self.clock > self._opened_at)

    def tick(self, cursor: Any = None) -> None:
        self.check_incarnation()
        self.run.shards.tick(self.id, self.cursor if cursor is None else cursor)
        self.clock += 1
        self.cursor = self.run.shards.ranks[self.rank].cursor

    def wait_for_others(self, give_up: Any, look_every_s: float) -> bool:
        """As the shards would answer; but nobody waits here, for nobody else would get on."""
        self.check_incarnation()
        live = [kept.ticked for kept in self.run.shards.ranks.values() if not kept.left]
        return bool(min(live) >= self.consistency.gate(self.clock))

    def leave(self) -> None:
        self.check_incarnation()
        leases = self._leases()
        grant = leases.in_hand()
        if grant is not None:
            if not self.settled:
                raise FixTheCall("not settled")
            cursor = self.cursor if self.cursor and self.cursor["grant"] == grant.grant else None
            start = grant.start if cursor is None else json.dumps(cursor["data"])
            leases.give_back(grant, start, self.clock - 1)
        Catalogue(self.run.calm, "prod", 1.0)._propose("leave", "job", self.rank)
        self.run.shards.ranks[self.rank].left = True

    def step(self) -> None:
        """One push, or the tick of a batch and what comes before the next batch."""
        try:
            next(self._steps)
        except StopIteration:
            self.over = True
        except DeadlineExceeded:
            self._steps = self._life()  # others have data shards in hand: look again

    def _life(self) -> Iterator[None]:
        for batch in self._batches():
            self.taken += 1
            for keys in np.array_split(batch.keys, PUSHES):
                if self.incarnation != self.run.shards.incarnation:
                    break  # as a program does that catches RolledBack
                self.run.shards.push(self.id, keys.astype(int).tolist())
                yield

    def _batches(self) -> Iterator[Any]:
        worker: Any = self
        if self.run.schedule == "static":
            return static_batches(worker, self.run.rows, BATCH_SIZE, EPOCHS)
        return iter(
            DynamicBatches(
                worker, self._leases, self.run.rows, BATCH_SIZE, EPOCHS, 7, patience_s=0.0
            )
        )

    def _leases(self) -> Leases:
        return Leases(self.run.shaky, KEYS, self.run.job, self.id, self.incarnation, 5.0)


class Run:
    """Ranks of a job, and what happens to them."""

    def __init__(
        self,
        seed: int,
        mode: Consistency,
        schedule: str = "dynamic",
        *,
        ranks: int = 3,
        faults: float = 0.0,
        guarded: bool = True,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.mode, self.schedule, self.ranks, self.guarded = mode, schedule, ranks, guarded
        store = MemoryKv()
        self.calm: Kv = MemoryClient(store)
        self.calm.txn(Txn((), (Put(KEYS.config, CONFIG.to_bytes()),)))
        self.shaky = ShakyKv(store, self.random, faults)
        self.job: JobSpec = Catalogue(self.calm, "prod", 1.0).open_job("job", ranks, mode)
        self.shards = Shards(mode)
        keys = np.arange(ROWS, dtype=np.uint64)
        self.rows = SparseArrayDataset(np.ones(ROWS), np.arange(ROWS + 1), keys, shuffle_seed=seed)
        self.processes = {rank: Process(self, rank) for rank in range(ranks)}
        self.ghosts: list[Process] = []  # processes that were taken over, and do not know it

    def record(self) -> DataShards | None:
        """Who works on what."""
        items = self.calm.read(KEYS.data_shards("job")).items
        return DataShards.from_bytes(items[0].value, items[0].key) if items else None

    def write(self, key: bytes, value: bytes | None) -> None:
        self.calm.txn(Txn((), (Delete(key) if value is None else Put(key, value),)))

    def begin_cut(self, margin: int) -> int:
        """As the coordinator does before any shard is told: the clock."""
        clock = max(kept.ticked for kept in self.shards.ranks.values()) + margin
        record = self.record()
        if record is not None:
            self.write(KEYS.data_shards("job"), record.at_cut(clock).to_bytes())
        return clock

    def reach(self, clock: int) -> bool:
        """Go on until all ranks have ticked the cut's clock; not all ranks have so many."""
        while any(kept.ticked < clock for kept in self.shards.ranks.values()):
            behind = [r for r in self.working() if self.shards.ranks[r].ticked < clock]
            if not behind:
                return False
            self.step(int(self.random.choice(self.working())))
        return True

    def checkpoint(self, clock: int) -> tuple[Shards, DataShards | None]:
        """The cut that was reached, as it is published."""
        record, shards = self.record(), self.shards.as_of(clock)
        cursors = {rank: kept.cursor for rank, kept in shards.ranks.items()}
        return shards, None if record is None else record.as_of(clock, cursors)

    def roll_back(self, shards: Shards, record: DataShards | None) -> None:
        """Everybody goes back; processes do not know it yet, and those that had ended are run."""
        shards.incarnation = self.shards.incarnation + 1
        self.shards = shards
        config = replace(CONFIG, incarnation=shards.incarnation)
        self.write(KEYS.config, config.to_bytes())
        value = None if record is None else record.to_bytes()
        self.write(KEYS.data_shards("job"), value)
        for rank, process in self.processes.items():
            if process.over:
                self.processes[rank] = Process(self, rank)

    def step(self, rank: int) -> None:
        process = self.processes[rank]
        try:
            process.step()
        except Killed:
            self.processes[rank] = Process(self, rank)

    def replace(self, rank: int, *, ghost: bool) -> Process:
        """The rank's process dies, or (`ghost`) is only thought to be dead."""
        if ghost:
            self.ghosts.append(self.processes[rank])
        self.processes[rank] = Process(self, rank)
        return self.processes[rank]

    def haunt(self) -> None:
        for ghost in self.ghosts:
            with suppress(Fenced, Killed):
                ghost.step()

    def working(self) -> list[int]:
        return [rank for rank, process in self.processes.items() if not process.over]

    def finish(self) -> None:
        self.shaky.dying = False
        for _ in range(100_000):
            working = self.working()
            if not working:
                return
            self.step(int(self.random.choice(working)))
        raise AssertionError("it does not end")

    def close(self) -> None:
        self.calm.close()
        self.shaky.close()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    opened: list[Run] = []
    yield opened
    for run in opened:
        run.close()


MODES = pytest.mark.parametrize("mode", [BSP(), SSP(2), ASP()], ids=str)


def disturb(run: Run, steps: int = 150) -> None:
    """Let ranks die, haunt and lose answers for a while."""
    run.shaky.dying = True
    for _ in range(steps):
        working = run.working()
        if not working:
            return
        rank = int(run.random.choice(working))
        if run.random.random() < 0.05:
            run.replace(rank, ghost=bool(run.random.random() < 0.3))
        run.step(rank)
        if run.random.random() < 0.1:
            run.haunt()


@MODES
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_each_sample_counts_once_per_epoch_however_ranks_die(
    runs: list[Run], mode: Consistency, schedule: str
) -> None:
    for seed in range(8):
        run = Run(seed, mode, schedule, faults=0.1)
        runs.append(run)
        disturb(run)
        run.finish()
        assert run.shards.counts.tolist() == [EPOCHS] * ROWS, seed
        if not isinstance(mode, ASP):
            assert len({kept.ticked for kept in run.shards.ranks.values()}) == 1


@MODES
def test_each_sample_counts_once_also_where_dead_ranks_are_retired(
    runs: list[Run], mode: Consistency
) -> None:
    for seed in range(10):
        run = Run(seed, mode, ranks=4)
        runs.append(run)
        disturb(run)
        for rank in run.working()[:2]:
            run.replace(rank, ghost=seed % 2 == 0).retiring = True
            run.haunt()
        run.finish()
        assert run.shards.counts.tolist() == [EPOCHS] * ROWS, seed


def disturbed_and_rolled_back(run: Run, seed: int) -> int:
    """Let ranks die, and go back to a checkpoint again and again; how often that was."""
    times = 0
    for _ in range(3):
        disturb(run, steps=40)
        clock = run.begin_cut(margin=seed % 3)
        disturb(run, steps=seed % 30)
        if not run.reach(clock):
            return times  # ranks have come to their end
        disturb(run, steps=seed % 50)
        shards, record = run.checkpoint(clock)
        disturb(run, steps=seed % 20)
        run.roll_back(shards, record)
        times += 1
    return times


def count_in_rolled_back_runs(
    seeds: range, runs: list[Run], mode: Consistency, schedule: str
) -> None:
    times = 0
    for seed in seeds:
        run = Run(seed, mode, schedule, faults=0.05)
        runs.append(run)
        times += disturbed_and_rolled_back(run, seed)
        run.finish()
        assert run.shards.counts.tolist() == [EPOCHS] * ROWS, seed
        if not isinstance(mode, ASP):
            assert len({kept.ticked for kept in run.shards.ranks.values()}) == 1
    assert times > len(seeds)


@MODES
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_each_sample_counts_once_per_epoch_however_often_the_cluster_goes_back(
    runs: list[Run], mode: Consistency, schedule: str
) -> None:
    count_in_rolled_back_runs(range(8), runs, mode, schedule)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@MODES
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_many_clusters_go_back_again_and_again(
    runs: list[Run], mode: Consistency, schedule: str
) -> None:
    count_in_rolled_back_runs(range(1000, 1150), runs, mode, schedule)


def test_a_record_that_does_not_go_back_with_the_shards_is_noticed(runs: list[Run]) -> None:
    wrong = 0
    for seed in range(10):
        run = Run(seed, SSP(2))
        runs.append(run)
        disturb(run, steps=40)
        clock = run.begin_cut(margin=1)
        if run.reach(clock):
            disturb(run, steps=40)
            run.roll_back(run.shards.as_of(clock), run.record())
        run.finish()
        wrong += run.shards.counts.tolist() != [EPOCHS] * ROWS
    assert wrong


@pytest.mark.soak
@pytest.mark.timeout(3600)
@MODES
def test_many_ranks_die_and_retire(runs: list[Run], mode: Consistency) -> None:
    for seed in range(1000, 1150):
        run = Run(seed, mode, ranks=4, faults=0.05)
        runs.append(run)
        disturb(run)
        for rank in run.working()[: seed % 3]:
            run.replace(rank, ghost=seed % 2 == 0).retiring = True
            run.haunt()
        run.finish()
        assert run.shards.counts.tolist() == [EPOCHS] * ROWS, seed


def wrong_counts_of_heirs_that_do_not_run_the_open_clock(runs: list[Run], mode: Consistency) -> int:
    wrong = 0
    for seed in range(15):
        run = Run(seed, mode, ranks=2, guarded=False)
        runs.append(run)
        for _ in range(int(run.random.integers(5, 40))):
            run.step(1)
        run.replace(1, ghost=False).retiring = True
        run.finish()
        wrong += run.shards.counts.tolist() != [EPOCHS] * ROWS
    return wrong


def test_control_a_data_shard_that_goes_on_from_an_unsettled_rank_is_counted_wrongly(
    runs: list[Run],
) -> None:
    assert wrong_counts_of_heirs_that_do_not_run_the_open_clock(runs, SSP(2)) > 0
    assert wrong_counts_of_heirs_that_do_not_run_the_open_clock(runs, BSP()) == 0


# -- who takes what


def test_a_slow_rank_takes_fewer(runs: list[Run]) -> None:
    run = Run(1, ASP(), ranks=2)
    runs.append(run)
    while run.working():
        for _ in range(10):
            run.step(0)
        run.step(1)
    fast, slow = (run.processes[rank].taken for rank in (0, 1))
    assert fast > 2 * slow > 0
    assert run.shards.counts.tolist() == [EPOCHS] * ROWS


def test_a_rank_that_retires_leaves_its_work_to_the_others(runs: list[Run]) -> None:
    run = Run(1, SSP(2), ranks=2)
    runs.append(run)
    for _ in range(2 * PUSHES):
        run.step(0)
        run.step(1)
    run.processes[1].retiring = True
    for _ in range(PUSHES):
        run.step(1)
    assert run.processes[1].over
    assert run.shards.ranks[1].left
    run.finish()
    assert run.processes[0].taken > run.processes[1].taken
    assert run.shards.counts.tolist() == [EPOCHS] * ROWS


def test_a_rank_with_a_data_shard_in_hand_cannot_be_taken_out_of_the_job(runs: list[Run]) -> None:
    run = Run(1, SSP(2), ranks=2)
    runs.append(run)
    run.step(1)
    catalogue = Catalogue(run.calm, "prod", 1.0)
    with pytest.raises(FixTheCall, match=r"rank 1 .* has data shard 0 in hand.*--retire"):
        catalogue.propose("leave", "job", 1)
    run.processes[1].retiring = True
    while not run.processes[1].over:
        run.step(1)
    assert run.shards.ranks[1].left


@pytest.mark.parametrize(("first", "then"), [("static", "dynamic"), ("dynamic", "static")])
def test_a_rank_goes_on_with_the_schedule_that_it_began_with(
    runs: list[Run], first: str, then: str
) -> None:
    run = Run(1, ASP(), first)
    runs.append(run)
    for _ in range(2 * PUSHES):
        run.step(0)
    run.schedule = then
    process = run.replace(0, ghost=False)
    with pytest.raises(BadInput, match=f"schedule='{then}', but .* schedule '{first}'"):
        process.step()

"""Random commands for a shard: workers that push, tick, die, repeat themselves and err."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from resilient_ps.consistency import ASP, BSP, SSP, Consistency, JobSpec, Tasks
from resilient_ps.cut import Cut
from resilient_ps.ids import READER, WorkerId
from resilient_ps.ledger import RankRecord
from resilient_ps.messages import Command, Keys, Kind, Values
from resilient_ps.quotas import WITHOUT_END, Give, Given, Settle, Size
from resilient_ps.shard import Shard
from resilient_ps.tables.initialisers import Normal, Zeros
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Optimiser, Sum
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec, TableSpec

OPTIMISERS: tuple[Optimiser, ...] = (
    Sum(), SGD(0.1), Momentum(0.1), Momentum(0.1, nesterov=True), Adagrad(0.1, 1e-10, 0.5),
    Adam(0.1), FTRL(0.1),
)  # fmt: skip
MODES: tuple[Consistency, ...] = (BSP(), BSP(), BSP("mean"), SSP(1), ASP(), Tasks())
DENSE_SHAPE = (70_000,)  # two blocks, of which the second is short
DENSE_BLOCKS = ((0,), (1,), (0, 1), (1, 0))
BLOCK_ELEMENTS = (65_536, 70_000 - 65_536)
KEYS = 500
WEIGHTS = {
    "push": 10, "repeat": 2, "tick": 5, "err": 2, "tune": 1, "take_over": 1.5, "redo": 1,
    "join": 0.4, "leave": 0.3, "open_table": 0.3, "drop_table": 0.2, "open_job": 0.1,
    "close_job": 0.1, "epoch": 0.1, "cut": 0.3, "abort": 0.05,
    "quota": 0.3,
}  # fmt: skip

T = TypeVar("T")


class Stream:
    """`next` gives a command that is mostly admissible to `shard`, as it is at that moment.

    `lead`: how many clocks a rank may be ahead of the slowest. `by`: the server that cuts name.
    """

    def __init__(self, seed: int, shard: Shard, *, lead: int = 1, by: str = "s1") -> None:
        self.weights = dict(WEIGHTS)
        self.modes = MODES
        self.lead = lead
        self.by = by
        self.rng = np.random.default_rng(seed)
        self.shard = shard
        self.numbers = 0
        self.waiting: list[Command] = []  # to be given first
        self.sent: dict[tuple[int, int], list[Command]] = {}  # pushes of each rank

    def next(self) -> Command:
        while not self.waiting:
            if len(self.shard.jobs) < 2 or not self.shard.tables:
                self.open_job()
            else:
                names = list(self.weights)
                weights = np.array(list(self.weights.values()))
                choice = int(self.rng.choice(len(names), p=weights / weights.sum()))
                getattr(self, names[choice])()
        return self.waiting.pop(0)

    def say(self, kind: Kind, worker: WorkerId = READER, **fields: object) -> Command:
        self.waiting.append(Command(kind, worker, **fields))  # type: ignore[arg-type]
        return self.waiting[-1]

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def worker(self) -> tuple[WorkerId, RankRecord]:
        job = self.one_of(sorted(self.shard.jobs))
        ranks = self.shard.jobs[job].ledger.ranks
        rank = self.one_of(sorted(ranks))
        return WorkerId(job, rank, ranks[rank].incarnation), ranks[rank]

    # -- tables and jobs

    def open_job(self) -> None:
        self.numbers += 1
        job, ranks = self.numbers, int(self.rng.integers(1, 4))
        text = JobSpec(job, f"job{job}", ranks, self.one_of(self.modes)).to_json().encode()
        self.say(Kind.OPEN_JOB, WorkerId(job, 0, 0), text=text)
        self.open_table()
        self.open_table()
        for rank in range(ranks):
            self.say(Kind.FENCE, WorkerId(job, rank, 1))

    def close_job(self) -> None:
        if len(self.shard.jobs) > 2:
            self.say(Kind.CLOSE_JOB, self.worker()[0])

    def open_table(self) -> None:
        self.numbers += 1
        optimiser, name = self.one_of(OPTIMISERS), f"t{self.numbers}"
        dtype: Dtype = self.one_of(("float32", "float32", "float64"))
        start = self.one_of((Normal(0.5), Zeros()))
        if isinstance(optimiser, Sum) and self.rng.random() < 0.5:
            dtype, start = "int64", Zeros()
        spec: TableSpec = SparseSpec(name, int(self.rng.integers(1, 20)), dtype, optimiser, start)
        if self.rng.random() < 0.25:
            spec = DenseSpec(name, DENSE_SHAPE, dtype, optimiser, start)
        self.say(Kind.OPEN_TABLE, table=self.numbers, text=spec.to_json().encode())

    def drop_table(self) -> None:
        if len(self.shard.tables) > 3:
            self.say(Kind.DROP_TABLE, table=self.one_of(sorted(self.shard.tables)))
            if self.rng.random() < 0.3:  # a table of the same number comes after it
                dropped = self.waiting[-1].table
                text = SparseSpec(f"again{dropped}", 2, "float32", SGD(0.5)).to_json().encode()
                self.say(Kind.OPEN_TABLE, table=dropped, text=text)

    def epoch(self) -> None:
        self.say(Kind.EPOCH)

    # -- pushes and ticks

    def table_of(self, job: int) -> int:
        """One that the job may write, mostly."""
        tables = self.shard.tables
        free = [n for n in sorted(tables) if tables[n].writer in (0, job)]
        return self.one_of(free if free and self.rng.random() < 0.95 else sorted(tables))

    def push(self) -> None:
        worker, record = self.worker()
        sent = self.sent.setdefault((worker.job, worker.rank), [])
        if record.replayed < record.last:  # a successor repeats the clock
            again = [c for c in sent if c.clock == record.ticked + 1 and c.n > record.replayed]
            if again:
                self.waiting.append(dataclasses.replace(again[0], worker=worker))
            return
        number = self.table_of(worker.job)
        keys, values = self.content(self.shard.tables[number].spec)
        n = record.last + int(self.rng.integers(1, 3))
        command = self.say(
            Kind.PUSH, worker, clock=record.ticked + 1, n=n, prev=record.last, table=number,
            keys=keys, values=values,
        )  # fmt: skip
        if self.shard.check(command) is None:
            sent.append(command)

    def content(self, spec: TableSpec) -> tuple[Keys, Values]:
        if isinstance(spec, DenseSpec):
            blocks = self.one_of(DENSE_BLOCKS)
            keys, size = np.array(blocks, np.uint64), sum(BLOCK_ELEMENTS[b] for b in blocks)
        else:
            count = int(self.rng.integers(0, 40))
            keys = self.rng.integers(0, KEYS, count).astype(np.uint64)
            size = count * spec.dim
        return keys, (self.rng.normal(size=size) * 10).astype(spec.dtype)

    def repeat(self) -> None:
        """The last push of somebody, once more."""
        for commands in self.sent.values():
            if commands and self.rng.random() < 0.5:
                self.waiting.append(commands[-1])

    def tune(self) -> None:
        worker, record = self.worker()
        number = self.table_of(worker.job)
        rate = float(self.rng.uniform(0.01, 1))
        command = self.say(
            Kind.TUNE, worker, clock=record.ticked + 1, n=record.last + 1, prev=record.last,
            table=number, rate=rate,
        )  # fmt: skip
        if self.shard.check(command) is None:
            self.sent.setdefault((worker.job, worker.rank), []).append(command)

    def tick(self) -> None:
        """Those who are behind, more often: otherwise BSP would never apply anything."""
        worker, record = self.worker()
        if record.ticked > self.shard.jobs[worker.job].ledger.slowest() + self.lead:
            return
        behind = record.replayed < record.last
        cursor = bytes([0, 255, record.ticked % 256])
        self.say(
            Kind.TICK,
            worker,
            clock=record.ticked + 1,
            prev=record.last,
            settled=behind,
            text=cursor,
        )

    def err(self) -> None:
        """What is refused, or does less than it says."""
        worker, record = self.worker()
        keys, values = np.array([1], np.uint64), np.ones(1, np.float32)
        clock, n, table = record.ticked + 1, record.last + 1, self.table_of(worker.job)
        push = Command(Kind.PUSH, worker, clock, n, n - 1, table, keys=keys, values=values)
        change = dataclasses.replace
        self.waiting.append(
            self.one_of(
                (
                    change(push, n=n + 5, prev=n + 3),
                    change(push, clock=clock + 1),
                    change(push, table=9999),
                    change(push, values=np.ones(3, np.int64)),
                    change(push, worker=worker._replace(incarnation=0)),
                    change(push, worker=worker._replace(rank=77)),
                    change(push, kind=Kind.TUNE, rate=-1.0),
                    change(push, kind=Kind.TICK, clock=clock + 3),
                    change(push, kind=Kind.TICK, text=b"x" * 5000),
                    change(push, kind=Kind.FENCE, worker=worker._replace(job=12345)),
                    change(push, kind=Kind.OPEN_TABLE, text=b"nonsense"),
                    change(push, kind=Kind.OPEN_JOB, text=b"{}"),
                    change(push, kind=Kind.PULL),
                )
            )
        )

    # -- processes come and go

    def take_over(self) -> None:
        worker, record = self.worker()
        self.say(Kind.FENCE, worker._replace(incarnation=record.incarnation + 1))

    def redo(self) -> None:
        worker, record = self.worker()
        if self.shard.jobs[worker.job].ledger.buffers:
            self.say(Kind.REDO, worker, clock=record.ticked + 1)
            self.sent[worker.job, worker.rank] = []

    def join(self) -> None:
        worker, _ = self.worker()
        ledger = self.shard.jobs[worker.job].ledger
        rank = int(self.rng.integers(5))
        incarnation = ledger.ranks[rank].incarnation + 1 if rank in ledger.ranks else 1
        self.say(Kind.JOIN, WorkerId(worker.job, rank, 0), n=ledger.intent + 1)
        self.say(Kind.FENCE, WorkerId(worker.job, rank, incarnation))

    def leave(self) -> None:
        worker, _ = self.worker()
        ledger = self.shard.jobs[worker.job].ledger
        if len(ledger.live_ranks()) > 1:
            self.say(Kind.LEAVE, worker, n=ledger.intent + 1)

    # -- cuts

    def cut(self) -> None:
        """Mostly above what is here; now and then a repeat."""
        cuts = self.shard.cuts
        if cuts.cut is not None and self.rng.random() < 0.1:
            self.say(Kind.CUT, n=cuts.number, text=cuts.cut.to_json().encode())
            return
        clocks = []
        for number, job in sorted(self.shard.jobs.items()):
            clock = job.ledger.furthest() + int(self.rng.integers(-1, 4))
            clocks.append((number, max(0, clock)))
        if self.rng.random() < 0.2:
            clocks.append((self.numbers + 1, 2))  # a job that will be opened
        hold = bool(self.rng.random() < 0.3)
        number = cuts.number + int(self.rng.integers(1, 3))
        cut = Cut(number, tuple(clocks), self.by, hold)
        self.say(Kind.CUT, n=number, text=cut.to_json().encode())

    # -- quotas

    def quota(self) -> None:
        """A round, as the primary writes it down; now and then one that is over."""
        quotas, size = self.shard.quotas, Size(int(self.rng.integers(1_000)), WITHOUT_END)
        number = quotas.round + int(self.rng.integers(0, 3))
        if not quotas.given and self.rng.random() < 0.7:
            given = Given(size, Size(3, 50), {0: Size(4, 0)}, {0: Size(9, 9)})
            said = Give((given,) * len(quotas.by_path)).to_json()
        else:
            paths = [path for path in ("a", "a/b", "c") if self.rng.random() < 0.6]
            used = tuple(Size(int(self.rng.integers(900)), 50) for _ in paths)
            said = Settle(dict.fromkeys(paths, size), used).to_json()
        self.say(Kind.QUOTA, clock=number, text=said)

    def abort(self) -> None:
        number = self.shard.cuts.number + int(self.rng.integers(0, 2))
        self.say(Kind.ABORT, n=max(1, number))

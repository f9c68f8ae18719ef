"""A bank: orders of transfers between accounts on different shards, each to be carried out once.

Every rank has a list of orders, and carries out `ORDERS_PER_CLOCK` of them in a clock: one push per
order takes an amount from one account and gives it to another one, which mostly lies on another
shard; another push counts the order in a table of its own. The tick's cursor says how many orders
are done, and a process goes on behind the cursor, whatever the clock. So however often the cluster
goes back to a checkpoint: in every checkpoint, and in the end, the total is what it was, and every
order up to the cursor counts 1.

In whole numbers, and the program is repeatable: what a clock covers depends on the cursor before,
which depends on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from resilient_ps.chaos.checkers.cuts import Content, check_content
from resilient_ps.chaos.checkers.sessions import check_views
from resilient_ps.chaos.checkers.verdict import HOLDS, Verdict, judge
from resilient_ps.chaos.sim.archive import Archive
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import Pull, Push, SimWorker, Tick, Wait
from resilient_ps.chaos.workloads.crew import Crew, Prepared, Running
from resilient_ps.chaos.workloads.journal import Journal, Noted
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.survival import judge_survival
from resilient_ps.consistency import Consistency, JobSpec
from resilient_ps.hashing import mix64
from resilient_ps.messages import Keys
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

RANKS = 3
CLOCKS = 20
ORDERS_PER_CLOCK = 3
ORDERS = CLOCKS * ORDERS_PER_CLOCK  # of each rank
ACCOUNTS = 16
AMOUNT_MOST = 1_000
PACE = Pace(1_100_000_000)
PATIENCE_NS = 300 * 10**9
ACCOUNTS_TABLE, ORDERS_TABLE = 1, 2
JOB = 1


class Order(NamedTuple):
    """`amount` goes from one account to another one."""

    source: int
    target: int
    amount: int


def order_of(rank: int, number: int) -> Order:
    """One of a rank's orders, by its number from 0."""
    drawn = mix64(rank * ORDERS + number + 1)
    source = drawn % ACCOUNTS
    target = (source + 1 + (drawn >> 16) % (ACCOUNTS - 1)) % ACCOUNTS
    return Order(source, target, 1 + (drawn >> 32) % AMOUNT_MOST)


def order_key(rank: int, number: int) -> int:
    """Where an order is counted."""
    return rank * ORDERS + number


def balances(done: Mapping[int, int]) -> Content:
    """What both tables hold when each rank has done so many orders; what holds 0 is left out."""
    accounts: dict[int, int] = {}
    orders: dict[int, int] = {}
    for rank, count in done.items():
        for number in range(count):
            order = order_of(rank, number)
            accounts[order.source] = accounts.get(order.source, 0) - order.amount
            accounts[order.target] = accounts.get(order.target, 0) + order.amount
            orders[order_key(rank, number)] = 1
    held = {key: amount for key, amount in accounts.items() if amount}
    return {ACCOUNTS_TABLE: held, ORDERS_TABLE: orders}


class Transfers:
    """The workload: three ranks carry out all their orders, then stop."""

    name = "transfers"
    ranks = tuple(range(RANKS))

    def __init__(
        self, mode: Consistency, prepared: Prepared | None = None, *, pace: Pace = PACE
    ) -> None:
        self.mode = mode
        self.journal = Journal(PATIENCE_NS)
        self._prepared = prepared
        self._hurry = False
        self._pace = pace

    def prepare(self, cluster: SimCluster) -> None:
        """Create tables and job."""
        self._cluster = cluster
        specs = {
            ACCOUNTS_TABLE: SparseSpec("accounts", 1, "int64", Sum()),
            ORDERS_TABLE: SparseSpec("orders", 1, "int64", Sum()),
        }
        self._accounts, self._orders = tables = cluster.create_tables(specs)
        job = JobSpec(JOB, "transfers", RANKS, self.mode)
        cluster.enter(job, tables)
        self.crew = Crew(cluster, job, self._program, self.journal.history, tables=tuple(tables))
        if self._prepared is not None:
            self.crew.prepared = self._prepared

    def start(self) -> None:
        """The first process of every rank."""
        self._start_ns = self._cluster.world.now_ns
        for rank in self.ranks:
            self.crew.spawn(rank)
        self.crew.watch()

    def worker(self, rank: int) -> SimWorker:
        """The rank's present process."""
        return self.crew.present(rank)

    def respawn(self, rank: int) -> None:
        """A new process takes the rank over."""
        self.crew.respawn(rank)

    def stop(self) -> None:
        """Carry out the rest of the orders without waiting."""
        self._hurry = True

    @property
    def finished(self) -> bool:
        """Has everybody ended, and been told of all rollbacks?"""
        return all(self.crew.over(rank) for rank in self.ranks)

    def acknowledged(self, rank: int) -> int:
        """How many pushes of the rank were acknowledged."""
        return self.journal.acknowledged.get(rank, 0)

    # -- the program

    def _program(self, worker: SimWorker) -> Running:
        while (done := int(worker.cursor or 0)) < ORDERS:
            clock = worker.clock
            yield from self._rest(worker, clock, 0.0)
            yield from self._look(worker)
            yield from self._rest(worker, clock, 0.5)
            numbers = range(done, done + ORDERS_PER_CLOCK)
            pushes = [self._transfer(worker.rank, number) for number in numbers]
            yield from self.journal.do(worker, *pushes, self._count(worker.rank, numbers))
            yield from self._rest(worker, clock, 1.0)
            cursor = str(done + ORDERS_PER_CLOCK).encode()
            yield from self.journal.do(worker, Noted("tick", Tick(cursor)))

    def _look(self, worker: SimWorker) -> Running:
        pull = Pull(self._accounts, _accounts())
        yield from self.journal.do(worker, Noted("pull", pull, "accounts"))

    def _transfer(self, rank: int, number: int) -> Noted:
        order = order_of(rank, number)
        keys = np.array([order.source, order.target], np.uint64)
        amounts = np.array([[-order.amount], [order.amount]], np.int64)
        return Noted("push", Push(self._accounts, keys, amounts), "accounts")

    def _count(self, rank: int, numbers: range) -> Noted:
        keys = np.array([order_key(rank, number) for number in numbers], np.uint64)
        push = Push(self._orders, keys, np.ones((len(keys), 1), np.int64))
        return Noted("push", push, "orders", tuple(keys.tolist()))

    def _rest(self, worker: SimWorker, clock: int, part: float) -> Running:
        due_ns = self._start_ns + self._pace.due_ns(worker.rank, clock, part)
        if due_ns > worker.world.now_ns and not self._hurry:
            yield Wait(due_ns - worker.world.now_ns)

    # -- the verdicts

    def content(self, ticked: Mapping[int, int]) -> Content:
        """What both tables hold when ranks have ticked these clocks, and pushed nothing since."""
        return balances({rank: ORDERS_PER_CLOCK * clock for rank, clock in ticked.items()})

    def judge(self, run: RunRecord) -> list[Finding]:
        """Is everything carried out once, and the total what it was?"""
        self.crew.close_history()
        errors = self.crew.errors()
        findings = [
            Finding("no worker fails", judge(errors, checked=RANKS, what="workers")),
            Finding("every order is carried out once", self._final(run)),
            Finding("positions only grow", check_views(self.journal.history)),
        ]
        archive = self._cluster.archive
        if archive is None:
            return findings
        return [
            *findings,
            Finding("a checkpoint is a consistent cut", self._cuts(archive)),
            *judge_survival(self.crew, archive),
        ]

    def _cuts(self, archive: Archive) -> Verdict:
        """Every checkpoint holds exactly what its ranks have done; none is no violation."""
        compared = {
            f"checkpoint {stored.id}": (stored.rows, self.content(stored.ticked(JOB)))
            for stored in archive.stored.values()
        }
        return check_content(compared, balanced=ACCOUNTS_TABLE) if compared else HOLDS

    def _final(self, run: RunRecord) -> Verdict:
        if run.lost_shards or not run.healed:
            return Verdict("unknown", ("the cluster has not come to rest",))
        orders = np.arange(RANKS * ORDERS, dtype=np.uint64)
        held = {
            ACCOUNTS_TABLE: _by_key(_accounts(), self._cluster.read(self._accounts, _accounts())),
            ORDERS_TABLE: _by_key(orders, self._cluster.read(self._orders, orders)),
        }
        return check_content(
            {"in the end": (held, self.content(dict.fromkeys(self.ranks, CLOCKS)))},
            balanced=ACCOUNTS_TABLE,
        )


def _accounts() -> Keys:
    return np.arange(ACCOUNTS, dtype=np.uint64)


def _by_key(keys: Keys, rows: Any) -> dict[int, int]:
    """The rows that are not 0."""
    pairs = zip(keys.tolist(), rows[:, 0].tolist(), strict=True)
    return {key: value for key, value in pairs if value}

"""Runs the cases: in every round the raw limit and our rate, one right after the other.

Machines drift, so what is judged is the ratio of the two within a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from resilient_ps.cli.bench.cases import (
    Case,
    Load,
    SparseShape,
    fill,
    open_dense,
    open_sparse,
)
from resilient_ps.cli.bench.load import LoadProcess
from resilient_ps.cli.bench.raw import RawPeer
from resilient_ps.client.connection import Client, connect
from resilient_ps.client.launch import RunningCluster, local_cluster

DEADLINE_S = 120.0
OnRow = Callable[["Row"], None]


@dataclass(slots=True)
class Row:
    """What was measured of one case: a value per round."""

    case: Case
    transport: str
    servers: int
    workers: int
    rates: list[float] = field(default_factory=list)  # rows or bytes per second
    ratios: list[float] = field(default_factory=list)  # to the raw one-way rate, in wire bytes
    latencies_s: list[float] = field(default_factory=list)  # of one request
    round_trips: list[float] = field(default_factory=list)  # latency in raw round trips

    @property
    def ratio(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool | None:
        """Are the bars reached? None: there is none. They are for one server and worker on TCP."""
        verdicts: list[bool] = []
        if (self.transport, self.servers, self.workers) != ("tcp", 1, 1):
            return None
        if self.case.bar is not None:
            verdicts.append(self.ratio >= self.case.bar)
        if self.case.bar_round_trips is not None:
            verdicts.append(statistics.median(self.round_trips) <= self.case.bar_round_trips)
        return all(verdicts) if verdicts else None


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tables are made, and which cases run on them."""

    dense_mib: tuple[int, ...]
    shapes: tuple[SparseShape, ...]
    cases: tuple[Case, ...]
    rounds: int
    transports: tuple[str, ...]


@contextmanager
def prepared(
    plan: Plan, servers: int, say: Callable[[str], None], *, replicas: int = 1
) -> Iterator[RunningCluster]:
    """A cluster whose tables are filled."""
    with local_cluster(servers, name=f"bench-{replicas}", replicas=replicas) as cluster:
        with cluster.connect(DEADLINE_S) as client, client.worker("fill", 0, 1, "asp") as worker:
            for mib in plan.dense_mib:
                open_dense(worker, mib)
            for shape in plan.shapes:
                say(f"filling {shape.name}: {shape.rows:,} rows of {shape.dim}")
                fill(open_sparse(worker, shape), shape)
        with cluster.connect(DEADLINE_S) as client:
            client.end_job("fill", "done")
        yield cluster


def run_single(
    plan: Plan, servers: int, raw: RawPeer, say: Callable[[str], None], on_row: OnRow
) -> None:
    """One worker, in this process."""
    with prepared(plan, servers, say) as cluster:
        for transport in plan.transports:
            with client_of(cluster, transport) as client:
                job = f"measure-{transport}"
                with client.worker(job, 0, 1, "asp") as worker:
                    for case in plan.cases:
                        say(f"{case.name} {case.action} ({transport})")
                        load = Load(case, worker.table(case.table), rows_of(plan, case), seed=1)
                        row = Row(case, transport, servers, 1)
                        _measure(row, load, raw, plan.rounds)
                        on_row(row)
                client.end_job(job, "done")


def run_several(
    plan: Plan,
    servers: int,
    workers: int,
    raw: RawPeer,
    say: Callable[[str], None],
    on_row: OnRow,
) -> None:
    """Several workers, each a process of its own, all at the same time."""
    with prepared(plan, servers, say) as cluster, cluster.connect(DEADLINE_S) as client:
        for number, case in enumerate(plan.cases):
            say(f"{case.name} {case.action} ({servers} servers, {workers} workers)")
            row = Row(case, "unix", servers, workers)
            job = f"load-{number}"  # each case is a job of its own: its pushes are other ones
            with ExitStack() as stack:
                loads = []
                for rank in range(workers):
                    rows = rows_of(plan, case)
                    load = LoadProcess(cluster.etcd, cluster.name, job, case, rows, rank, workers)
                    stack.callback(load.close)
                    loads.append(load)
                _measure_several(row, loads, raw, plan.rounds)
            client.end_job(job, "done")
            on_row(row)


def _measure(row: Row, load: Load, raw: RawPeer, rounds: int) -> None:
    case = row.case
    load.run()
    for _ in range(rounds):
        limit = raw.one_way_bytes_per_s(row.transport)
        trip_s = raw.round_trip_s(row.transport)
        seconds = load.run()
        row.rates.append(case.amount * case.times / seconds)
        row.ratios.append(case.wire_bytes * case.times / seconds / limit)
        row.latencies_s.append(seconds / case.times)
        row.round_trips.append(seconds / case.times / trip_s)


def _measure_several(row: Row, loads: list[LoadProcess], raw: RawPeer, rounds: int) -> None:
    case = row.case
    for _ in range(rounds):
        limit = raw.one_way_bytes_per_s(row.transport)
        trip_s = raw.round_trip_s(row.transport)
        for load in loads:
            load.begin()
        seconds = [load.seconds() for load in loads]
        per_s = sum(case.times / taken for taken in seconds)
        row.rates.append(case.amount * per_s)
        row.ratios.append(case.wire_bytes * per_s / limit)
        row.latencies_s.append(statistics.mean(seconds) / case.times)
        row.round_trips.append(row.latencies_s[-1] / trip_s)


def client_of(cluster: RunningCluster, transport: str) -> Client:
    """A client that uses this transport only."""
    return connect(
        cluster.etcd, cluster.name, deadline_s=DEADLINE_S, unix_sockets=transport == "unix"
    )


def rows_of(plan: Plan, case: Case) -> int:
    """How many rows the case's table has; 0 for a dense one."""
    return next((shape.rows for shape in plan.shapes if shape.name == case.table), 0)

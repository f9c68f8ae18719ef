"""A connection to a cluster: tables to read, and workers to train with."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.heartbeat import Heartbeat
from resilient_ps.client.holding import LEASE_TTL_S
from resilient_ps.client.namespaces import Namespace, opened
from resilient_ps.client.opening import announce_table, bind, broadcast
from resilient_ps.client.receipts import Receipts, receipts_of
from resilient_ps.client.resuming import PATIENCE_S
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.client.tasks import Tasks as HeldTasks
from resilient_ps.client.waiting import wait_for_cluster
from resilient_ps.client.worker import Worker
from resilient_ps.consistency import Consistency, JobSpec, Tasks, parse_consistency
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput, NotFound, RolledBack
from resilient_ps.ids import WorkerId
from resilient_ps.messages import PROTOCOL, Hello, Kind
from resilient_ps.noted_calls import NotedCalls
from resilient_ps.routing import Routing
from resilient_ps.runtime.driver import Driver, deadline_after
from resilient_ps.session import Session
from resilient_ps.takeover import Step

DEFAULT_ETCD = "127.0.0.1:2379"
DEFAULT_CLUSTER = "default"

# What a program finds that a launcher started: where its cluster is, and which rank it is to be.
ETCD_VARIABLE = "RESILIENT_PS_ETCD"
CLUSTER_VARIABLE = "RESILIENT_PS_CLUSTER"
RANK_VARIABLE = "RESILIENT_PS_RANK"
RANKS_VARIABLE = "RESILIENT_PS_RANKS"

__all__ = ["Client", "connect", "wait_for_cluster"]


class Client:
    """A client of one cluster. Close it, or use it in a `with`."""

    def __init__(
        self, kv: Kv, cluster: str, deadline_s: float = 30.0, *, unix_sockets: bool = True
    ) -> None:
        self.cluster = cluster
        self._kv = kv
        self._unix_sockets = unix_sockets
        self._deadline_s = deadline_s
        self.catalogue = Catalogue(kv, cluster, deadline_s)
        self._driver = self._new_driver("reader", wait_for_cluster(kv, cluster, deadline_s))
        self._tables: dict[str, SparseTable | DenseTable] = {}

    def worker(
        self,
        job: str,
        rank: int | None = None,
        of: int | None = None,
        consistency: Consistency | str = "bsp",
        *,
        evict_after_s: float | None = None,
    ) -> Worker:
        """Run one rank of a job, taking it over from whatever process ran it before.

        `rank` and `of`: by default what RESILIENT_PS_RANK and RESILIENT_PS_RANKS say.
        `job` is created by the first worker; all give the same `of` (number of ranks),
        `consistency` (BSP(), SSP(staleness), ASP(), or "bsp", "ssp:3", "asp") and `evict_after_s`:
        seconds (3 or more) without a sign of life of a rank's process after which the coordinator
        takes the rank out of the job, so that nobody waits for it; None: it is waited for. Under
        BSP an eviction changes the result: it is no longer that of an undisturbed run. Raises
        `SpecMismatch` where they do not, `BadInput` for a rank outside 0 .. of-1 that has not
        joined.
        """
        rank = _from_environment("rank", RANK_VARIABLE) if rank is None else rank
        of = _from_environment("of", RANKS_VARIABLE) if of is None else of
        mode = parse_consistency(consistency) if isinstance(consistency, str) else consistency
        if not isinstance(mode, Consistency):
            raise BadInput(f"consistency {mode!r}: give BSP(), SSP(staleness=3), ASP() or its name")
        if isinstance(mode, Tasks):
            raise BadInput("consistency 'tasks' is that of graphs: use client.tasks(graph)")
        if not isinstance(rank, int) or rank < 0:
            raise BadInput(f"rank {rank}: ranks are numbered from 0 to of - 1 = {of - 1}")
        spec = self.catalogue.open_job(job, of, mode, evict_after_s)
        incarnation = self.catalogue.draw_incarnation(job, rank)
        heartbeat = Heartbeat(self._kv, self.cluster, job=job, rank=rank, incarnation=incarnation)
        heartbeat.start()  # a takeover may take a while
        try:
            driver = self._open_worker(spec, WorkerId(spec.job, rank, incarnation))
        except BaseException:
            heartbeat.ask_to_stop()
            raise
        return Worker(driver, self.catalogue, spec, self._deadline_s, heartbeat, evict_after_s)

    def _open_worker(self, spec: JobSpec, worker: WorkerId) -> Driver:
        until_ns = deadline_after(self._deadline_s)
        receipts = receipts_of(worker.rank)
        driver = self._new_driver(f"worker {spec.name}/{worker.rank}", self.routing(), receipts)
        op = driver.next_op()
        with driver.lock:
            driver.perform(driver.session.open_worker(op, spec, worker, time.monotonic_ns()))
            outcome = driver.wait(op, until_ns)
        if outcome.error is None:
            return driver
        driver.close()
        if isinstance(outcome.error, RolledBack) and time.monotonic_ns() < until_ns:
            return self._open_worker(spec, worker)  # it has seen nothing of the incarnation before
        raise outcome.error

    def tasks(
        self,
        graph: Graph,
        namespaces: Collection[str] | None = None,
        *,
        deadline_s: float = PATIENCE_S,
        lease_ttl_s: int = LEASE_TTL_S,
    ) -> HeldTasks:
        """Do tasks of a graph, in turn with all other processes that do.

        The graph is created by the first, and found by the others: all describe it alike.
        `namespaces`: do tasks of these only; None: of all. `deadline_s`: how long `Tasks.next`
        waits for one at most. `lease_ttl_s`: whole seconds (1 to 3,600) after which the task of a
        process that shows no sign of life is granted to another one. Raises `BadInput` for a
        graph that cannot be run, and a namespace that it does not have, `SpecMismatch` where the
        name is that of another graph or job.
        """
        graph.check()
        who = f"holder of {graph.name}"
        driver = self._new_driver(who, self.routing(), receipts_of(0))
        try:
            return HeldTasks(
                driver,
                self.catalogue,
                graph,
                namespaces,
                call_s=self._deadline_s,
                deadline_s=deadline_s,
                lease_ttl_s=lease_ttl_s,
            )
        except BaseException:
            driver.close()
            raise

    def join(self, job: str, rank: int) -> Worker:
        """Add a rank to a running job, and run it: it starts at the lowest clock that is safe."""
        record = self.catalogue.job(job)
        self.catalogue.propose("join", job, rank)
        mode = parse_consistency(record.consistency)
        return self.worker(job, rank, record.ranks, mode, evict_after_s=record.evict_after_s)

    def namespace(
        self, path: str, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> Namespace:
        """The namespace of this name (`ctr/emb`): registered, or found with the same quota.

        `rows_max`, `bytes_max`: what all tables in it and below it may hold together, on all
        shards; without both it is found as it is. All shards know the quota when this returns.
        Raises `SpecMismatch` where it has another quota, `BadInput` for other names than letters,
        digits and . _ : - between slashes.
        """
        catalogue = self.catalogue
        return opened(path, catalogue.scopes, lambda: [*catalogue.tables()], rows_max, bytes_max)

    def remove_namespace(self, path: str) -> list[str]:
        """Remove all tables in a namespace and below it, and its quota; gives the tables' names.

        May be called again after it was interrupted.
        """
        scopes = self.catalogue.scopes
        names = scopes.strip(path, lambda number: self._broadcast(Kind.DROP_TABLE, table=number))
        scopes.forget(path)
        return names

    def table(self, name: str) -> SparseTable | DenseTable:
        """A table to read. Raises `NotFound`."""
        handle = self.catalogue.table(name)
        if handle is None:
            names = ", ".join(self.catalogue.tables()) or "-"
            raise NotFound(f"there is no table {name!r}; tables: {names}")
        announce_table(self._driver, handle, self._deadline_s)
        self._tables[name] = bind(handle, self._driver, self._deadline_s, writable=False)
        return self._tables[name]

    def resume(self) -> None:
        """Go on reading after `RolledBack`: tables that this client has opened show what is now.

        Raises `Unavailable` when the cluster is not complete by the deadline, `NotFound` for a
        table that is no longer there.
        """
        driver = self._driver
        with driver.lock:
            before = driver.session.routing.incarnation
            told = isinstance(driver.session.broken, RolledBack)
            if not told and self.catalogue.incarnation() <= before:
                return
            routing = wait_for_cluster(self._kv, self.cluster, self._deadline_s, after=before)
            op, me = driver.next_op(), driver.session.worker
            driver.perform(driver.session.resume(op, routing, me, time.monotonic_ns()))
            driver.take(op)
        for name, table in self._tables.items():
            handle = self.catalogue.table(name)
            if handle is None:
                raise NotFound(f"there is no table {name!r} in what the cluster went back to")
            announce_table(driver, handle, self._deadline_s)
            table.rebind(handle)

    def drop_table(self, name: str) -> None:
        """Forget a table and everything in it. Raises `NotFound`."""
        handle = self.catalogue.drop_table(name)
        self._broadcast(Kind.DROP_TABLE, table=handle.number)

    def end_job(self, name: str, state: str) -> None:
        """Mark a job `stopped` or `done`: its workers are refused, its tables are free again."""
        record = self.catalogue.set_job_state(name, state)
        self._broadcast(Kind.CLOSE_JOB, job=record.job_id)

    def finish_rank(self, job: str, rank: int, incarnation: int = 0) -> None:
        """This rank has nothing left to do; the last one to say so marks the job as `done`.

        `incarnation`: of the cluster, in which the rank came to its end (`Worker.incarnation`).
        Raises `RolledBack` if it is over: what the rank did last may be undone.
        """
        if self.catalogue.finish_rank(job, rank, incarnation):
            self.end_job(job, "done")

    def remove_job(self, name: str) -> None:
        """Forget a job; tables stay. Its name can be used again. Raises `NotFound`."""
        record = self.catalogue.remove_job(name)
        self._broadcast(Kind.CLOSE_JOB, job=record.job_id)

    def routing(self) -> Routing:
        """Who serves which shard at this moment."""
        return wait_for_cluster(self._kv, self.cluster, self._deadline_s)

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()
        self._kv.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _broadcast(self, kind: Kind, *, table: int = 0, job: int = 0) -> None:
        order = self._driver.session.routing.order
        step = Step(kind, order, WorkerId(job, 0, 0), table=table)
        broadcast(self._driver, step, self._deadline_s)

    def _new_driver(self, what: str, routing: Routing, receipts: Receipts | None = None) -> Driver:
        who = f"{what} pid {os.getpid()} on {os.uname().nodename}"
        if receipts is None:
            session = Session(self.cluster, routing)
        else:
            session = Session(self.cluster, routing, partial(NotedCalls, note=receipts.note))
        hello = Hello(PROTOCOL, self.cluster, who)
        return Driver(session, self._kv, hello, unix_sockets=self._unix_sockets)


def _from_environment(what: str, variable: str) -> int:
    """A number that a launcher has set."""
    text = os.environ.get(variable, "")
    if not (text.isascii() and text.isdigit()):
        raise BadInput(f"give {what}=..., or set {variable} to a number (it is {text!r})")
    return int(text)


def connect(
    etcd: str | Sequence[str] | None = None,
    cluster: str | None = None,
    *,
    deadline_s: float = 30.0,
    unix_sockets: bool = True,
    **etcd_options: Any,
) -> Client:
    """Connect to a cluster through etcd.

    `etcd`: one or several endpoints ("10.0.0.1:2379,10.0.0.2:2379"); by default what
    RESILIENT_PS_ETCD says, else 127.0.0.1:2379. `cluster`: its name; by default what
    RESILIENT_PS_CLUSTER says, else "default".
    `deadline_s`: how long any call may take, this one included. `unix_sockets`: use a server's Unix
    socket where it is on this machine. `etcd_options`: ca, cert, key, user, password. Raises
    `Unavailable` when etcd cannot be reached, `NotFound` when there is no such cluster.
    """
    kv = EtcdKv(etcd or os.environ.get(ETCD_VARIABLE) or DEFAULT_ETCD, **etcd_options)
    cluster = cluster or os.environ.get(CLUSTER_VARIABLE) or DEFAULT_CLUSTER
    try:
        return Client(kv, cluster, deadline_s, unix_sockets=unix_sockets)
    except BaseException:
        kv.close()
        raise

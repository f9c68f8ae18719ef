"""Graphs as they are registered in etcd: each with the job whose ranks are its lanes."""

from __future__ import annotations

import time

from resilient_ps.client.catalogue import POLL_S, Catalogue
from resilient_ps.consistency import JobSpec, Tasks
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.intents import job_spec
from resilient_ps.coordinator.kv import KeyValue, Put, Txn, unchanged
from resilient_ps.coordinator.task_records import GraphRecord
from resilient_ps.errors import DeadlineExceeded, Reopen, RetryLater, SpecMismatch


def find_graph(catalogue: Catalogue, name: str) -> GraphRecord | None:
    """What is registered under this name; None where nothing is, or it was removed."""
    return _found(catalogue, name)[0]


def open_graph(catalogue: Catalogue, graph: Graph) -> JobSpec:
    """The job of this graph; both are created, or found with the same description.

    A graph that is over is found, too. Raises `SpecMismatch` where the name is that of another
    graph or job, `Reopen` for the job of one that was removed, and `RetryLater` where etcd does
    not answer for too long.
    """
    end_s = time.monotonic() + catalogue.deadline_s
    late: RetryLater = DeadlineExceeded(f"graph {graph.name!r} changes all the time: try again")
    while True:
        try:
            job = _open(catalogue, graph)
        except RetryLater as error:  # what was written is found at the next try
            job, late = None, error
        if job is not None:
            return job
        if time.monotonic() >= end_s:
            raise late
        time.sleep(POLL_S)


def _open(catalogue: Catalogue, graph: Graph) -> JobSpec | None:
    """One try; None where others have changed the same keys."""
    record, item = _found(catalogue, graph.name)
    if record is not None:
        _check_same(record, graph)
        if record.state == "done":
            return job_spec(catalogue.job(graph.name))
    try:
        job = catalogue.open_job(graph.name, graph.lanes_total, Tasks())
    except Reopen:
        if _found(catalogue, graph.name)[1] == item:
            raise
        return None  # the graph has been done in this moment
    if record is not None and record.job_id == job.job:
        return job
    return job if _register(catalogue, graph, job, item) else None


def _register(catalogue: Catalogue, graph: Graph, job: JobSpec, found: KeyValue | None) -> bool:
    """Name the job in the graph's record; where there is one, its job was created anew."""
    kv, keys = catalogue.kv, catalogue.keys
    items = kv.read(keys.job(graph.name), deadline_s=catalogue.call_deadline_s).items
    if not items:
        return False
    record = GraphRecord(job.job, graph.to_json(), "running")
    same = unchanged(keys.graph(graph.name), 0 if found is None else found.mod_revision)
    guards = (same, unchanged(items[0].key, items[0].mod_revision))
    return kv.txn(Txn(guards, (Put(keys.graph(graph.name), record.to_bytes()),))).succeeded


def _found(catalogue: Catalogue, name: str) -> tuple[GraphRecord | None, KeyValue | None]:
    key = catalogue.keys.graph(name)
    items = catalogue.kv.read(key, deadline_s=catalogue.call_deadline_s).items
    if not items:
        return None, None
    record = GraphRecord.from_bytes(items[0].value, key)
    return (None if record.state == "removed" else record), items[0]


def _check_same(record: GraphRecord, graph: Graph) -> None:
    if record.graph_json != graph.to_json():
        raise SpecMismatch(
            f"graph {graph.name!r} exists as {record.graph_json}; asked for was "
            f"{graph.to_json()}. Use another name, or remove it: "
            f"`resilient-ps job rm {graph.name}`"
        )

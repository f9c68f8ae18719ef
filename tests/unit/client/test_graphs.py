"""Graphs are registered once, with a job of the same name, and never mixed up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.graphs import find_graph, open_graph
from resilient_ps.consistency import BSP, Tasks
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import Reopen, SpecMismatch


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(MemoryClient(MemoryKv()), "prod", deadline_s=1.0)


def graph(name: str = "g", steps: int = 3) -> Graph:
    made = Graph(name, steps)
    made.add("a", width=2)
    made.add("b")
    return made


def mark(catalogue: Catalogue, state: str) -> None:
    record = find_graph(catalogue, "g")
    assert record is not None
    changed = replace(record, state=state)  # type: ignore[arg-type]
    catalogue.kv.txn(Txn((), (Put(catalogue.keys.graph("g"), changed.to_bytes()),)))


def test_its_lanes_are_the_ranks_of_a_job_of_its_name(catalogue: Catalogue) -> None:
    job = open_graph(catalogue, graph())
    assert (job.name, job.ranks, job.consistency) == ("g", 3, Tasks())
    record = find_graph(catalogue, "g")
    assert record is not None
    assert (record.job_id, record.state) == (job.job, "running")
    assert record.graph.to_json() == graph().to_json()
    assert open_graph(catalogue, graph()) == job


def test_another_description_is_refused_and_both_are_shown(catalogue: Catalogue) -> None:
    open_graph(catalogue, graph(steps=3))
    with pytest.raises(SpecMismatch, match=r'"steps":3.*"steps":4.*resilient-ps job rm g'):
        open_graph(catalogue, graph(steps=4))


def test_a_job_of_another_kind_keeps_the_name(catalogue: Catalogue) -> None:
    catalogue.open_job("g", 3, BSP())
    with pytest.raises(SpecMismatch, match="bsp"):
        open_graph(catalogue, graph())
    assert find_graph(catalogue, "g") is None


def test_a_graph_that_is_done_is_found_with_its_job(catalogue: Catalogue) -> None:
    job = open_graph(catalogue, graph())
    catalogue.set_job_state("g", "done")
    with pytest.raises(Reopen):
        open_graph(catalogue, graph())  # the coordinator marks the graph first
    mark(catalogue, "done")
    assert open_graph(catalogue, graph()) == job


def test_a_job_that_was_made_anew_is_the_graphs(catalogue: Catalogue) -> None:
    before = open_graph(catalogue, graph())
    record = find_graph(catalogue, "g")
    assert record is not None
    catalogue.remove_job("g")
    assert find_graph(catalogue, "g") is None
    catalogue.kv.txn(Txn((), (Put(catalogue.keys.graph("g"), record.to_bytes()),)))
    after = open_graph(catalogue, graph())
    assert after.job > before.job
    found = find_graph(catalogue, "g")
    assert found is not None
    assert found.job_id == after.job

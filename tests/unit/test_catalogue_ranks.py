"""When all ranks of a job have come to their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.consistency import ASP
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import DeadlineExceeded, RolledBack


@pytest.fixture
def catalogue() -> Catalogue:
    catalogue = Catalogue(MemoryClient(MemoryKv()), "prod", deadline_s=1.0)
    catalogue.open_job("job", 2, ASP())
    return catalogue


def test_a_job_is_finished_when_the_last_of_its_ranks_is(catalogue: Catalogue) -> None:
    catalogue.draw_incarnation("job", 0)
    assert not catalogue.finish_rank("job", 0)  # rank 1 has not begun
    catalogue.draw_incarnation("job", 1)
    assert not catalogue.finish_rank("job", 0)
    assert catalogue.finish_rank("job", 1)
    assert catalogue.finish_rank("job", 0)  # said twice


def test_a_rank_that_runs_again_has_not_finished(catalogue: Catalogue) -> None:
    for rank in (0, 1):
        catalogue.draw_incarnation("job", rank)
    catalogue.finish_rank("job", 0)
    catalogue.draw_incarnation("job", 0)
    assert not catalogue.finish_rank("job", 1)
    assert catalogue.finish_rank("job", 0)


def test_ranks_that_joined_are_waited_for(catalogue: Catalogue) -> None:
    for rank in (0, 1, 7):
        catalogue.draw_incarnation("job", rank)
    assert not catalogue.finish_rank("job", 0)
    assert not catalogue.finish_rank("job", 1)
    assert catalogue.finish_rank("job", 7)


def test_nothing_is_remembered_of_a_job_that_was_removed(catalogue: Catalogue) -> None:
    for rank in (0, 1):
        catalogue.draw_incarnation("job", rank)
        catalogue.finish_rank("job", rank)
    catalogue.remove_job("job")
    assert not catalogue.finish_rank("job", 0)
    catalogue.open_job("job", 2, ASP())
    catalogue.draw_incarnation("job", 0)
    assert not catalogue.finish_rank("job", 0)


def test_jobs_whose_names_begin_alike_do_not_mix(catalogue: Catalogue) -> None:
    catalogue.open_job("job.b", 1, ASP())
    catalogue.draw_incarnation("job.b", 0)
    catalogue.draw_incarnation("job", 0)
    catalogue.finish_rank("job", 0)
    catalogue.draw_incarnation("job", 1)
    assert catalogue.finish_rank("job.b", 0)
    assert catalogue.finish_rank("job", 1)


def test_a_rank_leaves_the_incarnation_of_the_cluster_that_it_knows_and_no_other(
    catalogue: Catalogue,
) -> None:
    """After a rollback it has work left again."""
    config = ClusterWishes().config("0" * 32, "a test")
    key = catalogue.keys.config
    catalogue.kv.txn(Txn((), (Put(key, replace(config, incarnation=2).to_bytes()),)))
    catalogue.draw_incarnation("job", 0)
    with pytest.raises(RolledBack, match="incarnation 2"):
        catalogue.propose("leave", "job", 0, 1)
    with pytest.raises(DeadlineExceeded):  # nobody carries it out here
        catalogue.propose("leave", "job", 0, 2)

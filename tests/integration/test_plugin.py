"""The fixtures for users' suites: faults by hand on a small cluster, healed when told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.chaos.live.hurting import Faults
from resilient_ps.chaos.live.under_test import ClusterUnderTest, cluster_under_test
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound, Unavailable

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def chaos_cluster() -> Iterator[ClusterUnderTest]:
    """One for all tests here: `faults` heals it after each of them."""
    with cluster_under_test(servers=2, shards=2) as cluster:
        yield cluster


@pytest.fixture
def push(chaos_cluster: ClusterUnderTest) -> Iterator[Callable[[], float]]:
    """Pushes 64 ones, ticks, and tells how much more is there."""
    with (
        chaos_cluster.connect() as client,
        client.worker("count", rank=0, of=1, consistency=ps.ASP()) as worker,
    ):
        table = worker.dense_table("count", shape=(64,), optimiser=ps.Sum())

        def pushed() -> float:
            before = table.pull()
            table.push(np.ones(64, np.float32))
            worker.tick()
            return float((table.pull() - before).sum())

        yield pushed


def test_a_killed_server_returns_and_no_push_is_lost(
    chaos_cluster: ClusterUnderTest, faults: Faults, push: Callable[[], float]
) -> None:
    first = chaos_cluster.primary(0)
    with faults.kill(first) as strike:
        assert push() == 64.0
        assert chaos_cluster.primary(0) not in ("", first)
    assert strike.struck == (first,)
    assert "SIGKILL" in strike.evidence
    chaos_cluster.wait_settled()
    assert push() == 64.0


def test_the_last_copy_of_a_shard_is_never_killed(
    chaos_cluster: ClusterUnderTest, push: Callable[[], float]
) -> None:
    faults = Faults(chaos_cluster.scene, patience_s=0.2)
    with faults.kill("s1"), pytest.raises(Unavailable, match="s2 holds the last copy of shard"):
        faults.kill("s2")
    chaos_cluster.wait_settled()
    assert push() == 64.0


def test_a_paused_primary_is_replaced_and_comes_back(
    chaos_cluster: ClusterUnderTest, faults: Faults, push: Callable[[], float]
) -> None:
    chaos_cluster.wait_settled()
    strike = faults.pause_primary(shard=1)
    assert push() == 64.0
    faults.heal()
    assert "stopped for" in strike.evidence
    assert push() == 64.0


def test_servers_that_do_not_hear_each_other_lose_nothing(
    chaos_cluster: ClusterUnderTest, faults: Faults, push: Callable[[], float]
) -> None:
    chaos_cluster.wait_settled()
    with faults.partition("s1", "s2") as strike:
        assert push() == 64.0
    assert "pieces held up" in strike.evidence


def test_any_fault_of_the_catalogue_can_be_had(
    chaos_cluster: ClusterUnderTest, faults: Faults, push: Callable[[], float]
) -> None:
    with faults.strike("delay", "s1", how=1):
        assert push() == 64.0


def test_what_cannot_be_struck_is_an_error_that_says_why(faults: Faults) -> None:
    with pytest.raises(BadInput, match="no fault 'explode'"):
        faults.strike("explode", "s1")
    with pytest.raises(NotFound, match="no party 's9'"):
        faults.kill("s9")
    with pytest.raises(NotFound, match="no party 's9'"):
        faults.strike("gil", "s9")
    with pytest.raises(BadInput, match="what this cluster does not have: etcd"):
        faults.strike("kill-etcd", "e0")


def test_a_program_is_run_by_its_ranks_and_its_failure_is_shown(
    chaos_cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, sys, resilient_ps as ps\n"
        "with ps.connect() as client, client.worker(sys.argv[1]) as worker:\n"
        "    print(worker.rank, worker.of, flush=True)\n"
        "    if sys.argv[2] == 'stay': signal.pause()\n"
        "    assert worker.rank == 0, 'only rank 0 ends well'\n"
    )
    job = chaos_cluster.start(program, "a", "end", ranks=2)
    with pytest.raises(Unavailable, match="only rank 0 ends well"):
        job.wait()
    assert [chaos_cluster.logs[name].read_text().count(" 2\n") for name in job.names] == [1, 1]
    slow = chaos_cluster.start(program, "b", "stay")
    with pytest.raises(DeadlineExceeded, match=f"{slow.names[0]} has not ended after 0.1 s"):
        slow.wait(deadline_s=0.1)
    with pytest.raises(NotFound, match="there is no program"):
        chaos_cluster.start(tmp_path / "nothing.py")
    with pytest.raises(BadInput, match="use 1 to"):
        chaos_cluster.start(program, ranks=0)


USERS_TEST = """
import pytest

@pytest.mark.chaos_cluster(servers=1, shards=2)
def test_the_marker_is_closer_than_the_settings(chaos_cluster, faults):
    assert (chaos_cluster.servers, chaos_cluster.shards) == (("s1",), 2)

@pytest.mark.chaos_cluster(machines=1)
def test_a_wrong_option(chaos_cluster):
    pass
"""


@pytest.mark.timeout(300)
def test_a_users_suite_has_the_fixtures_the_marker_and_the_setting(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nchaos_cluster = servers=2 replicas=1\n")
    said = pytest_says(tmp_path)
    assert "1 passed, 1 error" in said, said
    assert "there is no option 'machines'" in said


@pytest.mark.timeout(300)
def test_the_example_passes_in_a_folder_of_its_own(tmp_path: Path) -> None:
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, tmp_path)
    said = pytest_says(tmp_path)
    assert "2 passed" in said, said


def pytest_says(folder: Path) -> str:
    """Runs the tests of a folder as its owner would, who has nothing of ours but the package."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    return run.stdout

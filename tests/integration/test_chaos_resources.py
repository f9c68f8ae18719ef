"""Faults on what a server and its machine have: files, memory, processors, locks, clocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from struck import AtWork, at_work

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.clocks import OFFSETS_S, find_faketime
from resilient_ps.chaos.live.faults.logs import LogTail
from resilient_ps.chaos.live.faults.machine import Memory
from resilient_ps.chaos.live.faults.resources import speak_to
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.programs.ballast import CHUNK_BYTES, free_bytes
from resilient_ps.chaos.live.scene import Skipped

PLAN = ClusterPlan(servers=2, workers=0, replicas=2, etcd=0, store="", shards=2, network=False)


@pytest.fixture(scope="module")
def work() -> Iterator[AtWork]:
    with at_work(PLAN) as working:
        yield working


def test_a_server_that_can_write_to_no_file_serves_and_writes_later(work: AtWork) -> None:
    log = work.scene.party("s1").log
    fault = work.fault("disk-full", "s1")
    with work.struck(fault):
        before = log.stat().st_size
        assert speak_to(work.scene, "s1")  # it would log that
        work.wait_until_all_answer()
        assert log.stat().st_size == before
    assert "had something to say" in fault.evidence()
    tail = LogTail(log)
    assert speak_to(work.scene, "s1")
    assert tail.wait_for("peer refused", 20.0)


def test_a_server_whose_disk_is_full_is_not_struck_twice(work: AtWork) -> None:
    with work.struck(work.fault("disk-full", "s1")):
        second = work.fault("disk-full", "s1")
        with pytest.raises(Skipped, match="another fault"):
            second.inject()
        second.heal()


@pytest.mark.parametrize("kind", ["gil", "loop"])
def test_a_server_hangs_and_says_so(work: AtWork, kind: str) -> None:
    fault = work.strike(kind, "s1", lasts_s=0.6)
    assert "s1 says that it has hung" in fault.evidence()


def test_processors_are_kept_busy_by_processes_that_end(work: AtWork) -> None:
    fault = work.strike("cpu", lasts_s=0.5)
    assert f"{len(os.sched_getaffinity(0))} hogs used" in fault.evidence()
    assert fault.struck == ("machine",)


def test_memory_is_taken_and_given_back(work: AtWork) -> None:
    fault = Memory(work.scene, Planned(0, 0.0, "memory"), most_bytes=4 * CHUNK_BYTES)
    with work.struck(fault):
        work.eventually(lambda: fault.holds_bytes > 4 * CHUNK_BYTES, "memory to be taken")
    assert fault.holds_bytes == 0
    assert "MiB, and wrote to them" in fault.evidence()
    fault.heal()  # again


def test_no_more_memory_is_taken_than_there_is() -> None:
    assert 0 < free_bytes() < 2**50


@pytest.mark.skipif(find_faketime() is None, reason="no libfaketime here")
@pytest.mark.parametrize("how", [OFFSETS_S.index(3600), OFFSETS_S.index(-86_400)])
def test_the_wall_clock_of_a_server_jumps_there_and_back(work: AtWork, how: int) -> None:
    before = work.scene.party("s2").pid
    fault = work.strike("clock-jump", "s2", lasts_s=0.5, how=how)
    assert "s2 wrote" in fault.evidence()
    assert work.scene.party("s2").pid != before
    assert "s2 says that it has hung" in work.strike("loop", "s2", lasts_s=0.3).evidence()
    assert not list(Path("/dev/shm").glob(f"*faketime*_{work.scene.party('s2').pid}"))

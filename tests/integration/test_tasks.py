"""A wavefront of tasks in three processes is the serial order, byte for byte, whoever dies.

4 blocks, 8 parts of the data, 2 epochs; 3 servers, real etcd with 3 members.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crew import CLUSTER, NUMBERS, Hurt, eventually, hurt_cluster
from holders import LEASE_TTL_S, PATIENCE_S, Holder, Holders, holders_of

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.errors import Unavailable
from resilient_ps.guards import ALLOWED_BY

FIRST = (0, 1)
KEYS = ClusterKeys(CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hurt]:
    with hurt_cluster(members=3) as hurt:
        yield hurt


@pytest.fixture
def hurt(cluster: Hurt) -> Hurt:
    """At full strength, whatever the test before has done."""
    for server in cluster.processes.servers:
        if not server.is_alive():
            cluster.processes.restart(server.name)
    cluster.settle()
    return cluster


@pytest.fixture
def holders(hurt: Hurt, tmp_path: Path) -> Iterator[Holders]:
    name = f"wave{next(NUMBERS)}"
    with holders_of(hurt.endpoints, CLUSTER, name, tmp_path) as holders:
        yield holders


def wrongs(hurt: Hurt, holders: Holders) -> list[str]:
    with hurt.connect() as client:
        assert client.catalogue.job(holders.model.name).state == "done"
        return holders.wrongs(client)


def holders_key_is_gone(hurt: Hurt, holders: Holders) -> bool:
    return not hurt.kv.read(KEYS.holders(holders.model.name), prefix=True).items


def test_three_processes_do_together_what_one_would_do(hurt: Hurt, holders: Holders) -> None:
    for _ in range(3):
        holders.start()
    holders.wait_for_end()
    assert wrongs(hurt, holders) == []
    ended = [int(line[1]) for each in holders.all for line in each.wait_to_hear("ended")]
    assert sum(ended) == holders.model.schedule.graph.tasks_total
    assert holders_key_is_gone(hurt, holders)


def test_a_killed_holders_task_is_done_again_from_its_beginning(
    hurt: Hurt, holders: Holders
) -> None:
    victim = holders.start(wait_in=["first"])
    victim.wait_to_hear("waits")
    holders.start()
    holders.start()
    victim.kill()
    holders.wait_for_end()
    assert wrongs(hurt, holders) == []
    with hurt.connect() as client:
        assert holders.signature(client, FIRST) != victim.process.pid


def pause_in_the_middle(holders: Holders) -> tuple[str, Holder, Holder]:
    """What became of the task of a holder that slept for three lease times, and its successor's.

    It has pushed something before, and its successor has, when it goes on and pushes more.
    """
    paused = holders.start(wait_in=["first"])
    paused.wait_to_hear("waits")
    paused.signal(signal.SIGSTOP)
    for _ in range(2):
        holders.start(wait_in=[FIRST])
    successor = holders.hear_waiting(FIRST, but=paused)
    threading.Event().wait(3 * LEASE_TTL_S)
    paused.go_on()
    paused.signal(signal.SIGCONT)
    outcome = paused.outcome(FIRST)
    successor.go_on()
    return outcome, paused, successor


def test_what_a_paused_holder_writes_when_it_goes_on_is_refused(
    hurt: Hurt, holders: Holders
) -> None:
    outcome, paused, successor = pause_in_the_middle(holders)
    assert outcome == "fenced"
    holders.wait_for_end()
    assert wrongs(hurt, holders) == []
    with hurt.connect() as client:
        assert holders.signature(client, FIRST) == successor.process.pid != paused.process.pid


def test_a_holder_that_wakes_up_when_all_is_over_ends_in_peace(
    hurt: Hurt, holders: Holders
) -> None:
    paused = holders.start(wait_in=["first"])
    paused.wait_to_hear("waits")
    paused.signal(signal.SIGSTOP)
    holders.start().wait_for_end()
    paused.go_on()
    paused.signal(signal.SIGCONT)
    paused.wait_for_end()
    assert wrongs(hurt, holders) == []
    with hurt.connect() as client:
        assert holders.signature(client, FIRST) != paused.process.pid


def test_without_fencing_the_late_write_counts_and_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_BY, "1")
    unsafe = dict.fromkeys(("s1", "s2"), ("--unsafe-disable", "fencing"))
    with (
        hurt_cluster(2, options=lambda _: unsafe) as hurt,
        holders_of(hurt.endpoints, CLUSTER, "unsafe", tmp_path) as holders,
    ):
        outcome, paused, successor = pause_in_the_middle(holders)
        assert outcome == "did"
        successor.process.wait(PATIENCE_S)
        with hurt.connect() as client:
            both = (paused.process.pid + successor.process.pid) / 2
            assert holders.signature(client, FIRST) == both
            assert holders.wrongs(client)


def kill_coordinator(hurt: Hurt) -> None:
    hurt.processes.kill(coordinator(hurt))


def kill_a_primary(hurt: Hurt) -> None:
    others = [s.name for s in hurt.processes.servers if s.name != coordinator(hurt)]
    name = next(name for name in others if hurt.records.led_by(name))
    hurt.processes.kill(name)


def kill_etcds_leader(hurt: Hurt) -> None:
    leader = hurt.etcd.leader()
    hurt.etcd.kill(leader)
    eventually(lambda: another_leads(hurt, leader), "another leader of etcd")
    hurt.etcd.restart(leader)


def another_leads(hurt: Hurt, leader: int) -> bool:
    try:
        return hurt.etcd.leader() != leader
    except Unavailable:
        return False


def coordinator(hurt: Hurt) -> str:
    (item,) = hurt.kv.read(KEYS.coordinator_leader).items
    return str(json.loads(item.value)["server"])


@pytest.mark.parametrize("kill", [kill_coordinator, kill_a_primary, kill_etcds_leader])
def test_the_result_is_the_same_though_one_dies_under_way(
    hurt: Hurt, holders: Holders, kill: Callable[[Hurt], None]
) -> None:
    last = holders.last_task
    for _ in range(3):
        holders.start(wait_in=[last])
    holders.all[0].wait_to_hear("took", 4)
    kill(hurt)
    holders.hear_waiting(last).go_on()
    holders.wait_for_end()
    assert wrongs(hurt, holders) == []

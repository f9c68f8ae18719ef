"""Real servers that are killed, stopped and paused under load: pushes go on, each counts once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import CLUSTER, PATIENCE_S, Hurt, eventually, hurt_cluster, ranks_at_work

import resilient_ps as ps
from resilient_ps.chaos.live.straight import stale
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Txn

SERVERS = ("s1", "s2", "s3")
STOPS, STOPS_SOAK = 3, 100
LOST_LEADERSHIPS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hurt]:
    with hurt_cluster() as hurt:
        yield hurt


@pytest.fixture
def hurt(cluster: Hurt) -> Hurt:
    """At full strength, whatever the test before has done."""
    for server in cluster.processes.servers:
        if not server.is_alive():
            cluster.processes.restart(server.name)
    cluster.settle()
    return cluster


def test_pushes_go_on_when_a_primary_is_killed(hurt: Hurt) -> None:
    with ranks_at_work(hurt) as ranks:
        led = hurt.records.led_by("s1")
        hurt.processes.kill("s1")
        for rank in ranks:
            rank.wait_for_more()
        after = hurt.records.look()
        for shard, epoch in led.items():
            record = after.shard(shard)
            assert record is not None
            assert record.primary in ("s2", "s3")
            assert record.epoch > epoch


def test_a_restarted_server_gets_copies_and_is_in_sync_again_while_pushes_go_on(
    hurt: Hurt,
) -> None:
    with ranks_at_work(hurt):
        old = hurt.records.look().processes["s2"]
        hurt.processes.kill("s2")
        hurt.processes.restart("s2")
        hurt.settle()
        view = hurt.records.look()
        assert view.processes["s2"] != old
        held = [r for r in view.shards if "s2" in {member.server for member in r.in_sync}]
        assert held
        assert hurt.records.led_by("s2")
    hurt.processes.kill("s1")  # what s2 was given is all that there is of some shards
    with ranks_at_work(hurt):
        pass


def test_what_was_pushed_outlives_every_server_that_held_it_at_first(hurt: Hurt) -> None:
    with ranks_at_work(hurt) as ranks:
        for name in SERVERS:
            hurt.processes.kill(name)
            ranks[0].wait_for_more()
            hurt.processes.restart(name)
            hurt.settle()


def test_sigterm_hands_everything_over(hurt: Hurt) -> None:
    with ranks_at_work(hurt):
        led = hurt.records.led_by("s3")
        assert led
        assert hurt.processes.stop_server("s3") == 0
        view = hurt.records.look()  # at once: nobody waits for a lease
        assert "s3" not in view.processes
        assert not hurt.records.led_by("s3")
        epochs = hurt.records.epochs()
        assert all(epochs[shard].counter > led[shard].counter for shard in led)


def stop_again_and_again(hurt: Hurt, times: int) -> None:
    with ranks_at_work(hurt) as ranks:
        for number in range(times):
            name = SERVERS[number % len(SERVERS)]
            ranks[number % 2].wait_for_more(number % 7 + 1)
            assert hurt.processes.stop_server(name) == 0
            hurt.processes.restart(name)
            if number % 3:  # else it gets its next one while it takes copies
                hurt.settle()


def test_sigterm_at_any_moment_ends_in_order(hurt: Hurt) -> None:
    stop_again_and_again(hurt, STOPS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_sigterm_at_any_moment_ends_in_order_often(hurt: Hurt) -> None:
    stop_again_and_again(hurt, STOPS_SOAK)


def test_a_paused_primary_accepts_nothing_when_it_goes_on(hurt: Hurt) -> None:
    led = hurt.records.led_by("s1")
    with hurt.connect() as client, ranks_at_work(hurt) as ranks:
        writer = hurt.straight_writer(client, "s1")
        hurt.processes.pause("s1")
        try:
            for _ in range(5):
                writer.push()  # into the buffer of its socket
            for rank in ranks:
                rank.wait_for_more()  # so there are other primaries by now
        finally:
            hurt.processes.resume("s1")
        writer.push()
        assert stale(writer.answers(6), led) == 0
        writer.close()
        hurt.settle()  # it takes part again
        table = client.table(writer.name)
        assert isinstance(table, ps.SparseTable)
        assert set(table.pull(writer.keys).ravel().tolist()) == {1}


def test_leadership_that_is_lost_again_and_again_leaves_nothing_behind(hurt: Hurt) -> None:
    keys = ClusterKeys(CLUSTER)
    with ranks_at_work(hurt) as ranks:
        before = usage(hurt)
        for number in range(LOST_LEADERSHIPS):
            shard = number % hurt.shards
            epoch = hurt.record(shard).epoch
            hurt.kv.txn(Txn((), (Delete(keys.leader(shard)),)))
            eventually(lambda s=shard, e=epoch: hurt.record(s).epoch > e, "another epoch")
        ranks[0].wait_for_more()
        hurt.settle()
        after = usage(hurt)
    assert after["leases"] == before["leases"]
    for name in SERVERS:
        assert after[f"threads of {name}"] <= before[f"threads of {name}"] + 3
        assert after[f"descriptors of {name}"] <= before[f"descriptors of {name}"] + 6


def usage(hurt: Hurt) -> dict[str, int]:
    """What the servers hold of their machine and of etcd."""
    found = {"leases": leases(hurt)}
    for server in hurt.processes.servers:
        process = Path(f"/proc/{server.pid}")
        found[f"threads of {server.name}"] = len(os.listdir(process / "task"))
        found[f"descriptors of {server.name}"] = len(os.listdir(process / "fd"))
    return found


def leases(hurt: Hurt) -> int:
    url = f"http://{hurt.processes.endpoints[0]}/v3/lease/leases"
    with urllib.request.urlopen(url, data=b"{}", timeout=PATIENCE_S) as answer:
        return len(json.load(answer)["leases"])


def test_a_drained_server_gives_everything_away_while_pushes_go_on(hurt: Hurt) -> None:
    def drain(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "resilient_ps.cli.main", "server", "drain", "s2"]
        command += ["--etcd", hurt.endpoints, "--cluster", CLUSTER, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with ranks_at_work(hurt):
        ended = drain("--wait", "--deadline", "60", "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1])["left"] == 0
        for record in hurt.records.look().shards:
            assert "s2" not in {member.server for member in record.in_sync}
        assert hurt.processes.stop_server("s2") == 0
    assert drain("--cancel").returncode == 0

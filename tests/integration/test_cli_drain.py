"""`server drain`, `status` while shards move, and eviction, on a running cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from cli_process import Shell

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster

SERVERS = ("s1", "s2", "s3")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    flags = ["--lease-ttl", "2"]
    with ps.local_cluster(3, replicas=2, coordination="embedded", server_flags=flags) as running:
        yield running


@pytest.fixture
def shell(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.setenv("RESILIENT_PS_ETCD", cluster.etcd)
    monkeypatch.setenv("RESILIENT_PS_CLUSTER", cluster.name)
    return Shell(capsys)


def test_a_server_is_drained_and_taken_back(cluster: RunningCluster, shell: Shell) -> None:
    client = cluster.connect()
    with client, client.worker("drained", 0, 1, "asp") as worker:
        table = worker.sparse_table("drained/t", dim=2, optimiser=ps.Sum())
        keys, ones = np.arange(500, dtype=np.uint64), np.ones((500, 2), np.float32)
        table.push(keys, ones)
        worker.tick()
        ended = shell("server", "drain", "s2", "--wait", "--json")
        assert ended.code == 0
        looks = [json.loads(line) for line in ended.out.splitlines()]
        assert (looks[-1]["state"], looks[-1]["left"], looks[-1]["alive"]) == ("drained", 0, True)
        table.push(keys, ones)
        worker.tick()
        assert (table.pull(keys) == 2).all()
    report = shell("status", "--json").json
    held = {s["server"]: (s["draining"], s["shards"], s["copies"]) for s in report["servers"]}
    assert held == {"s1": (False, 6, 12), "s2": (True, 0, 0), "s3": (False, 6, 12)}
    assert {shard["state"] for shard in report["shards"]} == {"ok"}
    told = shell("status").out
    assert "being drained: s2" in told
    again = shell("server", "drain", "s2")
    assert (again.code, again.out) == (0, "server s2 holds nothing any more: it can be stopped\n")
    assert shell("server", "drain", "s2", "--cancel").code == 0
    while shell("status", "--json").json["servers"][1]["copies"] < 8:
        pass
    assert all(s["desired"] for s in shell("status", "--json").json["shards"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("s9",), "there is no server 's9'; servers: s1, s2, s3"),
        (("s 9",), "'s 9' cannot name a server"),
        (("s1", "--cancel"), "server 's1' is not being drained"),
        (("s1", "--cancel", "--wait"), "give --wait or --cancel"),
        (("s1", "--cluster", "other"), "there is no cluster 'other'"),
    ],
)
def test_wrong_calls_of_drain_are_told(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    ended = shell("server", "drain", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err


def test_every_shard_is_shown_with_its_replicas(shell: Shell) -> None:
    report = shell("status", "--json").json
    assert report["replicas"] == 2
    assert report["ring_version"] >= 1
    for shard in report["shards"]:
        assert len(shard["in_sync"]) >= 2
        by_server = {replica["server"]: replica for replica in shard["replicas"]}
        assert by_server[shard["primary"]]["role"] == "primary"
        assert by_server[shard["primary"]]["lag"] == 0
    shown = shell("status").out
    assert "backups (lag)" in shown


def test_workers_are_shown_and_evicted_when_they_are_silent(
    cluster: RunningCluster, shell: Shell
) -> None:
    with cluster.connect() as client:
        silent = client.worker("evicted", 0, 2, "ssp:0", evict_after_s=3)
        other = client.worker("evicted", 1, 2, "ssp:0", evict_after_s=3)
        told = shell("status", "--json")
        while len(told.json["workers"]) < 2:
            told = shell("status", "--json")
        shown = {(w["job"], w["rank"]) for w in told.json["workers"]}
        assert shown == {("evicted", 0), ("evicted", 1)}
        assert all(w["silent_s"] >= 0 and w["pid"] for w in told.json["workers"])
        table = other.sparse_table("evicted/t", dim=1, optimiser=ps.Sum())
        silent._heartbeat.stop()  # the process hangs
        for _ in range(3):  # the second clock waits for the silent rank, until it is evicted
            assert table.pull([1]).shape == (1, 1)
            other.tick()
        other.close()
        with pytest.raises(ps.ResilientPsError, match="left"):
            silent.tick()
        jobs = {job["job"]: job for job in shell("job", "ls", "--json").json["jobs"]}
        assert jobs["evicted"]["live"] == 1


def test_ranks_that_differ_in_their_patience_are_refused(cluster: RunningCluster) -> None:
    with cluster.connect() as client:
        client.worker("patient", 0, 2, "asp", evict_after_s=60).close()
        with pytest.raises(ps.SpecMismatch, match="evicted after 60 s; asked for were 2 ranks"):
            client.worker("patient", 1, 2, "asp")
        with pytest.raises(ps.BadInput, match="evict_after_s=1: choose 3 to"):
            client.worker("other", 0, 1, "asp", evict_after_s=1)


def test_a_worker_finds_the_next_coordinator(cluster: RunningCluster, shell: Shell) -> None:
    with cluster.connect() as client, client.worker("found", 0, 1, "asp", evict_after_s=10):
        report = shell("status", "--json").json
        while ("found", 0) not in {(w["job"], w["rank"]) for w in report["workers"]}:
            report = shell("status", "--json").json
        first = report["coordinator"]
        cluster.processes.kill(first)
        report = shell("status", "--json").json
        while report["coordinator"] in (first, None) or not report["workers"]:
            report = shell("status", "--json").json
        assert [(w["job"], w["rank"]) for w in report["workers"]] == [("found", 0)]
    jobs = {job["job"]: job for job in shell("job", "ls", "--json").json["jobs"]}
    assert jobs["found"]["live"] == 1

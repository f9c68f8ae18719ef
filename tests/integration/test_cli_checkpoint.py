"""`resilient-ps checkpoint` on a living cluster, and on its store alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_process import Shell

import resilient_ps as ps
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.launch import RunningCluster

KEYS = np.arange(2_000, dtype=np.uint64)
ON_DEMAND = CheckpointSettings(keep_last=100, cut_deadline_s=5)
SERVER_FLAGS = ("--lease-ttl", "2")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standby") / "store"


@pytest.fixture(scope="module")
def cluster(store: Path) -> Iterator[RunningCluster]:
    with ps.local_cluster(
        2, name="ctr", store=str(store), checkpoints=ON_DEMAND, server_flags=SERVER_FLAGS
    ) as running:
        yield running


@pytest.fixture
def shell(
    cluster: RunningCluster,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    monkeypatch.setenv("RESILIENT_PS_ETCD", cluster.etcd)
    monkeypatch.setenv("RESILIENT_PS_CLUSTER", cluster.name)
    monkeypatch.setenv("RESILIENT_PS_STORE", str(store))
    return Shell(capsys)


@contextmanager
def training(cluster: RunningCluster, job: str) -> Iterator[list[int]]:
    """A rank that adds one to every row in each clock, while the block runs; then: its clocks."""
    ending, ended = threading.Event(), list[int]()
    with cluster.connect() as client, client.worker(job, 0, 1, "bsp") as worker:
        table = worker.sparse_table(f"{job}/w", dim=1, dtype="int64", optimiser=ps.Sum())
        bias = worker.dense_table(f"{job}/b", shape=(5, 2), optimiser=ps.Adam(lr=0.1))

        def run() -> None:
            while not ending.is_set():
                try:
                    table.push(KEYS, np.ones((len(KEYS), 1), np.int64))
                    bias.push(np.ones((5, 2), np.float32))
                    worker.tick({"clock": worker.clock})
                except ps.RolledBack:
                    worker.resume()
                ending.wait(0.005)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield ended
        finally:
            ending.set()
            thread.join(60)
            assert not thread.is_alive()
            ended.append(worker.clock - 1)
            with cluster.connect() as another:  # this one may have to be told of a rollback first
                another.end_job(job, "stopped")


def test_a_checkpoint_of_a_living_cluster_is_made_listed_verified_compared_and_exported(
    cluster: RunningCluster, shell: Shell, tmp_path: Path
) -> None:
    with training(cluster, "made"):
        first = shell("checkpoint", "create", "--json")
        assert first.code == 0, first.err
        second = shell("checkpoint", "create")
        assert second.code == 0, second.err
        assert "clocks made " in second.out
    clock = first.json["clocks"]["made"]
    listed = shell("checkpoint", "ls", "--json").json["checkpoints"]
    assert listed[1]["id"] == first.json["id"]
    assert [(each["state"], each["why"]) for each in listed] == [("complete", "")] * len(listed)
    assert first.json["id"] in shell("checkpoint", "ls").out
    mistyped = shell("checkpoint", "ls", "--cluster", "elsewhere")
    assert (mistyped.code, mistyped.out) == (2, "")
    assert "clusters in this store: " in mistyped.err
    shown = shell("checkpoint", "show", first.json["id"], "--json").json
    assert {each["table"]: each["rows"] for each in shown["tables"]} == {
        "made/b": 5,
        "made/w": len(KEYS),
    }
    (job,) = shown["jobs"]
    assert (job["job"], job["clock"], job["state"]) == ("made", clock, "running")
    assert job["ranks"] == [{"rank": 0, "ticked": clock, "live": True, "cursor": {"clock": clock}}]
    assert (
        f"job made: running, bsp, clock {clock}"
        in shell("checkpoint", "show", first.json["id"]).out
    )
    assert shell("checkpoint", "verify", "--all").code == 0
    changes = shell("checkpoint", "diff", first.json["id"], "latest", "--json").json
    assert changes["jobs"][0]["before"] == clock < changes["jobs"][0]["after"]
    by_table = {each["table"]: each for each in changes["tables"]}
    assert by_table["made/w"]["changed"] == len(KEYS)
    assert by_table["made/w"]["largest"] == changes["jobs"][0]["after"] - clock
    assert by_table["made/b"]["changed"] == 5
    done = shell("checkpoint", "export", first.json["id"], "--out", str(tmp_path), "--json").json
    assert [each["rows"] for each in done["files"]] == [5, len(KEYS)]
    exported = pq.read_table(tmp_path / "made" / "w.parquet")
    assert set(exported["value"].to_pylist()) == {clock}
    assert sorted(exported["key"].to_pylist()) == KEYS.tolist()
    assert pq.read_table(tmp_path / "made" / "b.parquet")["steps"].to_pylist() == [clock] * 5


def test_without_a_store_etcd_says_what_is_published(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shell("checkpoint", "create", "--json").json
    monkeypatch.delenv("RESILIENT_PS_STORE")
    listed = shell("checkpoint", "ls", "--json").json["checkpoints"]
    assert (listed[0]["id"], listed[0]["state"]) == (made["id"], "good")
    mistyped = shell("checkpoint", "ls", "--cluster", "elsewhere")
    assert (mistyped.code, mistyped.out) == (2, "")
    assert "no cluster 'elsewhere'" in mistyped.err
    refused = shell("checkpoint", "verify")
    assert refused.code == 2
    assert "name the store: --store s3://BUCKET/PREFIX" in refused.err


def slowest(shell: Shell, job: str) -> int:
    """The clock of its slowest rank; 0 while no shard knows any, as right after a restore."""
    return shell("job", "show", job, "--json").json["slowest"] or 0


def test_a_living_cluster_goes_back_and_its_worker_goes_on_from_there(
    cluster: RunningCluster, shell: Shell
) -> None:
    with training(cluster, "back") as ended:
        made = shell("checkpoint", "create", "--json")
        assert made.code == 0, made.err
        clock = made.json["clocks"]["back"]
        pause = threading.Event()
        while slowest(shell, "back") < clock + 20:
            pause.wait(0.05)
        refused = shell("checkpoint", "restore", made.json["id"])
        assert refused.code == 2
        assert "say --yes" in refused.err
        done = shell("checkpoint", "restore", made.json["id"], "--yes", "--json")
        assert done.code == 0, done.err
        assert done.json["checkpoint"] == made.json["id"]
        assert done.json["incarnation"] > made.json["incarnation"]
        while slowest(shell, "back") < clock + 5:
            pause.wait(0.05)
    with cluster.connect() as client:
        told = client.table("back/w")
        assert isinstance(told, ps.SparseTable)
        assert told.pull(KEYS).ravel().tolist() == ended * len(KEYS)


def test_a_new_cluster_of_other_shards_is_prepared_with_a_checkpoint_of_this_one(
    cluster: RunningCluster, shell: Shell
) -> None:
    with training(cluster, "seed"):
        made = shell("checkpoint", "create", "--json").json
    where = ("--cluster", "heir", "--from-cluster", "ctr", "--shards", "3", "--prepare", "--json")
    done = shell("checkpoint", "restore", made["id"], *where)
    assert done.code == 0, done.err
    assert (done.json["shards"], done.json["incarnation"]) == (3, 1)
    again = shell("checkpoint", "restore", made["id"], *where)
    assert again.code == 2
    assert "there is a cluster 'heir' in this etcd" in again.err
    nowhere = ("--dry-run", "--shards", "5", "--etcd", "127.0.0.1:1", "--json")
    plan = shell("checkpoint", "restore", made["id"], *nowhere).json
    assert (plan["checkpoint"], plan["shards"], plan["shards_of_checkpoint"]) == (made["id"], 5, 8)
    assert plan["content_bytes"] >= 16 * len(KEYS)
    told = shell("checkpoint", "restore", "--shards", "3", "--yes")
    assert (told.code, "say --prepare" in told.err) == (2, True)


def test_what_is_not_there_is_told_with_what_is(shell: Shell) -> None:
    for command in ("show", "verify", "export"):
        ended = shell(
            "checkpoint", command, "9-9-00000000", *["--out", "x"][: 2 * (command == "export")]
        )
        assert ended.code == 2 - (command == "verify"), ended
        assert "9-9-00000000 has no manifest" in ended.err + ended.out
    nobody = shell("checkpoint", "show", "--cluster", "nobody")
    assert nobody.code == 2
    assert "none of cluster 'nobody'; clusters in this store: ctr" in nobody.err
    early = shell("checkpoint", "show", "time:2001-01-01")
    assert early.code == 2
    assert "no checkpoint is time:2001-01-01" in early.err
    assert "use latest, clock:N" in shell("checkpoint", "show", "yesterday").err


def test_gc_shows_first_and_keeps_the_newest(shell: Shell) -> None:
    for _ in range(3):
        assert shell("checkpoint", "create").code == 0
    before = [c["id"] for c in shell("checkpoint", "ls", "--json").json["checkpoints"]]
    assert len(before) >= 3
    shown = shell("checkpoint", "gc", "--keep-last", "1", "--json").json
    assert (shown["deleted"], shown["kept"][0]) == (False, before[0])
    assert [c["id"] for c in shell("checkpoint", "ls", "--json").json["checkpoints"]] == before
    done = shell("checkpoint", "gc", "--keep-last", "1", "--yes", "--json")
    assert done.code == 0, done.err
    left = [c["id"] for c in shell("checkpoint", "ls", "--json").json["checkpoints"]]
    assert left[0] == before[0]
    assert len(left) < len(before)
    assert shell("checkpoint", "verify", "--all").code == 0
    assert "there is nothing to do" in shell("checkpoint", "gc", "--keep-last", "1").out

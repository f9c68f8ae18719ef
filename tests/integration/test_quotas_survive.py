"""Quotas when a primary dies, after a rollback, and in a new cluster that begins from a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_process import Shell

import resilient_ps as ps
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.launch import RunningCluster
from resilient_ps.client.namespace_report import namespace_report, namespace_reports

ON_DEMAND = CheckpointSettings(keep_last=100, cut_deadline_s=5)
SERVER_FLAGS = ("--lease-ttl", "2")
BATCH = 25
QUOTA, LARGER = 1_000, 1_500


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


def fill_up(client: ps.Client) -> None:
    """A worker that creates rows until it is refused; it goes on where it was refused last.

    The rows of clock c are always the same, as they have to be.
    """
    with (
        client.worker("filling", 0, 1, "asp") as worker,
        pytest.raises(ps.QuotaExceeded, match="namespace 'ctr/emb' is full"),
    ):
        create_rows(worker)


def create_rows(worker: ps.Worker) -> None:
    table = worker.sparse_table("ctr/emb/user", dim=1, dtype="int64", optimiser=ps.Sum())
    for clock in range(worker.clock, 10_000):
        keys = np.arange(clock * BATCH, (clock + 1) * BATCH, dtype=np.uint64)
        table.push(keys, np.ones((BATCH, 1), np.int64))
        worker.tick()


def rows_held(client: ps.Client) -> int:
    catalogue = client.catalogue
    reports = namespace_reports(catalogue.kv, client.cluster, deadline_s=10)
    return namespace_report(reports, "ctr/emb")[0].rows


def sums_of(client: ps.Client) -> set[int]:
    """What the rows of the first 30 clocks hold: 1, each once."""
    table = client.table("ctr/emb/user")
    assert isinstance(table, ps.SparseTable)
    return set(table.pull(np.arange(BATCH, 30 * BATCH, dtype=np.uint64)).ravel().tolist())


def test_a_quota_outlives_a_primary_a_rollback_and_etcd(
    cluster: RunningCluster, shell: Shell, store: Path, tmp_path: Path
) -> None:
    with cluster.connect() as client:
        client.namespace("ctr/emb", rows_max=QUOTA)
        with client.worker("beside", 0, 1, "asp") as worker:
            beside = worker.sparse_table("ctr/embers", dim=1, optimiser=ps.SGD(lr=1.0))
            beside.push(range(2 * QUOTA), np.ones((2 * QUOTA, 1), np.float32))
            worker.tick()
        fill_up(client)
        assert QUOTA - BATCH < rows_held(client) <= QUOTA

        cluster.processes.kill("s1")
        fill_up(client)
        assert QUOTA - BATCH < rows_held(client) <= QUOTA
        assert sums_of(client) == {1}
        cluster.processes.restart("s1")

        made = shell("checkpoint", "create", "--json")
        assert made.code == 0, made.err
        shown = shell("checkpoint", "show", "--namespace", "ctr/emb", "--json").json
        assert [each["table"] for each in shown["tables"]] == ["ctr/emb/user"]
        assert shown["namespaces"] == [{"name": "ctr/emb", "rows_max": QUOTA, "bytes_max": None}]

        client.namespace("ctr/emb").set_quota(rows_max=LARGER)
        fill_up(client)
        assert LARGER - BATCH < rows_held(client) <= LARGER
        again = shell("checkpoint", "create", "--json").json
        changes = shell(
            "checkpoint", "diff", made.json["id"], again["id"], "--namespace", "ctr/emb", "--json"
        ).json
        assert [each["table"] for each in changes["tables"]] == ["ctr/emb/user"]
        assert changes["tables"][0]["added"] > QUOTA / 4

        done = shell("checkpoint", "restore", made.json["id"], "--yes")
        assert done.code == 0, done.err
        client.resume()
        assert rows_held(client) <= QUOTA
        fill_up(client)  # the quota stays as somebody has set it, the rows went back
        assert LARGER - BATCH < rows_held(client) <= LARGER
        assert sums_of(client) == {1}

    out = tmp_path / "emb"
    exported = shell("checkpoint", "export", "--namespace", "ctr/emb", "--out", str(out), "--json")
    assert [each["table"] for each in exported.json["files"]] == ["ctr/emb/user"]
    assert pq.read_table(out / "ctr" / "emb" / "user.parquet").num_rows > QUOTA / 2
    whole = tmp_path / "whole"
    shell("checkpoint", "export", "--out", str(whole))
    where = ("--cluster", "warm", "--shards", "3", "--json")
    imported = shell("checkpoint", "import", str(whole), "--namespace", "ctr/emb", *where).json
    assert [each["table"] for each in imported["tables"]] == ["ctr/emb/user"]
    for command in (("show",), ("export", "--out", str(out)), ("diff", made.json["id"])):
        missing = shell("checkpoint", *command, "--namespace", "ctr/em")
        assert (missing.code, missing.out) == (2, "")
        assert "no table in namespace 'ctr/em'; namespaces: ctr, ctr/emb" in missing.err


def test_a_new_etcd_gets_the_quotas_of_the_checkpoint(store: Path) -> None:
    """Runs after the test above, in whose store it begins."""
    with (
        ps.local_cluster(
            1, replicas=1, name="ctr", store=str(store), checkpoints=ON_DEMAND,
            coordination="embedded",
        ) as cluster,
        cluster.connect() as client,
    ):  # fmt: skip
        most = client.namespace("ctr/emb").quota.rows_max
        assert most in (QUOTA, LARGER)
        fill_up(client)
        assert most - BATCH < rows_held(client) <= most
        assert sums_of(client) == {1}

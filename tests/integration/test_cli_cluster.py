"""Commands on a running cluster: local, train, status, table and job."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell, descendants, start, still_running

import resilient_ps as ps
from resilient_ps.cli.exits import EXIT_SUPERSEDED
from resilient_ps.client.launch import RunningCluster

ROWS = 600


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(servers=2, coordination="embedded") as running:
        yield running


@pytest.fixture
def shell(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.setenv("RESILIENT_PS_ETCD", cluster.etcd)
    monkeypatch.setenv("RESILIENT_PS_CLUSTER", cluster.name)
    return Shell(capsys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rows.svm (sparse, two classes) and rows.npz (dense, three classes)."""
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 6)).astype(np.float32)
    late = (x[:, 0] > 0).astype(int)
    lines = [f"{y} " + " ".join(f"{i}:{v:.3f}" for i, v in enumerate(row, 1)) for y, row in
             zip(late, x, strict=True)]  # fmt: skip
    (folder / "rows.svm").write_text("\n".join(lines) + "\n")
    np.savez(folder / "rows.npz", X=x, y=x[:, :3].argmax(axis=1))
    return folder


def test_status_shows_servers_shards_and_the_coordinator(shell: Shell) -> None:
    ended = shell("status")
    assert (ended.code, ended.err) == (0, "")
    for text in ("2 servers", "every shard has a live primary", "coordinator s", "lease s"):
        assert text in ended.out
    report = shell("status", "--json").json
    assert report["healthy"] is True
    assert [(s["server"], s["alive"], s["answers"]) for s in report["servers"]] == [
        ("s1", True, True),
        ("s2", True, True),
    ]
    assert [s["shard"] for s in report["shards"]] == list(range(8))
    assert {s["primary"] for s in report["shards"]} == {"s1", "s2"}
    assert report["coordinator"] in ("s1", "s2")


def test_a_silent_server_is_named_and_not_fatal(cluster: RunningCluster, shell: Shell) -> None:
    cluster.processes.pause("s2")
    try:
        ended = shell("status", "--deadline", "0.3")
    finally:
        cluster.processes.resume("s2")
    assert ended.code == 0
    assert "s2: server s2 does not answer" in ended.out
    assert re.search(r"s2 +silent", ended.out)


def test_an_unknown_cluster_is_told_with_those_that_there_are(shell: Shell) -> None:
    ended = shell("status", "--cluster", "other")
    assert (ended.code, ended.out) == (2, "")
    assert "no cluster 'other' in this etcd; clusters: local" in ended.err


def test_one_rank_trains_and_its_job_and_table_are_listed(shell: Shell, files: Path) -> None:
    flags = ("--job", "one", "--consistency", "bsp", "--classes", "3", "--batch-size", "100")
    ended = shell(
        "train", "softmax", "--dataset", str(files / "rows.npz"), *flags,
        "--epochs", "5", "--table", "one/model", "--json",
    )  # fmt: skip
    assert ended.code == 0
    assert ended.json["samples"] == 5 * ROWS
    assert ended.json["ranks"] == [{"rank": 0, "samples": 5 * ROWS, "clock": 31}]
    assert ended.json["loss"] < 0.9 < np.log(3)
    jobs = {job["job"]: job for job in shell("job", "ls", "--json").json["jobs"]}
    assert (jobs["one"]["consistency"], jobs["one"]["state"]) == ("bsp", "done")
    tables = {table["table"]: table for table in shell("table", "ls", "--json").json["tables"]}
    assert tables["one/model/0"]["rows"] == 7 * 3
    assert tables["one/model/0"]["writer"] is None
    shown = shell("table", "show", "one/model/0", "--json").json["specification"]
    assert (shown["shape"], shown["dtype"]) == ([7, 3], "float32")
    for command in ("job ls", "job show one", "table ls", "table show one/model/0"):
        assert shell(*command.split()).out.count("\n") > 2
    again = shell("train", "softmax", "--dataset", str(files / "rows.npz"), *flags,
                  "--epochs", "5", "--table", "one/model")  # fmt: skip
    assert again.code == EXIT_SUPERSEDED
    assert "job 'one' is done: use another name, or remove it" in again.err


def test_a_job_is_done_when_its_last_rank_is_and_until_then_a_rank_can_be_run_again(
    shell: Shell, files: Path
) -> None:
    flags = ("--dataset", str(files / "rows.npz"), "--classes", "3", "--job", "two", "--of", "2",
             "--table", "two/model", "--consistency", "asp", "--batch-size", "100")  # fmt: skip
    assert shell("train", "softmax", *flags, "--rank", "0").code == 0
    shown = shell("job", "show", "two", "--json").json
    assert (shown["state"], shown["clocks"]) == ("running", {"0": 4, "1": 1})
    tables = {table["table"]: table for table in shell("table", "ls", "--json").json["tables"]}
    assert tables["two/model/0"]["writer"] == "two"
    again = shell("train", "softmax", *flags, "--rank", "0")
    assert again.out == "job two: nothing left to do, it was trained before\n"
    assert "rank 0 continues at clock 4" in again.err
    assert shell("train", "softmax", *flags, "--rank", "1").code == 0
    assert shell("job", "show", "two", "--json").json["state"] == "done"


def test_a_killed_worker_that_is_started_again_goes_on_behind_its_last_clock(
    shell: Shell, cluster: RunningCluster, files: Path
) -> None:
    command = (
        "train", "softmax", "--dataset", str(files / "rows.npz"), "--classes", "3", "--job", "die",
        "--table", "die/model", "--batch-size", "10", "--epochs", "25", "--json",
        "--etcd", cluster.etcd, "--cluster", cluster.name,
    )  # fmt: skip
    with start(*command) as process:
        clock = 0
        while clock < 5 and process.poll() is None:
            jobs = {job["job"]: job for job in shell("job", "ls", "--json").json["jobs"]}
            clock = jobs.get("die", {}).get("slowest") or 0
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = shell(*command)
    assert again.code == 0
    behind = re.search(r"rank 0 continues at clock (\d+)", again.err)
    assert behind is not None
    clocks = 25 * ROWS // 10
    assert clock <= int(behind[1]) < clocks
    assert again.json["ranks"] == [
        {"rank": 0, "samples": 10 * (clocks + 1 - int(behind[1])), "clock": clocks + 1}
    ]


def test_all_ranks_train_in_processes_of_their_own(shell: Shell, files: Path) -> None:
    ended = shell(
        "train", "logistic", "--dataset", str(files / "rows.svm"), "--spawn", "2",
        "--job", "all", "--table", "all/model", "--batch-size", "50", "--epochs", "3", "--json",
    )  # fmt: skip
    assert ended.code == 0
    assert "2 workers are ready" in ended.err
    assert ended.json["samples"] == 3 * ROWS
    assert [rank["rank"] for rank in ended.json["ranks"]] == [0, 1]
    assert ended.json["loss"] < np.log(2)
    assert shell("job", "show", "all", "--json").json["state"] == "done"


def test_what_a_spawned_rank_stumbles_over_is_told_by_the_parent(
    shell: Shell, files: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.svm"
    bad.write_text((files / "rows.svm").read_text() + "1 2:x\n")
    ended = shell("train", "logistic", "--dataset", str(bad), "--spawn", "1", "--job", "bad",
                  "--table", "bad/model")  # fmt: skip
    assert ended.code == 2
    assert f"worker 0: {bad}, line {ROWS + 1}: value 'x'" in ended.err
    assert "Traceback" not in ended.err


def test_another_shape_of_a_table_is_an_error_that_shows_both(shell: Shell, files: Path) -> None:
    flags = ("--dataset", str(files / "rows.npz"), "--classes", "3", "--table", "shape/model")
    assert shell("train", "softmax", *flags, "--job", "shape-1").code == 0
    ended = shell("train", "softmax", *flags, "--job", "shape-2", "--lr", "0.5")
    assert ended.code == 2
    assert "Adagrad(lr=0.05" in ended.err
    assert "Adagrad(lr=0.5" in ended.err
    assert "resilient-ps table rm shape/model/0" in ended.err


def test_removing_needs_a_yes(shell: Shell, cluster: RunningCluster) -> None:
    with cluster.connect() as client, client.worker("gone", 0, 1, "asp") as worker:
        worker.sparse_table("gone", dim=1, optimiser=ps.Sum()).push([1], np.ones((1, 1), "f4"))
    for command in (("table", "rm", "gone"), ("job", "rm", "gone")):
        refused = shell(*command)
        assert refused.code == 2
        assert "say --yes" in refused.err
        assert shell(*command, "--yes", "--json").json == {"removed": "gone"}
        again = shell(*command, "--yes")
        assert again.code == 2
        assert f"there is no {command[0]} 'gone'" in again.err


def test_a_stopped_job_refuses_its_workers(shell: Shell, cluster: RunningCluster) -> None:
    with cluster.connect() as client:
        client.worker("stopped", 0, 1, "asp").close()
        assert shell("job", "stop", "stopped").out == "stopped job stopped\n"
        with pytest.raises(ps.Reopen, match="is stopped"):
            client.worker("stopped", 0, 1, "asp")
        assert shell("job", "stop", "nobody").code == 2


def test_a_rank_can_be_taken_out_of_a_job(shell: Shell, cluster: RunningCluster) -> None:
    with cluster.connect() as client, client.worker("smaller", 0, 2, "bsp") as worker:
        worker.tick()
        left = shell("job", "leave", "smaller", "1", "--json")
        assert (left.code, left.json) == (0, {"left": "smaller", "rank": 1, "ticked": 0})
        assert shell("job", "show", "smaller", "--json").json["clocks"] == {"0": 2}


def test_local_runs_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    command = ("local", "--servers", "1", "--coordination", "embedded", "--json")
    with start(*command, temporary=tmp_path) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["coordination"] == "embedded"
        with ps.connect(told["etcd"], told["cluster"]) as client:
            assert client.routing().shards == 4
        below = descendants(process.pid)
        assert len(below) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert still_running(below) == set()
    assert list(tmp_path.iterdir()) == []


def test_local_says_how_to_connect_that_nothing_is_kept_and_heeds_sigterm(tmp_path: Path) -> None:
    command = ("local", "--servers", "1", "--coordination", "embedded")
    with start(*command, temporary=tmp_path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 servers, coordination embedded" in said[0]
    assert re.search(r"resilient-ps status --etcd 127\.0\.0\.1:\d+ --cluster local", said[3])
    assert re.search(r'resilient_ps\.connect\("127\.0\.0\.1:\d+", cluster="local"\)', said[4])
    assert "EMBEDDED COORDINATION" in errors
    assert list(tmp_path.iterdir()) == []


def test_shards_without_a_primary_are_exit_code_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--lease-ttl", "1"]
    with ps.local_cluster(
        2, replicas=1, name="dead", coordination="embedded", server_flags=flags
    ) as cluster:
        cluster.connect().close()  # all shards are placed
        cluster.processes.kill("s2")
        shell, where = Shell(capsys), ("--etcd", cluster.etcd, "--cluster", "dead")
        ended = shell("status", "--json", *where)
        while ended.code == 0:  # until its lease has ended
            ended = shell("status", "--json", *where)
        assert ended.code == 3
        assert ended.json["healthy"] is False
        assert {s["state"] for s in ended.json["shards"] if s["primary"] == "s2"} == {"lost"}
        dead = {s["server"]: s["alive"] for s in ended.json["servers"]}
        assert dead == {"s1": True, "s2": False}
        told = shell("status", *where).out
        assert "LOST: of those that held it none lives (s2 is gone)" in told
        assert "begin again with another --cluster" in told
        removed = shell("table", "rm", "t", "--yes", "--deadline", "0.5", *where)
        assert removed.code == 3
        assert "not complete" in removed.err

"""`resilient-ps ns`, and what it shows of quotas and of graphs of tasks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell, start

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Put, Txn
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.task_asks import Failure
from resilient_ps.coordinator.task_records import GraphRecord

WATCH_S = 60.0


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


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[ps.Client]:
    with cluster.connect() as connected:
        yield connected


def fill(worker: ps.Worker, name: str, rows: int) -> ps.SparseTable:
    table = worker.sparse_table(name, dim=2, optimiser=ps.SGD(lr=0.5))
    table.push(range(rows), np.ones((rows, 2), np.float32))
    worker.tick()
    return table


def graph_of(name: str, steps: int = 3) -> ps.Graph:
    graph = ps.Graph(name, steps=steps)
    graph.add(f"{name}/features", width=2)
    graph.add(f"{name}/tower")
    graph.after(f"{name}/tower", f"{name}/features")
    return graph


def test_two_namespaces_with_the_same_keys_share_nothing(client: ps.Client, shell: Shell) -> None:
    with client.worker("twins", 0, 1, "asp") as worker:
        one, other = fill(worker, "twin/a/w", 50), fill(worker, "twin/ab/w", 50)
        other.push(range(10), np.full((10, 2), 3, np.float32))
        worker.tick()
        assert not np.array_equal(one.pull(range(10)), other.pull(range(10)))
        before = other.pull(range(60)).tobytes()
        ended = shell("ns", "rm", "twin/a", "--yes", "--json")
        assert ended.json == {"removed": "twin/a", "tables": ["twin/a/w"], "graphs": []}
        assert other.pull(range(60)).tobytes() == before
    assert sorted(t for t in client.catalogue.tables() if t.startswith("twin")) == ["twin/ab/w"]
    again = shell("ns", "rm", "twin/a", "--yes")
    assert (again.code, again.out) == (2, "")
    assert "there is no namespace 'twin/a'" in again.err


def test_tree_and_show_tell_tables_rows_bytes_and_quota(client: ps.Client, shell: Shell) -> None:
    space = client.namespace("shown/emb", rows_max=1_000, bytes_max=100_000)
    with client.worker("shown", 0, 1, "asp") as worker:
        fill(worker, "shown/emb/user", 40)
        space.dense_table(worker, "bias", shape=(10,), optimiser=ps.SGD(lr=0.1))
        told = shell("ns", "tree", "--json").json["namespaces"]
    by_name = {each["namespace"]: each for each in told}
    inner = by_name["shown/emb"]
    assert (inner["rows"], inner["bytes"]) == (40, 40 * 16 + 40)
    assert (inner["rows_max"], inner["bytes_max"], inner["in_force"]) == (1_000, 100_000, True)
    assert [table["table"] for table in inner["tables"]] == ["shown/emb/bias", "shown/emb/user"]
    assert (by_name["shown"]["rows"], by_name["shown"]["registered"]) == (40, False)
    text = shell("ns", "tree").out
    assert "emb/  40 of 1,000 rows, 680 B of 100.0 kB" in text
    shown = shell("ns", "show", "shown/emb")
    assert "/resilient-ps/local/tables/shown/emb/" in shown.out
    assert "shown/emb/user" in shown.out
    described = shell("ns", "show", "shown", "--json").json
    assert described["inner"] == ["shown/emb"]
    assert described["etcd_prefix"] == "/resilient-ps/local/tables/shown/"
    missing = shell("ns", "show", "show")
    assert missing.code == 2
    assert "there is no namespace 'show'" in missing.err


def test_a_quota_is_set_kept_to_and_taken_away(client: ps.Client, shell: Shell) -> None:
    ended = shell("ns", "set", "full", "--rows-max", "30", "--json")
    assert ended.json == {"namespace": "full", "rows_max": 30, "bytes_max": None}
    with (
        client.worker("full", 0, 1, "asp") as worker,
        pytest.raises(ps.QuotaExceeded, match=r"namespace 'full' is full.*of 30 rows \(rows_max\)"),
    ):
        fill(worker, "full/w", 31)
    assert shell("ns", "set", "full", "--no-quota").code == 0
    with client.worker("full", 0, 1, "asp") as worker:
        table = fill(worker, "full/w", 31)  # what was taken of the push is passed over
        assert (table.pull(range(31)) == table.pull([0])).all()
    for wrong in (("--no-quota", "--rows-max", "3"), ()):
        ended = shell("ns", "set", "full", *wrong)
        assert (ended.code, ended.out) == (2, "")
        assert "--rows-max, --bytes-max or both; or --no-quota alone" in ended.err


def test_another_quota_is_told_with_both(client: ps.Client) -> None:
    client.namespace("twice", rows_max=10)
    assert client.namespace("twice").quota == (10, None)
    with pytest.raises(ps.SpecMismatch, match=r"rows_max=10; asked for was bytes_max=7"):
        client.namespace("twice", bytes_max=7)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ps.BadInput, match="rows_max="):
            client.namespace("twice", rows_max=wrong)  # type: ignore[arg-type]


def test_a_table_that_is_too_large_is_not_left_behind(client: ps.Client) -> None:
    space = client.namespace("small", bytes_max=1_000)
    with client.worker("small", 0, 1, "asp") as worker:
        with pytest.raises(ps.QuotaExceeded, match="this dense table takes"):
            space.dense_table(worker, "w", shape=(100_000, 8), optimiser=ps.SGD(lr=0.1))
        assert space.tables() == []
        space.set_quota()
        table = space.dense_table(worker, "w", shape=(100_000, 8), optimiser=ps.SGD(lr=0.1))
        assert not table.pull().any()
        assert space.namespace("inner").path == "small/inner"


def test_a_removal_that_was_interrupted_is_finished_by_the_next_one(
    client: ps.Client, shell: Shell
) -> None:
    with client.worker("broken", 0, 1, "asp") as worker:
        fill(worker, "broken/w", 5)
        fill(worker, "broken/x/w", 5)
    catalogue = client.catalogue
    handle = catalogue.tables()["broken/w"]
    record = NamespaceRecord(None, None, dropping=(handle.number,))  # and then it was killed
    ops = (
        Put(catalogue.keys.namespace("broken"), record.to_bytes()),
        Delete(catalogue.keys.table("broken/w")),
    )
    catalogue.kv.txn(Txn((), ops))
    assert shell("ns", "rm", "broken", "--yes", "--json").json["tables"] == ["broken/x/w"]
    assert "broken" not in client.catalogue.scopes.all()
    held = shell("status", "--json").json["tables"]
    assert not [table for table in held if table["table"].startswith("broken")]
    asked = shell("ns", "rm", "broken")
    assert asked.code == 2


def test_rm_asks_and_changes_nothing_without_an_answer(client: ps.Client, shell: Shell) -> None:
    with client.worker("asked", 0, 1, "asp") as worker:
        fill(worker, "asked/w", 3)
    ended = shell("ns", "rm", "asked")
    assert ended.code == 2
    assert "remove namespace 'asked' with 1 tables (3 rows)? There is nobody to ask" in ended.err
    assert "asked/w" in client.catalogue.tables()


def test_watch_tells_of_every_change_until_the_graph_is_done(client: ps.Client) -> None:
    graph = graph_of("watched")
    catalogue = client.catalogue
    with client.tasks(graph) as tasks:
        address = ("--etcd", client.catalogue.kv.endpoints[0], "--cluster", client.cluster)
        process = start("ns", "watch", "watched", "--json", *address)
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        for _ in tasks:
            pass
        out, err = process.communicate(timeout=WATCH_S)
    lines = [first, *map(json.loads, out.splitlines())]
    assert (process.returncode, err) == (0, "")
    assert (first["state"], first["done"], first["tasks"]) == ("running", 0, 9)
    assert (lines[-1]["state"], lines[-1]["done"]) == ("done", 9)
    done = [line["done"] for line in lines]
    assert done == sorted(done)
    assert [space["namespace"] for space in first["namespaces"]] == [
        "watched/features",
        "watched/tower",
    ]
    assert catalogue.job("watched").state == "done"


def test_a_failed_graph_is_told_and_goes_on_after_retry(client: ps.Client, shell: Shell) -> None:
    graph = graph_of("failing")
    with client.tasks(graph) as tasks, pytest.raises(ZeroDivisionError):
        tasks.run(lambda task: 1 // (task.step - 2))
    ended = shell("ns", "watch", "failing")
    assert ended.code == 1
    assert "failing: failed" in ended.out
    assert "step 2 of failing/features" in ended.err
    assert "ns retry failing" in ended.err
    picture = shell("ns", "plot", "failing").out
    assert "badbox" in picture
    told = shell("ns", "retry", "failing", "--json").json
    assert told["retried"] == "failing"
    assert "ZeroDivisionError" in told["failure"]
    again = shell("ns", "retry", "failing")
    assert again.code == 2
    assert "has not failed: it is running" in again.err
    with client.tasks(graph) as tasks:
        tasks.run(lambda task: None)
    assert shell("ns", "watch", "failing", "--json").json["state"] == "done"
    nothing = shell("ns", "retry", "nothing")
    assert nothing.code == 2
    assert "there is no graph 'nothing'" in nothing.err


def test_a_removed_namespace_wakes_who_waits_for_its_graph(
    cluster: RunningCluster, client: ps.Client, shell: Shell
) -> None:
    graph = graph_of("going")
    with client.tasks(graph, namespaces=["going/tower"]) as tasks:  # nobody does the features
        process = start("ns", "watch", "going", "--etcd", cluster.etcd, "--cluster", cluster.name)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("going: running, 0 of 9 tasks")
        ended = shell("ns", "rm", "going/features", "--yes", "--json")
        assert ended.json["graphs"] == ["going"]
        with pytest.raises(ps.NotFound):
            tasks.next()
        out, _ = process.communicate(timeout=WATCH_S)
    assert process.returncode == 1
    assert "going: removed" in out


def test_plot_draws_every_namespace_and_dependency(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "graph.toml"
    file.write_text(
        'name = "drawn"\nsteps = 4\nexclusive = [["a<b", "x/y"]]\n'.replace("a<b", "forward")
        + "[namespaces.features]\nwidth = 4\n"
        + '[namespaces.forward]\nafter = [{ namespace = "features" }]\n'
        + '[namespaces."x/y"]\nafter = [{ namespace = "forward", lag = 2 }, '
        + '{ namespace = "x/y", lag = 1 }]\n'
    )
    out = tmp_path / "graph.svg"
    ended = shell("ns", "plot", str(file), "--out", str(out), "--json")
    assert ended.json["file"] == str(out)
    root = ElementTree.fromstring(out.read_text())
    svg = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{svg}text")]
    for told in ("features", "forward", "x/y", "4 lanes, step 0/4", "lag 2", "lag 1"):
        assert told in texts
    assert "at most one task at a time: forward, x/y" in texts
    ways = [path for path in root.iter(f"{svg}path") if "way" in (path.get("class") or "")]
    assert len(ways) == 3
    wrong = shell("ns", "plot", str(file), "--json")
    assert wrong.code == 2
    missing = shell("ns", "plot", str(tmp_path / "none.toml"))
    assert missing.code == 2


def test_a_graph_record_that_is_gone_ends_watching_with_its_name(
    client: ps.Client, shell: Shell
) -> None:
    keys = ClusterKeys(client.cluster)
    failure = Failure("lone", 0, 1, "it was too cold")
    graph = ps.Graph("lone", steps=1)
    graph.add("lone")
    record = GraphRecord(77, graph.to_json(), "failed", failure)
    client.catalogue.kv.txn(Txn((), (Put(keys.graph("lone"), record.to_bytes()),)))
    assert "it was too cold" in shell("ns", "watch", "lone").err
    client.catalogue.kv.txn(Txn((), (Delete(keys.graph("lone")),)))
    ended = shell("ns", "watch", "lone")
    assert ended.code == 2
    assert "there is no graph 'lone'" in ended.err


def test_a_task_that_finds_no_room_fails_its_graph_which_goes_on_with_more_room(
    client: ps.Client, shell: Shell
) -> None:
    graph = ps.Graph("tight", steps=4)
    graph.add("tight", width=2)
    client.namespace("tight", rows_max=50)

    def work(tasks: ps.Tasks) -> None:
        with tasks:
            table = tasks.sparse_table("tight/w", dim=1, dtype="int64", optimiser=ps.Sum())
            for task in tasks:
                first = 20 * (2 * task.step + task.n)
                table.push(range(first, first + 20), np.ones((20, 1), np.int64))

    with pytest.raises(ps.QuotaExceeded, match="namespace 'tight' is full"):
        work(client.tasks(graph))
    told = shell("ns", "watch", "tight")
    assert told.code == 1
    assert "tight: failed" in told.out
    assert "namespace 'tight' is full" in told.err
    assert shell("ns", "set", "tight", "--rows-max", "160").code == 0
    assert shell("ns", "retry", "tight").code == 0
    work(client.tasks(graph))
    table = client.table("tight/w")
    assert isinstance(table, ps.SparseTable)
    assert (table.pull(range(40, 200)) == 1).all()
    assert shell("ns", "show", "tight", "--json").json["rows"] == 160

"""The public API from end to end: real servers, on etcd and on the embedded coordination."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster

# what trains on the embedded one in the default run: `test_train_spawn`, `test_train_algorithms`
KINDS = ["etcd", pytest.param("embedded", marks=pytest.mark.soak)]
NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RunningCluster]:
    with ps.local_cluster(servers=2, coordination=request.param) as running:
        assert running.coordination == request.param
        yield running


@pytest.fixture(scope="module")
def client(cluster: RunningCluster) -> Iterator[ps.Client]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"n{next(NUMBERS)}"


@pytest.fixture
def worker(client: ps.Client, name: str) -> Iterator[ps.Worker]:
    with client.worker(name, rank=0, of=1, consistency=ps.SSP(staleness=3)) as opened:
        yield opened


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def test_gradients_of_a_key_that_repeats_are_added(worker: ps.Worker, name: str) -> None:
    table = worker.sparse_table(name, dim=2, optimiser=ps.SGD(lr=0.5))
    largest = 2**64 - 1
    table.push(np.array([7, largest, 7], np.uint64), ones(3, 2))
    expected = [[-1, -1], [-0.5, -0.5], [0, 0]]
    assert table.pull(np.array([7, largest, 8], np.uint64)).tolist() == expected
    assert table.pull([8, 7, 7]).tolist() == [[0, 0], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_every_dtype_comes_back_exactly(worker: ps.Worker, name: str, dtype: str) -> None:
    sparse = worker.sparse_table(name, dim=3, dtype=dtype, optimiser=ps.Sum())
    dense = worker.dense_table(f"{name}/d", shape=(5, 7), dtype=dtype, optimiser=ps.Sum())
    value = 2**52 + 1 if dtype != "float32" else 2**23 + 1
    keys = np.arange(100, dtype=np.uint64)
    sparse.push(keys, np.full((100, 3), value, dtype))
    dense.push(np.full((5, 7), value, dtype))
    assert sparse.pull(keys).dtype == dense.pull().dtype == dtype
    assert (sparse.pull(keys) == value).all()
    assert (dense.pull() == value).all()


def test_futures_end_in_program_order_and_out_receives_the_values(
    worker: ps.Worker, name: str
) -> None:
    sparse = worker.sparse_table(name, dim=1, optimiser=ps.Sum())
    dense = worker.dense_table(f"{name}/d", shape=(1000, 30), optimiser=ps.Sum())
    pushes = [sparse.push_async([1, 2], ones(2, 1)) for _ in range(20)]
    pushes += [dense.push_async(ones(1000, 30)) for _ in range(3)]
    for push in pushes:
        push.result()
        assert push.done()
    rows, array = np.zeros((2, 1), np.float32), np.zeros((1000, 30), np.float32)
    assert sparse.pull_async([1, 2], out=rows).result() is rows
    assert dense.pull(out=array) is array
    assert rows.tolist() == [[20], [20]]
    assert (array == 3).all()


def test_the_learning_rate_can_be_changed(worker: ps.Worker, name: str) -> None:
    table = worker.sparse_table(name, dim=1, optimiser=ps.SGD(lr=1.0))
    table.push([1], ones(1, 1))
    table.set_learning_rate(0.25)
    table.push([1], ones(1, 1))
    assert table.pull([1]).tolist() == [[-1.25]]
    with pytest.raises(ps.BadInput, match="lr must be"):
        table.set_learning_rate(0.0)


def test_another_specification_is_an_error_that_shows_both(
    client: ps.Client, worker: ps.Worker, name: str
) -> None:
    worker.sparse_table(name, dim=4, optimiser=ps.SGD(lr=0.5))
    other = client.worker(f"{name}-other", rank=0, of=1, consistency="asp")
    with other, pytest.raises(ps.SpecMismatch) as caught:
        other.sparse_table(name, dim=8, optimiser=ps.Adagrad(lr=0.5))
    for part in ("dim 4", "SGD(lr=0.5)", "dim 8", "Adagrad(lr=0.5", f"table rm {name}"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "gradients", "says"),
    [
        ([-1, 2], ones(2, 2), "negative"),
        ([1.5, 2.5], ones(2, 2), "integer"),
        ([1, 2], ones(2, 3), r"\(2, 2\)"),
        ([1, 2], ones(3, 2), r"\(2, 2\)"),
        ([1, 2], ones(2, 2, dtype="float64"), "float64"),
        ([[1, 2]], ones(2, 2), "one dimension|shape"),
    ],
    ids=["negative key", "fractional key", "dim", "rows", "dtype", "two-dimensional keys"],
)
def test_wrong_keys_and_gradients_are_refused(
    worker: ps.Worker, name: str, keys: object, gradients: np.ndarray, says: str
) -> None:
    table = worker.sparse_table(name, dim=2, optimiser=ps.Sum())
    with pytest.raises(ps.BadInput, match=says):
        table.push(keys, gradients)
    table.push([1], ones(1, 2))  # the worker lives on
    assert table.pull([1, 2]).tolist() == [[1, 1], [0, 0]]


def test_wrong_dense_shapes_and_outs_are_refused(worker: ps.Worker, name: str) -> None:
    table = worker.dense_table(name, shape=(4, 3), optimiser=ps.Sum())
    with pytest.raises(ps.BadInput, match=r"shape \(4, 3\), not \(3, 4\)"):
        table.push(ones(3, 4))
    read_only = np.frombuffer(bytes(48), np.float32).reshape(4, 3)
    for out in (np.empty((4, 3)), np.empty((4, 6), np.float32)[:, ::2], read_only):
        with pytest.raises(ps.BadInput, match="out must be float32"):
            table.pull(out=out)
    with pytest.raises(ps.BadInput, match="out must be a numpy array, not list"):
        table.pull(out=[])  # type: ignore[arg-type]


def test_a_reader_sees_the_rows_and_cannot_push(
    client: ps.Client, worker: ps.Worker, name: str
) -> None:
    worker.sparse_table(name, dim=1, optimiser=ps.Sum()).push([5], ones(1, 1))
    table = client.table(name)
    assert isinstance(table, ps.SparseTable)
    assert table.pull([5]).tolist() == [[1]]
    with pytest.raises(ps.FixTheCall, match=r"opened for reading.*worker\.sparse_table"):
        table.push([5], ones(1, 1))
    with pytest.raises(ps.NotFound, match=f"no table 'not-there'; tables: .*{name}"):
        client.table("not-there")


def test_a_pull_that_waits_in_vain_names_the_rank(cluster: RunningCluster, name: str) -> None:
    with (
        cluster.connect(deadline_s=3.0) as client,
        client.worker(name, rank=0, of=2, consistency=ps.BSP()) as worker,
    ):
        table = worker.sparse_table(name, dim=1, optimiser=ps.Sum())
        table.push([1], ones(1, 1))
        worker.tick()
        with pytest.raises(ps.DeadlineExceeded, match=f"{name}.*waits for clock 1 of rank 1"):
            table.pull([1])


def test_a_rank_that_was_taken_over_is_fenced(client: ps.Client, name: str) -> None:
    first = client.worker(name, rank=0, of=1, consistency=ps.ASP())
    table = first.sparse_table(name, dim=1, optimiser=ps.Sum())
    table.push([1], ones(1, 1))
    first.tick({"at": 7})
    with client.worker(name, rank=0, of=1, consistency=ps.ASP()) as second:
        assert (second.clock, second.cursor) == (2, {"at": 7})
        with pytest.raises(ps.Fenced, match=f"rank 0 of job '{name}' was taken over"):
            table.push([1], ones(1, 1))
        with pytest.raises(ps.Fenced):
            first.tick()
        assert client.table(name).pull([1]).tolist() == [[1]]


def test_a_job_of_another_shape_is_an_error_that_shows_both(client: ps.Client, name: str) -> None:
    client.worker(name, rank=0, of=2, consistency="ssp:3").close()
    with pytest.raises(ps.SpecMismatch, match=r"2 ranks under ssp:3.*3 ranks under bsp"):
        client.worker(name, rank=0, of=3, consistency="bsp")
    with pytest.raises(ps.BadInput, match="rank -1"):
        client.worker(name, rank=-1, of=2, consistency="ssp:3")


def test_a_rank_can_leave_and_another_join(client: ps.Client, name: str) -> None:
    with client.worker(name, rank=0, of=2, consistency=ps.BSP()) as worker:
        table = worker.sparse_table(name, dim=1, optimiser=ps.Sum())
        table.push([1], ones(1, 1))
        worker.tick()
        client.worker(name, rank=1, of=2, consistency=ps.BSP()).leave()
        assert table.pull([1]).tolist() == [[1]]  # nobody waits for rank 1 any more
        with client.join(name, rank=2) as joined:
            mine = joined.sparse_table(name, dim=1, optimiser=ps.Sum())
            while worker.clock < joined.clock:
                worker.tick()
            for one in (table, mine):
                one.push([1], ones(1, 1))
            worker.tick()
            joined.tick()
            assert table.pull([1]).tolist() == mine.pull([1]).tolist() == [[3]]
        with pytest.raises(ps.Reopen, match="left"):
            client.worker(name, rank=1, of=2, consistency=ps.BSP())


def test_removing_a_job_frees_its_name_and_its_tables(client: ps.Client, name: str) -> None:
    with client.worker(name, rank=0, of=1, consistency="bsp") as worker:
        worker.sparse_table(name, dim=1, optimiser=ps.Sum()).push([1], ones(1, 1))
        worker.tick()
    with client.worker(f"{name}-2", rank=0, of=1, consistency="asp") as other:
        table = other.sparse_table(name, dim=1, optimiser=ps.Sum())
        with pytest.raises(ps.FixTheCall, match=f"{name}"):
            table.push([1], ones(1, 1))
    client.end_job(f"{name}-2", "stopped")
    client.remove_job(name)
    with client.worker(name, rank=0, of=3, consistency="asp") as again:
        assert again.clock == 1
        again.sparse_table(name, dim=1, optimiser=ps.Sum()).push([1], ones(1, 1))
    assert client.table(name).pull([1]).tolist() == [[2]]
    with pytest.raises(ps.Reopen, match="stopped"):
        client.worker(f"{name}-2", rank=0, of=1, consistency="asp")
    with pytest.raises(ps.NotFound, match="no job 'not-there'"):
        client.remove_job("not-there")


def test_no_cluster_and_no_etcd_are_told_apart(cluster: RunningCluster) -> None:
    with pytest.raises(ps.NotFound, match=r"no cluster 'other'.*clusters: local"):
        ps.connect(cluster.etcd, "other", deadline_s=0.5)
    with pytest.raises(ps.Unavailable, match=r"127\.0\.0\.1:1\b.*check that etcd runs"):
        ps.connect("127.0.0.1:1", deadline_s=0.5)


# --- a worker process that is killed in the middle of a clock ------------------------------------

PROGRAM = """
import sys
import numpy as np
import resilient_ps as ps
from resilient_ps.data import SparseArrayDataset

etcd, cluster, name, rank, dies_in = sys.argv[1:]
rows = SparseArrayDataset(np.ones(64), np.arange(65), np.arange(64) % 5)
with (
    ps.connect(etcd, cluster) as client,
    client.worker(name, int(rank), 2, consistency=ps.BSP()) as worker,
):
    table = worker.sparse_table(name, dim=2, optimiser=ps.Adagrad(lr=0.1))
    for batch in worker.batches(rows, batch_size=4, epochs=2):
        pulled = table.pull(batch.keys)
        gradient = np.sin(pulled + 1 + batch.keys[:, None].astype(np.float32) / 7)
        table.push(batch.keys[:2], gradient[:2].astype(np.float32))
        if worker.clock == int(dies_in):
            print("half of the clock is pushed", flush=True)
            sys.stdin.read()
        table.push(batch.keys[2:], gradient[2:].astype(np.float32))
    print(worker.clock)
"""


def start_rank(
    cluster: RunningCluster, name: str, rank: int, dies_in: int = 0
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, cluster.etcd, cluster.name, name, str(rank)]
    return subprocess.Popen(
        [*command, str(dies_in)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def model_bytes(client: ps.Client, name: str) -> bytes:
    return client.table(name).pull(np.arange(5, dtype=np.uint64)).tobytes()


def train_both(cluster: RunningCluster, client: ps.Client, name: str, dies_in: int) -> bytes:
    """Both ranks in processes; rank 1 is killed in clock `dies_in`, and started again."""
    ranks = [start_rank(cluster, name, 0), start_rank(cluster, name, 1, dies_in)]
    if dies_in:
        assert ranks[1].stdout is not None
        assert ranks[1].stdout.readline() == "half of the clock is pushed\n"
        ranks[1].send_signal(signal.SIGKILL)
        ranks[1].communicate()
        ranks[1] = start_rank(cluster, name, 1)
    for rank in ranks:
        assert rank.communicate()[0] == "17\n"
        assert rank.returncode == 0
    trained = model_bytes(client, name)
    client.remove_job(name)
    client.drop_table(name)
    return trained


@pytest.mark.parametrize("cluster", ["etcd"], indirect=True)
def test_a_worker_killed_mid_clock_leaves_no_trace_in_the_model(
    cluster: RunningCluster, client: ps.Client, name: str
) -> None:
    undisturbed = train_both(cluster, client, name, dies_in=0)
    assert np.frombuffer(undisturbed, np.float32).all()
    assert train_both(cluster, client, name, dies_in=5) == undisturbed


def test_a_server_that_dies_is_named_with_its_shard_also_when_it_is_back() -> None:
    flags = ["--lease-ttl", "1"]
    with (
        ps.local_cluster(2, replicas=1, coordination="embedded", server_flags=flags) as cluster,
        cluster.connect(deadline_s=2.0) as client,
    ):
        worker = client.worker("job", rank=0, of=1, consistency="asp")
        table = worker.sparse_table("t", dim=1, optimiser=ps.Sum())
        keys = np.arange(1000, dtype=np.uint64)
        table.push(keys, ones(1000, 1))
        cluster.processes.kill("s2")
        with pytest.raises(ps.DeadlineExceeded, match=r"table .*push .* shard \d+ .*\bs2\b"):
            table.push(keys, ones(1000, 1))
        cluster.processes.restart("s2")
        for _ in range(30):  # until the old process's lease is over
            with pytest.raises(ps.DeadlineExceeded, match=r"\bs2\b") as caught:
                worker.flush()
            if "s2 was restarted, empty" in str(caught.value):
                break
        with pytest.raises(ps.Unavailable, match=r"shard .* s2 was restarted, empty"):
            cluster.connect(deadline_s=2.0)
        with pytest.raises(ps.DeadlineExceeded, match=r"\bs2\b"):
            worker.close()  # the push is still on its way

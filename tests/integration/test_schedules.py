"""Real processes on real shards: each sample counts once, whoever is killed; who is free does more.

Every rank adds 1 to a counter of each of its samples, in several pushes for each batch.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_process import Shell
from rank_program import BATCH_SIZE, DATA_SHARDS, EPOCHS, PUSHES, ROWS

import resilient_ps as ps
from resilient_ps.client.launch import RunningCluster
from resilient_ps.data import SparseArrayDataset
from resilient_ps.errors import FixTheCall

PROGRAM = str(Path(__file__).with_name("rank_program.py"))
NUMBERS = itertools.count()
PATIENCE_S = 100.0
PUSHES_OF_A_DATA_SHARD = ROWS // DATA_SHARDS // BATCH_SIZE * PUSHES


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(2) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: RunningCluster) -> Iterator[ps.Client]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"s{next(NUMBERS)}"


class Ranks:
    """Processes of the ranks of a job; what is left of them is killed at the end."""

    def __init__(self, cluster: RunningCluster, job: str, of: int, mode: str, schedule: str):
        self._command = [sys.executable, PROGRAM, cluster.etcd, cluster.name, job]
        self._words = [str(of), mode, schedule]
        self._started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, *options: str) -> subprocess.Popen[str]:
        command = [*self._command, str(rank), *self._words, *options]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks(request: pytest.FixtureRequest, cluster: RunningCluster, job: str) -> Iterator[Ranks]:
    started = Ranks(cluster, job, *request.param)
    yield started
    started.close()


def follow(process: subprocess.Popen[str], pushes: int) -> int:
    """Until it has pushed so many times, or ends; how many it has."""
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.strip().isdigit()
        if seen == pushes:
            break
    return seen


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for its good end; its last line."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return out.strip().split("\n")[-1]


def counts(client: ps.Client, job: str) -> list[int]:
    table = client.table(job)
    assert isinstance(table, ps.SparseTable)
    return table.pull(np.arange(ROWS, dtype=np.uint64)).ravel().tolist()


def given(*values: object) -> pytest.MarkDecorator:
    """(ranks, mode, schedule) of a test."""
    return pytest.mark.parametrize(
        "ranks", [values], indirect=True, ids=["-".join(map(str, values))]
    )


@pytest.mark.parametrize(
    "ranks",
    [
        (2, "bsp", "static"),
        (2, "ssp:2", "dynamic"),
        pytest.param((2, "bsp", "dynamic"), marks=pytest.mark.soak),
        pytest.param((2, "ssp:2", "static"), marks=pytest.mark.soak),
    ],
    indirect=True,
    ids=lambda values: "-".join(map(str, values)),
)
def test_each_sample_counts_once_per_epoch_when_ranks_are_killed_at_random_moments(
    client: ps.Client, job: str, ranks: Ranks
) -> None:
    random = np.random.default_rng(sum(job.encode()))
    deaths = [random.integers(1, 60, count).tolist() for count in (2, 1)]
    ends: dict[int, str] = {}

    def live(rank: int) -> None:
        for pushes in deaths[rank]:
            process = ranks.start(rank)
            follow(process, pushes)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        ends[rank] = finish(ranks.start(rank))

    lives = [threading.Thread(target=live, args=(rank,)) for rank in range(2)]
    for thread in lives:
        thread.start()
    for thread in lives:
        thread.join(PATIENCE_S)
    assert counts(client, job) == [EPOCHS] * ROWS, deaths
    assert len(ends) == 2
    assert len(set(ends.values())) == 1, "all end in the same clock"


@given(2, "asp", "dynamic")
def test_a_slow_rank_takes_fewer_data_shards(client: ps.Client, job: str, ranks: Ranks) -> None:
    slow = ranks.start(1, "", "1")
    assert follow(slow, 1) == 1
    fast = ranks.start(0)
    left = DATA_SHARDS * EPOCHS - 1
    assert follow(fast, left * PUSHES_OF_A_DATA_SHARD) == left * PUSHES_OF_A_DATA_SHARD
    out, errors = slow.communicate("\n", timeout=PATIENCE_S)
    assert slow.returncode == 0, errors
    assert out.split()[-5] == str(PUSHES_OF_A_DATA_SHARD)
    finish(fast)
    assert counts(client, job) == [EPOCHS] * ROWS


@given(2, "ssp:1000", "dynamic")
def test_the_heir_of_a_dead_rank_ends_its_clock_and_leaves_the_rest_to_others(
    client: ps.Client, job: str, ranks: Ranks, shell: Shell, cluster: RunningCluster
) -> None:
    dead = ranks.start(1)
    follow(dead, PUSHES + 1)  # in the middle of its second batch
    dead.kill()
    dead.communicate()
    where = ("--cluster", cluster.name, "--etcd", cluster.etcd)
    refused = shell("job", "leave", job, "1", *where)
    assert refused.code == 2
    assert "has data shard 0 in hand" in refused.err
    assert "--retire" in refused.err
    other = ranks.start(0)
    heir = ranks.start(1, "retire")
    finish(heir)
    finish(other)
    assert counts(client, job) == [EPOCHS] * ROWS


@given(2, "bsp", "dynamic")
def test_a_rank_that_died_under_bsp_can_be_taken_out_and_others_finish_its_work(
    client: ps.Client, job: str, ranks: Ranks, shell: Shell, cluster: RunningCluster
) -> None:
    dead, other = ranks.start(1), ranks.start(0)
    follow(dead, 3 * PUSHES + 1)
    dead.kill()
    dead.communicate()
    where = ("--cluster", cluster.name, "--etcd", cluster.etcd)
    left = shell("job", "leave", job, "1", *where, "--json")
    assert left.code == 0, left.err
    assert left.json["ticked"] >= 3
    finish(other)
    assert counts(client, job) == [EPOCHS] * ROWS


@given(1, "ssp:3", "static")
def test_a_program_whose_keys_differ_from_process_to_process_is_told_so(
    job: str, ranks: Ranks
) -> None:
    first = ranks.start(0, "stray", str(PUSHES + 1))
    assert follow(first, PUSHES + 1) == PUSHES + 1
    first.kill()
    first.communicate()
    _, errors = ranks.start(0, "stray").communicate(timeout=PATIENCE_S)
    last = errors.strip().split("\n")[-1]
    assert last.startswith("resilient_ps.errors.NotRepeatable: ")
    assert "rank 0 repeats clock 2 differently" in last
    differs = "its keys differ from those of the first time"  # or fall on other shards
    assert differs in last or "was left out" in last
    assert "must push the same keys when a clock is run again" in last


@given(2, "asp", "dynamic")
def test_ranks_must_agree_in_the_data_and_in_how_it_is_cut(
    client: ps.Client, job: str, ranks: Ranks
) -> None:
    finish(ranks.start(0))
    rows = numbered_rows(ROWS)
    with client.worker(job, 1, 2, "asp") as worker:
        with pytest.raises(ps.SpecMismatch, match=r"8 data shards per epoch .* asked for were 9"):
            worker.batches(rows, batch_size=5, epochs=2, schedule="dynamic", data_shards=9)
        with pytest.raises(ps.SpecMismatch, match=f'"rows": {ROWS}.*"rows": {ROWS - 1}'):
            worker.batches(numbered_rows(ROWS - 1), epochs=2, schedule="dynamic", data_shards=8)
        with pytest.raises(ps.BadInput, match="use 'static' or 'dynamic'"):
            worker.batches(rows, schedule="random")  # type: ignore[arg-type]
        assert list(worker.batches(rows, epochs=2, schedule="dynamic", data_shards=8)) == []


def numbered_rows(rows: int) -> SparseArrayDataset:
    keys = np.arange(rows, dtype=np.uint64)
    return SparseArrayDataset(np.ones(rows), np.arange(rows + 1), keys, shuffle_seed=3)


def test_who_waits_in_vain_is_told_for_whom(client: ps.Client, job: str) -> None:
    rows = numbered_rows(20)
    with client.worker(job, 0, 2, "ssp:1") as holder, client.worker(job, 1, 2, "ssp:1") as waiter:
        holder.sparse_table(job, dim=1, optimiser=ps.Sum())  # the waiter can do without
        held = holder.batches(rows, batch_size=5, schedule="dynamic", data_shards=2)
        next(held)
        others = waiter.batches(
            rows, batch_size=5, schedule="dynamic", data_shards=2, patience_s=0.5
        )
        with pytest.raises(ps.DeadlineExceeded, match="data shard 0 of epoch 0 by rank 0"):
            list(others)
        with pytest.raises(FixTheCall, match=r"call retire\(\) instead"):
            holder.leave()

"""Workloads on real processes hold when a worker is killed, and convict what is wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_ranks import CLUSTER, Ranks, ranks_of, small_cluster

import resilient_ps as ps
from resilient_ps.chaos.live.audit import AUDIT_VARIABLE, SUFFIX
from resilient_ps.chaos.live.evidence import AUDIT_FOLDER
from resilient_ps.chaos.live.stores import StoreHere
from resilient_ps.chaos.live.workload import LiveWorkload, make_workload
from resilient_ps.chaos.live.workloads.bank import Bank
from resilient_ps.chaos.live.workloads.recorded import EXACTLY_ONCE
from resilient_ps.chaos.live.workloads.script import BOUNDS
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.storage.runtime.open import open_store

RANKS = 2
QUICK = 40.0  # clocks a second: servers that start need most of the machine
CLOCKS = 8
NUMBERS = itertools.count()


class Here:
    """Of a scene what workloads look at before they begin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = CLUSTER


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    return Here(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def cluster(here: Here) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(AUDIT_VARIABLE, str(here.folder / AUDIT_FOLDER))
        with small_cluster(here.folder) as processes:
            yield processes


def run_with_a_kill(
    cluster: LocalCluster, here: Here, folder: Path, name: str, mode: str
) -> tuple[LiveWorkload, Ranks]:
    load = make_workload(name, workers=RANKS, mode=mode, folder=folder, clocks_per_s=QUICK)
    load.start(here)  # type: ignore[arg-type]
    with ranks_of(cluster, load, folder) as ranks:
        ranks.wait_for_clocks(CLOCKS)
        ranks.kill(0)
        ranks.start(0)
        ranks.wait_for_clocks(CLOCKS)
        ranks.end()
    return load, ranks


def outcomes(ranks: Ranks) -> dict[str, str]:
    judged = ranks.judge()
    print(judged)
    return {name: each.outcome for name, each in judged.items()}


def meddle(ranks: Ranks, table: str, key: int, amount: int) -> None:
    """Somebody else adds to a row behind everybody's back."""
    job = f"meddler{next(NUMBERS)}"
    with ranks.connect() as client:
        with client.worker(job, 0, 1, "asp") as worker:
            held = worker.table(table)
            assert isinstance(held, ps.SparseTable)
            held.push(np.array([key], np.uint64), np.array([[amount]], np.int64))
            worker.tick()
        client.end_job(job, "done")


@pytest.mark.parametrize(
    ("name", "mode", "table", "checker"),
    [
        ("one-hot", "asp", "one-hot/slots", "every push is applied once"),
        ("barrier", "bsp", "barrier/rows", "every clock is counted once"),
        ("transfer", "bsp", "transfer/accounts", "the books balance in the end"),
        pytest.param(
            *("counter", "ssp:1", "counter/rows", "every clock is counted once"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("staleness", "ssp:2", "staleness/rows", "every clock is counted once"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("namespace", "ssp:2", "b/accounts", "the books balance in the end"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_workload_holds_with_a_killed_worker_and_convicts_what_is_doubled_or_lost(
    cluster: LocalCluster,
    here: Here,
    tmp_path: Path,
    name: str,
    mode: str,
    table: str,
    checker: str,
) -> None:
    load, ranks = run_with_a_kill(cluster, here, tmp_path, name, mode)
    found = outcomes(ranks)
    assert set(found.values()) == {"true"}
    assert {checker, EXACTLY_ONCE} <= found.keys()
    acknowledged, failed, unknown, pulls = load.counts()
    assert acknowledged >= 2 * CLOCKS * RANKS
    assert pulls >= 2 * CLOCKS * RANKS
    assert failed == 0
    assert unknown <= 8, "what the killed process had begun"

    key = first_key_pushed(tmp_path, table)
    with ranks.connect() as client:
        client.end_job(load.name, "done")  # tables have one writer
    meddle(ranks, table, key, 1)
    assert outcomes(ranks)[checker] == "false", "doubled"
    meddle(ranks, table, key, -2)
    assert outcomes(ranks)[checker] == "false", "lost"


def first_key_pushed(folder: Path, table: str) -> int:
    """As it stands in a history; of rows, where their ranks stand, the key of rank 0 is 0."""
    for path in sorted((folder / "histories").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            what, *rest = json.loads(line)
            if what == "begun" and rest[2] == "push" and rest[5] == table:
                return int(rest[4][0])
    raise AssertionError(f"nobody pushed to {table}")


@pytest.mark.parametrize(
    ("name", "mode", "measure", "untrained"),
    [
        ("train", "bsp", "held-out log loss", 0.69),
        pytest.param("train-fm", "bsp", "held-out RMSE", 0.85, marks=pytest.mark.soak),
        pytest.param("train-mf", "ssp:2", "held-out RMSE", 0.85, marks=pytest.mark.soak),
        pytest.param("train-mlp", "bsp", "held-out log loss", 1.09, marks=pytest.mark.soak),
        pytest.param(
            *("train-embedding-mlp", "bsp", "held-out log loss", 0.693), marks=pytest.mark.soak
        ),
    ],
)
def test_training_that_loses_a_worker_ends_with_the_undisturbed_model(
    cluster: LocalCluster,
    here: Here,
    tmp_path: Path,
    name: str,
    mode: str,
    measure: str,
    untrained: float,
) -> None:
    load, ranks = run_with_a_kill(cluster, here, tmp_path, name, mode)
    assert set(outcomes(ranks).values()) == {"true"}
    metrics = load.metrics()
    assert metrics[measure] < untrained
    if mode == "bsp":
        assert metrics[measure] == metrics[f"undisturbed {measure}"]


@pytest.mark.soak  # trains for a quarter of a minute; `test_models_that_die` has a short case
def test_counts_of_topics_agree_with_them_after_a_kill_and_not_when_one_is_doubled(
    cluster: LocalCluster, here: Here, tmp_path: Path
) -> None:
    load, ranks = run_with_a_kill(cluster, here, tmp_path, "train-lda", "asp")
    assert set(outcomes(ranks).values()) == {"true"}
    with ranks.connect() as client:
        client.end_job(load.name, "done")
        with client.worker("topics", 0, 1, "asp") as worker:
            words = worker.table("lda/words")
            assert isinstance(words, ps.SparseTable)
            words.push(np.array([7], np.uint64), np.eye(1, words.spec.dim, dtype=np.int64))
            worker.tick()
        contradictions = load._trained.contradictions(client)  # type: ignore[attr-defined]
    assert [each[:7] for each in contradictions] == ["word 7:"]


SCRIPT = """
import sys
import numpy as np
import resilient_ps as ps
with ps.connect() as client, client.worker("users", consistency="ssp:1") as worker:
    table = worker.sparse_table("users", dim=2, optimiser=ps.Adagrad(lr=0.1))
    while worker.clock <= int(sys.argv[1]):
        keys = np.arange(worker.clock, worker.clock + 20, dtype=np.uint64)
        table.push(keys, np.ones((20, 2), np.float32))
        table.pull(keys)
        worker.tick()
print("metric loss", 0.25 * (worker.rank + 1))
"""


class Scripted(Here):
    """A scene with two workers."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        super().__init__(folder)
        self.ranks = ranks

    def party(self, name: str) -> Here:
        found = Here(self.folder)
        found.log = self.ranks.log_of(int(name[1:]))
        found.exit_code = self.ranks.exit_code(int(name[1:]))
        return found

    def parties(self, role: str) -> list[Here]:
        return [self.party(f"w{rank}") for rank in range(self.ranks.load.ranks)]


def test_the_pushes_of_a_users_script_are_judged_and_its_metric_is_told(
    cluster: LocalCluster, here: Here, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    load = make_workload(
        "script", workers=RANKS, folder=tmp_path, script=[str(script), str(40 * CLOCKS)]
    )
    with ranks_of(cluster, load, tmp_path) as ranks:
        load.start(Scripted(here.folder, ranks))  # type: ignore[arg-type]
        ranks.wait_for_clocks(CLOCKS)
        ranks.kill(1)
        ranks.start(1)
        ranks.end()
    kept = dict.fromkeys((EXACTLY_ONCE, BOUNDS, "every rank ends in order"), "true")
    assert outcomes(ranks) == kept
    assert load.metrics() == {"loss": 0.375}
    acknowledged, _, _, pulls = load.counts()
    assert acknowledged >= 40 * CLOCKS * RANKS - 1
    assert pulls >= 40 * CLOCKS * RANKS - 1

    audit = max((here.folder / AUDIT_FOLDER).glob(f"*{SUFFIX}"))
    lines = audit.read_text().splitlines()
    push = json.loads([line for line in lines if line.startswith('["push"')][-1])
    push[4] += 1_000_000  # the same push once more, later in the shard's log
    audit.write_text("".join(f"{line}\n" for line in [*lines, json.dumps(push)]))
    assert outcomes(ranks)[EXACTLY_ONCE] == "false"
    assert outcomes(ranks)[BOUNDS] == "true"

    for each in (here.folder / AUDIT_FOLDER).glob(f"*{SUFFIX}"):
        told = [json.loads(line) for line in each.read_text().splitlines()]
        known = [t for t in told if not (t[0] == "tick" and t[6] == 1 and t[8] >= CLOCKS)]
        each.write_text("".join(f"{json.dumps(t)}\n" for t in known))  # rank 1 never came so far
    assert outcomes(ranks)[BOUNDS] == "false"


def test_books_balance_in_checkpoints_and_after_the_cluster_went_back_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUDIT_VARIABLE, str(tmp_path / AUDIT_FOLDER))
    store = StoreHere(str(tmp_path / "store"))
    often = CheckpointSettings(every_clocks=5, keep_last=100, cut_deadline_s=10, loss_grace_s=1.0)
    with small_cluster(tmp_path, 1, Standby(StorePlace(store.url), often)) as processes:
        scene = Here(tmp_path)
        load = make_workload("namespace", workers=RANKS, folder=tmp_path, clocks_per_s=QUICK)
        load.start(scene)  # type: ignore[arg-type]
        assert isinstance(load, Bank)
        load.look_into(store, CLUSTER)
        with ranks_of(processes, load, tmp_path) as ranks:
            with StoredCheckpoints(open_store(store.url), CLUSTER) as stored:
                while not any(each.manifest for each in stored.listed()):
                    ranks.wait_for_clocks(2)
            processes.kill("s1")  # and with it all that is not in a checkpoint
            processes.restart("s1")
            ranks.wait_for_clocks(5)
            ranks.end()
        held = "a checkpoint is a consistent cut"
        assert set(outcomes(ranks).values()) == {"true"}
        told = load.histories.history().rollbacks_told()
        assert {each.before for each in told} == {1}
        load.accounts = tuple(reversed(load.accounts))
        assert outcomes(ranks)[held] == "false", "each table is taken for the other one"

"""Models whose processes are killed in the middle of pushing end as those that nobody disturbed.

Slow because each test has clusters of its own, on which names of tables and jobs are the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_ranks import small_cluster
from model_program import (
    CLICK_MODEL,
    EPOCHS,
    MODELS,
    PIPELINED,
    REUTERS_MODEL,
    SCHEDULES,
    TOPIC_MODEL,
    clicks,
    documents,
)

import resilient_ps as ps
from resilient_ps.data import Corpus, reuters
from resilient_ps.models import LDA
from resilient_ps.models.embedding_mlp import EmbeddingTables
from resilient_ps.models.lda import LDATables
from resilient_ps.models.lda_sampler import counted
from resilient_ps.runtime.local import LocalCluster

PROGRAM = Path(__file__).with_name("model_program.py")
PATIENCE_S = 90.0
BAND = 0.01
OF = 2


class Processes:
    """Those that train one model on one cluster."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, job: str, **options: Any) -> subprocess.Popen[bytes]:
        etcd = ",".join(self.cluster.endpoints)
        command = [sys.executable, str(PROGRAM), etcd, self.cluster.cluster, job]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*command, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._running.append(process)
        return process

    @property
    def _log(self) -> Path:
        return self._folder / "processes.log"

    def wait(self, process: subprocess.Popen[bytes], code: int = 0) -> None:
        assert process.wait(PATIENCE_S) == code, self._log.read_bytes()[-4000:].decode()

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def connect(self) -> ps.Client:
        etcd = ",".join(self.cluster.endpoints)
        return ps.connect(etcd, self.cluster.cluster, deadline_s=PATIENCE_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A cluster with backups, on which processes die."""
    with small_cluster(tmp_path) as cluster:
        found = Processes(cluster, tmp_path)
        try:
            yield found
        finally:
            found.end()


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Processes]:
    """A cluster on which nothing happens: tables begin alike where their names are the same."""
    with LocalCluster(1, replicas=1) as cluster:
        found = Processes(cluster, tmp_path)
        try:
            yield found
        finally:
            found.end()


def train_ranks(
    processes: Processes, model: str, mode: str, die_at: int = 0, wait_in: int = 0
) -> None:
    """Rank 0 is killed, where `die_at` says so, and started again.

    In clock `wait_in` rank 1 waits until rank 0 works again.
    """
    told: dict[str, Any] = {"model": model, "of": OF, "mode": mode}
    how = {"how": {"wait_in": wait_in}} if wait_in else {}
    first = processes.start(model, rank=0, die_at=die_at, **told)
    second = processes.start(model, rank=1, **told, **how)
    if die_at:
        processes.wait(first, -signal.SIGKILL)
        first = processes.start(model, rank=0, **told)
    if wait_in:
        assert first.stdout is not None
        assert second.stdin is not None
        assert first.stdout.readline() == b"works\n"
        second.stdin.write(b"go on\n")
        second.stdin.flush()
    processes.wait(first)
    processes.wait(second)


def train_holders(processes: Processes, model: str, die_at: int) -> None:
    """Of two holders one is killed in the middle of a task; a third one joins."""
    first = processes.start(model, model=model, die_at=die_at)
    second = processes.start(model, model=model)
    processes.wait(first, -signal.SIGKILL)
    third = processes.start(model, model=model)
    processes.wait(second)
    processes.wait(third)


def in_serial_order(processes: Processes, model: str) -> None:
    """The same tasks, by one worker one after the other."""
    schedule = SCHEDULES[model]
    with processes.connect() as client, client.worker(model, 0, 1, "bsp") as worker:
        MODELS[model](_Serial(worker, schedule.graph), EPOCHS[model])


class _Serial:
    def __init__(self, worker: ps.Worker, graph: ps.Graph) -> None:
        self._worker, self._graph = worker, graph
        self.sparse_table, self.dense_table = worker.sparse_table, worker.dense_table

    def run(self, work: Any) -> None:
        for rank, step in self._graph.serial_order():
            work(ps.Task("", 0, step, rank, 0))
            self._worker.tick()


def topics_of(client: ps.Client, model: LDA, corpus: Corpus) -> tuple[Any, float]:
    """Topics of all words, and their log likelihood per word; counts must agree with them."""
    tables = LDATables(*(client.table(name) for name in model.table_names))  # type: ignore[arg-type]
    topics = model.assigned(tables, corpus)
    held = tables.words.pull(np.arange(corpus.vocabulary_size, dtype=np.uint64))
    due = counted(corpus.words, topics, (corpus.vocabulary_size, model.topics))
    assert (topics >= 0).all()
    assert np.array_equal(held, due)
    if f"{model.table}/topics" in client.catalogue.tables():
        totals = client.table(f"{model.table}/topics").pull()  # type: ignore[call-arg]
        assert np.array_equal(totals, due.sum(axis=0))
    return topics, model.evaluate(tables, corpus).log_likelihood_per_word


def dense_bytes(client: ps.Client, names: tuple[str, ...]) -> bytes:
    return b"".join(client.table(name).pull().tobytes() for name in names)  # type: ignore[call-arg]


def click_tables(client: ps.Client) -> EmbeddingTables:
    first, *rest = (client.table(name) for name in CLICK_MODEL.table_names)
    return EmbeddingTables(first, rest)  # type: ignore[arg-type]


def reference_per_word(corpus: Corpus, topics: int, epochs: int) -> float:
    """What the package `lda` reaches."""
    lda = pytest.importorskip("lda", reason="pip install lda: it is the reference")
    shape = (corpus.documents, corpus.vocabulary_size)
    document = np.repeat(np.arange(corpus.documents), np.diff(corpus.offsets))
    fitted = lda.LDA(n_topics=topics, n_iter=epochs, random_state=1)
    return float(fitted.fit(counted(document, corpus.words, shape)).loglikelihood()) / len(corpus)


@pytest.mark.parametrize(
    "die_at",
    [pytest.param(31, marks=pytest.mark.soak), 32, pytest.param(33, marks=pytest.mark.soak)],
)
def test_counts_of_lda_agree_with_its_topics_after_a_kill_under_asp(
    processes: Processes, die_at: int
) -> None:
    """Killed behind each of the three pushes of a clock."""
    train_ranks(processes, "lda", "asp", die_at)
    with processes.connect() as client:
        topics_of(client, TOPIC_MODEL, documents())


@pytest.mark.soak  # what it learns without a kill is held to the same by the tests of the model
def test_lda_under_asp_learns_reuters_as_well_as_the_package_lda_after_a_kill(
    processes: Processes,
) -> None:
    corpus = reuters()
    due = reference_per_word(corpus, REUTERS_MODEL.topics, EPOCHS["reuters"])
    train_ranks(processes, "reuters", "asp", die_at=122, wait_in=45)
    with processes.connect() as client:
        _, reached = topics_of(client, REUTERS_MODEL, corpus)
    assert reached == pytest.approx(due, rel=BAND)


@pytest.mark.soak
@pytest.mark.parametrize("die_at", [32, 64])
def test_lda_under_bsp_ends_with_the_same_topics_after_a_kill(
    processes: Processes, calm: Processes, die_at: int
) -> None:
    train_ranks(processes, "lda", "bsp", die_at)
    train_ranks(calm, "lda", "bsp")
    with processes.connect() as hurt, calm.connect() as undisturbed:
        ends = [topics_of(client, TOPIC_MODEL, documents())[0] for client in (hurt, undisturbed)]
    assert ends[0].tobytes() == ends[1].tobytes()


@pytest.mark.soak  # `test_live_workloads` and `test_train_spawn` have short cases under BSP
def test_embeddings_under_bsp_end_with_the_same_bytes_after_a_kill(
    processes: Processes, calm: Processes
) -> None:
    train_ranks(processes, "clicks", "bsp", 50)
    train_ranks(calm, "clicks", "bsp")
    keys = np.unique(clicks().keys)
    with processes.connect() as hurt, calm.connect() as undisturbed:
        ends = [
            click_tables(client).embeddings.pull(keys).tobytes()
            + dense_bytes(client, CLICK_MODEL.table_names[1:])
            for client in (hurt, undisturbed)
        ]
    assert ends[0] == ends[1]


@pytest.mark.soak  # `test_tasks` and `test_rotation_holders` have short cases
@pytest.mark.parametrize("model", ["rotation", "pipeline"])
def test_tasks_whose_holder_was_killed_end_with_the_bytes_of_the_serial_order(
    processes: Processes, calm: Processes, model: str
) -> None:
    train_holders(processes, model, die_at=41)
    in_serial_order(calm, model)
    with processes.connect() as hurt, calm.connect() as undisturbed:
        if model == "rotation":
            found = [topics_of(each, TOPIC_MODEL, documents())[0] for each in (hurt, undisturbed)]
            ends = [topics.tobytes() for topics in found]
        else:
            names = PIPELINED.model.table_names
            ends = [dense_bytes(client, names) for client in (hurt, undisturbed)]
    assert ends[0] == ends[1]

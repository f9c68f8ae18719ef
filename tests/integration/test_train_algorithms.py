"""`resilient-ps train MODEL`: every algorithm by one command, judged at its end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Shell, descendants, start, still_running

import resilient_ps as ps
from resilient_ps.cli.plan import Model, TrainPlan
from resilient_ps.client.launch import RunningCluster
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.storage.runtime.open import open_store

PATIENCE_S = 60.0
ROWS = 600
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ps.local_cluster(1, replicas=1, coordination="embedded") as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with planted data for each algorithm."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 20, ROWS), 100 + rng.integers(0, 15, ROWS)
    effect = rng.normal(size=200)
    ratings = 3 + effect[users] + effect[items]
    keys = np.stack([users, items], axis=1).reshape(-1)
    offsets = 2 * np.arange(ROWS + 1)
    np.savez(folder / "ratings.npz", y=ratings, keys=keys, row_offsets=offsets)
    np.savez(folder / "clicks.npz", y=ratings > 3, keys=keys, row_offsets=offsets)
    centres = rng.normal(size=(3, 6))
    classes = rng.integers(0, 3, ROWS)
    np.savez(folder / "classes.npz", X=centres[classes] * 2 + rng.normal(size=(ROWS, 6)), y=classes)
    with (folder / "corpus.txt").open("w") as corpus:
        for document in range(60):  # two topics, of ten words each
            words = rng.choice(10, 5, replace=False) + 10 * (document % 2)
            corpus.write("5 " + " ".join(f"{word}:{rng.integers(1, 5)}" for word in words) + "\n")
    return folder


def flags(cluster: RunningCluster) -> tuple[str, ...]:
    name = f"a{next(NUMBERS)}"
    where = ("--etcd", cluster.etcd, "--cluster", cluster.name)
    return ("--job", name, "--table", name, "--json", *where)


MF = ("mf", "ratings.npz", "--factors", "4", "--lr", "0.05", "--batch-size", "100")
LDA = ("lda", "corpus.txt", "--topics", "2", "--epochs", "20")


@pytest.mark.parametrize(
    ("given", "measure", "least", "most"),
    [
        (("lr", "clicks.npz", "--epochs", "10", "--batch-size", "50"), "auc", 0.95, 1.0),
        (("fm", "clicks.npz", "--epochs", "20", "--batch-size", "50"), "auc", 0.95, 1.0),
        (
            ("fm", "ratings.npz", "--task", "regression", "--epochs", "20", "--batch-size", "50"),
            "rmse", 0.0, 0.5,
        ),
        ((*MF, "--epochs", "20", "--consistency", "bsp"), "rmse", 0.0, 0.5),
        ((*LDA, "--consistency", "asp"), "perplexity", 1.0, 40.0),
        (("mlp", "classes.npz", "--classes", "3", "--epochs", "10", "--batch-size", "50"),
         "accuracy", 0.9, 1.0),
        (("softmax", "classes.npz", "--classes", "3", "--epochs", "10", "--batch-size", "50"),
         "accuracy", 0.9, 1.0),
        (("embedding-mlp", "clicks.npz", "--epochs", "20", "--batch-size", "50"), "auc", 0.95, 1.0),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_one_rank_trains_and_is_judged(
    cluster: RunningCluster,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    measure: str,
    least: float,
    most: float,
) -> None:
    model, file, *more = given
    done = Shell(capsys)(
        "train", model, "--dataset", str(data / file), *more, "--evaluate", *flags(cluster)
    )
    assert done.code == 0, done.err
    assert least <= done.json["evaluation"][measure] <= most


@pytest.mark.parametrize(
    ("given", "measure", "least", "most"),
    [
        pytest.param(  # below, two processes rotate too
            (*MF, "--epochs", "20", "--schedule", "rotation", "--parts", "3"), "rmse", 0.0, 0.5,
            marks=pytest.mark.soak,
        ),
        pytest.param(
            (*LDA, "--schedule", "rotation", "--parts", "2"), "perplexity", 1.0, 40.0,
            marks=pytest.mark.soak,
        ),
        (("mlp", "classes.npz", "--classes", "3", "--schedule", "pipeline", "--epochs", "6"),
         "accuracy", 0.9, 1.0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_two_processes_share_the_tasks_of_a_graph(
    cluster: RunningCluster,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    measure: str,
    least: float,
    most: float,
) -> None:
    model, file, *more = given
    done = Shell(capsys)(
        "train", model, "--dataset", str(data / file), *more, "--spawn", "2", *flags(cluster)
    )
    assert done.code == 0, done.err
    assert least <= done.json["evaluation"][measure] <= most
    assert done.json["loss"] is None
    with cluster.connect() as client:
        assert client.catalogue.job(done.json["job"]).state == "done"


def test_rotation_gives_the_same_bytes_with_one_process_and_with_two(
    cluster: RunningCluster, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables begin with numbers that depend on their names, so they have to be the same."""
    model, file, *more = (*MF, "--epochs", "3", "--schedule", "rotation", "--parts", "3")
    found = []
    for spawn in ("1", "2"):
        name, where = f"r{spawn}", ("--etcd", cluster.etcd, "--cluster", cluster.name)
        done = Shell(capsys)(
            "train", model, "--dataset", str(data / file), *more, "--spawn", spawn, "--json",
            "--job", name, "--table", "same", *where,
        )  # fmt: skip
        assert done.code == 0, done.err
        with cluster.connect() as client:
            keys = np.arange(200, dtype=np.uint64)
            found.append([client.table(f"same/{t}").pull(keys).tobytes() for t in MF_TABLES])
            for table in MF_TABLES:
                client.drop_table(f"same/{table}")
    assert found[0] == found[1]


MF_TABLES = ("users", "items")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("lda", "corpus.txt", "--lr", "1"), "--lr is not an option of lda"),
        (("lda", "corpus.txt", "--schedule", "dynamic"), "use static or rotation"),
        (("lda", "corpus.txt", "--test", "corpus.txt"), "judged by the corpus"),
        (("lr", "clicks.npz", "--factors", "3"), "--factors is not an option of lr"),
        (("lr", "clicks.npz", "--schedule", "rotation"), "is for mf, lda, and not for lr"),
        (("mf", "ratings.npz", "--parts", "3"), "--parts needs --schedule rotation"),
        (("mf", "classes.npz"), "has dense rows; mf takes sparse ones"),
        (("mf", "ratings.npz", "--optimiser", "adam"), "--optimiser is not an option of mf"),
        (("fm", "ratings.npz", "--task", "ranking"), "--task 'ranking' is none of"),
        (("mlp", "classes.npz", "--classes", "3", "--schedule", "pipeline", "--evict-after", "9"),
         "--evict-after: tasks"),
        (("mf", "nothing.npz"), "nothing.npz"),
        (("mf", "ratings.npz", "--test", "nothing.npz"), "nothing.npz"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_begins(
    cluster: RunningCluster,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    says: str,
) -> None:
    model, file, *more = given
    given_flags = flags(cluster)
    done = Shell(capsys)("train", model, "--dataset", str(data / file), *more, *given_flags)
    assert done.code == 2, done.err
    assert says in done.err
    with cluster.connect() as client:
        assert given_flags[1] not in [job.name for job in client.catalogue.jobs()]


def test_the_flags_of_every_algorithm_survive_the_way_to_the_workers() -> None:
    more: dict[str, Any] = {"topics": 3, "alpha": 0.2, "schedule": "rotation", "parts": 2}
    words = TrainPlan(Model.LDA, "reuters", "j", **more).flags()
    given = dict(zip(words[1::2], words[2::2], strict=True))
    assert given["--topics"] == "3"
    assert given["--schedule"] == "rotation"
    words = TrainPlan(Model.MLP, "x.npz", "j", micro_batches=4, in_flight=2).flags()
    assert words[words.index("--micro-batches") + 1] == "4"
    assert words[words.index("--in-flight") + 1] == "2"


def rotation(data: Path, store: Path, *more: str) -> tuple[str, ...]:
    return (
        "train", "mf", "--dataset", str(data / "ratings.npz"), "--job", "j", "--cluster", "c",
        "--schedule", "rotation", "--parts", "3", "--epochs", "200", "--factors", "4",
        "--spawn", "2", "--store", str(store), "--checkpoint-every-clocks", "60", "--json", *more,
    )  # fmt: skip


@pytest.mark.soak  # the same of a job of ranks, and of a graph of tasks, is in the default run
def test_a_killed_rotation_goes_on_behind_its_newest_checkpoint(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, pause = tmp_path / "store", threading.Event()
    with start(*rotation(data, store, "--servers", "2", "--resume-if-any")) as process:
        for _ in range(int(PATIENCE_S / 0.05)):
            with StoredCheckpoints(open_store(str(store)), "c") as stored:
                complete = [each.manifest for each in stored.listed() if each.manifest is not None]
            if complete:
                break
            pause.wait(0.05)
        below = descendants(process.pid)
        process.kill()
        process.communicate()
    assert complete[0].clocks["j"] > 0
    assert still_running(below) == set()
    again = Shell(capsys)(*rotation(data, store, "--servers", "1", "--resume"))
    assert again.code == 0, again.err
    assert "RESUMING job j on a cluster that was restored from checkpoint" in again.err
    assert 0 < again.json["samples"] < 200 * ROWS
    assert again.json["evaluation"]["rmse"] < 0.5

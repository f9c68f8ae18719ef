"""A rank, or a holder of tasks, that trains one of the product's models: see `MODELS`.

Run by `trainers`, in processes of its own. With `die_at` it kills itself with SIGKILL when it has
begun so many pushes, in the middle of a clock or a task: at a push that is on its way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import resilient_ps as ps
from resilient_ps.data import ArrayDataset, Corpus, SparseArrayDataset, reuters
from resilient_ps.models import LDA, MLP, EmbeddingMLP, PipelinedMLP, Progress, RotatingLDA

DEADLINE_S = 60.0
LEASE_TTL_S = 2
FIELDS, WORDS_OF_FIELD = 6, 40
TOPICS = 4


def documents() -> Corpus:
    """120 documents of words from a quarter of the vocabulary each, for the most part."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(20, 80, 120)
    words = [
        np.where(rng.random(n) < 0.9, rng.integers(0, 25, n) + 25 * (d % 4), rng.integers(0, 100))
        for d, n in enumerate(lengths)
    ]
    offsets = np.r_[0, np.cumsum(lengths)]
    return Corpus(np.concatenate(words), offsets, vocabulary_size=100)


def clicks() -> SparseArrayDataset:
    """Labels depend on pairs of features."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, WORDS_OF_FIELD, (4000, FIELDS))
    labels = (codes[:, 0] % 2) ^ (codes[:, 1] % 2)
    keys = (codes + WORDS_OF_FIELD * np.arange(FIELDS)).astype(np.uint64)
    return SparseArrayDataset(labels, np.arange(4001) * FIELDS, keys.reshape(-1), shuffle_seed=1)


def digits() -> ArrayDataset:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return ArrayDataset(x[:600] / 16.0, y[:600], shuffle_seed=2)


TOPIC_MODEL = LDA(topics=TOPICS, seed=7)
REUTERS_MODEL = LDA(topics=20, seed=7, table="reuters")
CLICK_MODEL = EmbeddingMLP(FIELDS, dim=4, hidden=(16,))
ROTATING = RotatingLDA(TOPIC_MODEL, parts=3)
PIPELINED = PipelinedMLP(MLP(64, 10, (24, 16), optimiser=ps.SGD(lr=0.1)), micro_batches=12)
EPOCHS = {"lda": 20, "reuters": 60, "clicks": 4, "rotation": 12, "pipeline": 4}
SCHEDULES = {
    "rotation": ROTATING.schedule(epochs=EPOCHS["rotation"]),
    "pipeline": PIPELINED.schedule(epochs=EPOCHS["pipeline"]),
}


def train_lda(opener: Any, epochs: int) -> None:
    TOPIC_MODEL.train(opener, documents(), epochs=epochs, batches=3)


def train_reuters(opener: Any, epochs: int, wait_in: int = 0) -> None:
    """It says when it has begun to work; in clock `wait_in` it waits for a line of input."""
    told: list[Progress] = []

    def wait(progress: Progress) -> None:
        if not told:
            print("works", flush=True)
            told.append(progress)
        if progress.clock == wait_in:
            sys.stdin.readline()

    REUTERS_MODEL.train(opener, reuters(), epochs=epochs, batches=3, on_batch=wait)


def train_clicks(opener: Any, epochs: int) -> None:
    CLICK_MODEL.train(opener, clicks(), batch_size=100, epochs=epochs)


def train_rotation(opener: Any, epochs: int) -> None:
    ROTATING.train(opener, documents(), epochs=epochs)


def train_pipeline(opener: Any, epochs: int) -> None:
    PIPELINED.train(opener, digits(), epochs=epochs)


MODELS: dict[str, Callable[..., None]] = {
    "lda": train_lda,
    "reuters": train_reuters,
    "clicks": train_clicks,
    "rotation": train_rotation,
    "pipeline": train_pipeline,
}


class Mortal:
    """As the worker or the holder `inner`; ends with the push number `die_at` of all its tables."""

    def __init__(self, inner: Any, die_at: int) -> None:
        self._inner = inner
        self._left = die_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sparse_table(self, name: str, **spec: Any) -> Any:
        return _MortalTable(self, self._inner.sparse_table(name, **spec))

    def dense_table(self, name: str, **spec: Any) -> Any:
        return _MortalTable(self, self._inner.dense_table(name, **spec))

    def on_push(self, push: Callable[[], Any]) -> Any:
        self._left -= 1
        begun = push()
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return begun


class _MortalTable:
    def __init__(self, of: Mortal, table: Any) -> None:
        self._of = of
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def push_async(self, *what: Any) -> Any:
        return self._of.on_push(lambda: self._table.push_async(*what))

    def push(self, *what: Any) -> None:
        self.push_async(*what).result()


def main(etcd: str, cluster: str, job: str, options: str) -> None:
    told = json.loads(options)
    model, die_at = told["model"], told.get("die_at", 0)
    with ps.connect(etcd, cluster, deadline_s=DEADLINE_S) as client:
        if model in SCHEDULES:
            graph = SCHEDULES[model].graph
            opened: Any = client.tasks(graph, deadline_s=DEADLINE_S, lease_ttl_s=LEASE_TTL_S)
        else:
            opened = client.worker(job, told["rank"], told["of"], told["mode"])
        with opened as opener:
            mortal = Mortal(opener, die_at) if die_at else opener
            MODELS[model](mortal, EPOCHS[model], **told.get("how", {}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A model in parts, trained by as many processes as you like: `model_parallel.py lda` or `mlp`.

`lda`: topics of documents, by rotation; the vocabulary's blocks go round between parts of the
documents. `mlp`: handwritten digits (scikit-learn's), by a network whose layers are the stages of a
pipeline. Processes share the tasks, and find the cluster in the environment (RESILIENT_PS_ETCD,
RESILIENT_PS_CLUSTER). Any of them may be killed at any time. When all is done, the process that is
rank 0 (RESILIENT_PS_RANK) trains the same model once more, alone and undisturbed, and ends with
exit code 1 unless both have the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import numpy as np

import resilient_ps as ps
from resilient_ps.data import ArrayDataset, Corpus
from resilient_ps.models import LDA, MLP, PipelinedMLP, Progress, RotatingLDA

DEADLINE_S = 60.0
Told = Callable[[Progress], None]


class Topics:
    """300 documents, each of words from two of eight parts of the vocabulary."""

    name = "topics"

    def __init__(self, epochs: int) -> None:
        rng = np.random.default_rng(1)
        parts = rng.integers(0, 8, (300, 2))
        chosen = parts[np.arange(300)[:, None], rng.integers(0, 2, (300, 80))]
        words = chosen * 50 + rng.integers(0, 50, (300, 80))
        self._corpus = Corpus(words.reshape(-1), np.arange(301) * 80, vocabulary_size=400)
        self._rotating = RotatingLDA(LDA(topics=10, table=self.name), parts=4)
        self._epochs = epochs

    def train(self, client: ps.Client, tell: Told) -> None:
        graph = self._rotating.schedule(epochs=self._epochs, name=self.name).graph
        with client.tasks(graph, deadline_s=2 * DEADLINE_S, lease_ttl_s=2) as tasks:
            self._rotating.train(tasks, self._corpus, epochs=self._epochs, on_task=tell)

    def result(self, client: ps.Client) -> tuple[bytes, str, float]:
        """The topics of all words; and how good they are."""
        from resilient_ps.models.lda import LDATables

        words, assignments = (client.table(name) for name in self._rotating.table_names)
        tables = LDATables(words, assignments)
        found = self._rotating.evaluate(tables, self._corpus)
        topics = self._rotating.model.assigned(tables, self._corpus)
        return topics.tobytes(), "log_likelihood_per_word", found.log_likelihood_per_word


class Digits:
    """1,797 images of 64 points, of which 400 are held out."""

    name = "digits"

    def __init__(self, epochs: int) -> None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        self._learnt = ArrayDataset(x[400:] / 16.0, y[400:], shuffle_seed=1)
        self._held_out = ArrayDataset(x[:400] / 16.0, y[:400])
        network = MLP(64, 10, (48, 32), table=self.name, optimiser=ps.SGD(lr=0.1))
        self._pipelined = PipelinedMLP(network, micro_batches=16)
        self._epochs = epochs

    def train(self, client: ps.Client, tell: Told) -> None:
        graph = self._pipelined.schedule(epochs=self._epochs, name=self.name).graph
        with client.tasks(graph, deadline_s=2 * DEADLINE_S, lease_ttl_s=2) as tasks:
            self._pipelined.train(tasks, self._learnt, epochs=self._epochs, on_task=tell)

    def result(self, client: ps.Client) -> tuple[bytes, str, float]:
        """All layers; and how good they are."""
        network = self._pipelined.model
        layers = [client.table(name) for name in network.table_names]
        found = network.evaluate(layers, self._held_out)
        return b"".join(layer.pull().tobytes() for layer in layers), "accuracy", found.accuracy


MODELS: dict[str, Callable[[int], Topics | Digits]] = {"lda": Topics, "mlp": Digits}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="after each task that is told")
    asked = parser.parse_args()
    model = MODELS[asked.model](asked.epochs)

    def tell(progress: Progress) -> None:
        time.sleep(asked.pause_ms / 1000)

    with ps.connect(deadline_s=DEADLINE_S) as client:
        model.train(client, tell)
        held, what, value = model.result(client)
    print("metric", what, value, flush=True)
    if os.environ.get("RESILIENT_PS_RANK", "0") != "0":
        return
    os.environ.pop("RESILIENT_PS_LEDGER", None)  # a chaos run judges what its own cluster was told
    with ps.local_cluster(1) as calm, calm.connect() as client:
        model.train(client, lambda progress: None)
        alone, _, _ = model.result(client)
    if held != alone:
        sys.exit("the model differs from that of one process alone")
    print("metric same_bytes_as_alone 1", flush=True)


if __name__ == "__main__":
    main()

"""What a checkpoint costs whose state does compress: beside plain puts of as many bytes.

The state is what LDA leaves behind: for each word, how often each of 16 topics has been chosen for
it (int64, pushed as sums). Frequent words are few, and a word has few topics, so most counts are 0
and nearly all others are small. Keys are hashes, which do not compress.

What is compared is bytes of the state per second: ours compresses them and uploads what is left,
the plain one puts as many random bytes, in objects of the sizes that ours would have uncompressed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.cli.bench.checkpoints import DIM, TABLE, Bench, Measured, Say, prepared_as
from resilient_ps.client.tables import SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.storage.blobs import BlobGot
from resilient_ps.storage.reading import read_index
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.shard_index import ShardIndex
from resilient_ps.tables.optimisers import Sum

FREQUENCY = 1.5  # zipf's exponent
TOKENS_MOST = 100_000  # of one word
OF_THE_STATE = 4  # so much smaller is this one
NAME = "save with compression"


class CountsBench(Bench):
    """As `Bench`, with a table of counts; a row takes as many bytes."""

    def _open(self, worker: Worker) -> SparseTable:
        return worker.sparse_table(TABLE, dim=DIM, dtype="int64", optimiser=Sum())

    def _gradients(self, count: int) -> NDArray[Any]:
        """Tokens of so many words, most of them of one topic, by word and topic."""
        words, rng = np.arange(count), self._rng
        tokens = np.zeros((count, DIM), np.int64)
        tokens[words, rng.integers(DIM, size=count)] += rng.poisson(0.5, count)
        tokens[words, rng.integers(DIM, size=count)] += np.minimum(
            rng.zipf(FREQUENCY, count), TOKENS_MOST
        )
        return tokens

    def saves(self, rounds: int) -> Iterator[Measured]:
        """Full checkpoints, and what they store."""
        save = Measured(NAME, "x", 0.7)
        stored = Measured("stored of it", "of the state")
        for turn in range(rounds):
            self._say(f"{NAME}, round {turn + 1} of {rounds}")
            self.touch_all()
            record, seconds = self.checkpoint()
            sizes = self._raw_sizes(record)
            os.sync()
            save.add_ratio(sum(sizes) / seconds, sum(sizes) / self._plain.put(sizes))
            stored.values.append(record.uploaded_bytes / sum(sizes))
        yield save
        yield stored

    def _raw_sizes(self, record: CheckpointRecord) -> list[int]:
        """Of the objects that were written for this checkpoint, before they were compressed."""
        manifest, own = self._manifest(record)
        sizes: Counter[str] = Counter()
        for shard in range(manifest.shards):
            got = self._store.do(read_index(manifest, shard))
            assert isinstance(got, BlobGot)
            index: ShardIndex = got.decoded
            for chunk in index.chunks:
                sizes[index.objects[chunk.object].name] += chunk.raw_bytes
        return [sizes[each.name] for each in manifest.objects if each.name.startswith(own)]


@contextmanager
def compressible(url: str, state_mib: int, say: Say) -> Iterator[CountsBench]:
    """A cluster with such a state, a quarter of so many MiB, that uses the store beside others."""
    below, smaller_mib = f"{url}/counts", max(1, state_mib // OF_THE_STATE)
    with (
        closing(open_store(below)) as store,
        prepared_as(CountsBench, below, store, smaller_mib, say) as bench,
    ):
        yield bench

"""LDA on documents that are drawn from known topics.

Whatever a disturbed run has learnt, its counts must agree with the topics of its words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.trained import digest, rows_of
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.data.corpus import Corpus
from resilient_ps.models.api import TableOpener, Worker
from resilient_ps.models.lda import LDA, Documents, LDAProgram, LDATables, Visits
from resilient_ps.models.lda_rows import TopicRows
from resilient_ps.models.lda_sampler import counted

JOB = "train-lda"
TOPICS = 8
VOCABULARY = 400
DOCUMENTS = 200
WORDS_OF_DOCUMENT = 60
BATCHES = 4  # of a rank, in an epoch
FOR_EVER = 1 << 40
MODEL = LDA(TOPICS, eta=0.5, table="lda")  # so smooth that every run ends in the same optimum


class PlantedTopics:
    """Each document has words of two topics; a topic has a seventh of the vocabulary."""

    @staticmethod
    def draw(seed: int) -> Corpus:
        """The same for a seed, on every machine."""
        raw = np.random.PCG64(seed).random_raw
        shape = (DOCUMENTS, WORDS_OF_DOCUMENT)
        topics = (raw(DOCUMENTS * 2) % TOPICS).reshape(DOCUMENTS, 2)
        chosen = (raw(DOCUMENTS * WORDS_OF_DOCUMENT) % 2).reshape(shape).astype(np.int64)
        of_topic = np.take_along_axis(topics, chosen, axis=1)
        words = of_topic * (VOCABULARY // TOPICS) + raw(chosen.size).reshape(shape) % 57
        offsets = np.arange(DOCUMENTS + 1) * WORDS_OF_DOCUMENT
        return Corpus(
            (words % VOCABULARY).astype(np.int64).reshape(-1), offsets, vocabulary_size=VOCABULARY
        )


class TrainedTopics:
    """See the module. Clocks are the visits of `models.lda`, without an end."""

    measure = "negative log likelihood per word, by that of equally probable ones"

    def __init__(self, seed: int) -> None:
        self._corpus = PlantedTopics.draw(seed)
        self._visits = Visits(MODEL, self._corpus, BATCHES, FOR_EVER)
        self._batches: list[Documents] = []  # of this process's rank

    def open(self, opener: TableOpener) -> None:
        """Words, topics, and topics of words."""
        LDAProgram(MODEL, opener)

    def one_clock(self, worker: Worker) -> None:
        """One visit."""
        if not self._batches:
            parts = self._visits.parts(worker.rank, worker.of)
            self._batches = [Documents(self._corpus, *part) for part in parts]
        program = LDAProgram(MODEL, worker)
        for clock in cast(Iterator[int], worker.batches(cast(Any, None), batch_size=1)):
            program.one_clock(self._visits.visit(self._batches, clock - 1, {}))

    def batch(self, rank: int, clock: int) -> int:
        """Visits go by the clock alone."""
        return clock

    def digests(self, client: Client) -> dict[str, str]:
        """Of the topics of all words, and of the counts of words."""
        topics = MODEL.assigned(_tables(client), self._corpus)
        return {"topics of words": digest(topics), "counts": digest(_word_counts(client))}

    def quality(self, client: Client) -> dict[str, float]:
        """Of the words that were trained on: there are no others."""
        found = MODEL.evaluate(_tables(client), self._corpus)
        return {self.measure: -found.log_likelihood_per_word / math.log(VOCABULARY)}

    def contradictions(self, client: Client) -> list[str]:
        """Counts that do not follow from the topics of words.

        The last batch of each rank is counted in the clock that nobody has run: of its words the
        topics before count.
        """
        record = client.catalogue.job(JOB)
        ranks = 0 if record is None else record.ranks
        topics = np.concatenate([self._counted(client, rank, ranks) for rank in range(ranks)])
        due = counted(self._corpus.words, topics, (VOCABULARY, TOPICS))
        held = _word_counts(client)
        wrong = [
            f"word {word}: counted are {held[word].tolist()}, its topics are {due[word].tolist()}"
            for word in np.flatnonzero((held != due).any(axis=1)).tolist()
        ]
        totals = client.table(f"{MODEL.table}/topics")
        assert isinstance(totals, DenseTable)
        if not np.array_equal(totals.pull(), due.sum(axis=0)):
            wrong.append("the totals of topics are not those of their words")
        return wrong

    def _counted(self, client: Client, rank: int, ranks: int) -> NDArray[np.int32]:
        """The topics of the words of a rank, as far as they have been counted."""
        batches = []
        for part in self._visits.parts(rank, ranks):
            rows = TopicRows(self._corpus, *part)
            sides = [rows_of(client, MODEL.table_names[1], rows.keys(side)) for side in (0, 1)]
            stamp = int(max(side[:, 0].max(initial=0) for side in sides))
            batches.append((stamp, rows, sides))
        newest = max(stamp for stamp, _, _ in batches)
        last = max(at for at, (stamp, _, _) in enumerate(batches) if stamp == newest)
        topics = []
        for at, (stamp, rows, sides) in enumerate(batches):
            side = (stamp - 1) % 2  # where the epoch of this stamp has written
            topics.append(rows.read(sides[1 - side if at == last else side]))
        return np.concatenate(topics)


def _tables(client: Client) -> LDATables:
    words, assignments = (client.table(name) for name in MODEL.table_names)
    assert isinstance(words, SparseTable)
    assert isinstance(assignments, SparseTable)
    return LDATables(words, assignments)


def _word_counts(client: Client) -> NDArray[Any]:
    return rows_of(client, MODEL.table_names[0], np.arange(VOCABULARY, dtype=np.uint64))

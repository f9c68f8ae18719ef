"""Latent Dirichlet allocation by collapsed Gibbs sampling, as worker programs.

The model of Blei, Ng and Jordan (JMLR 2003), sampled as Griffiths and Steyvers do ("Finding
scientific topics", PNAS 2004). Here stand the settings, the evaluation, and the data-parallel
program, which is YahooLDA's (Smola and Narayanamurthy, "An architecture for parallel topic models",
VLDB 2010): each rank samples its own documents against counts that all ranks share and that lag
behind. `lda_rotation` is the program that shares no count of a word between two processes.

**Counts always agree with topics, also when processes die.** Topics of words do not live in
workers, but in a table (`lda_rows`): who takes a rank over finds them there. Under ASP what a
process had pushed when it was killed stays, and its successor repeats the clock, with other random
counts before its eyes; only the pushes that are missing are still made. So a clock may not push
what depends on counts that it pulled, but in two steps, of which each is safe to be made half by
one process and half by another:

* In clock c the topics of a batch are drawn anew, and written to the side of their rows that does
  not hold the present ones. Whichever of the two processes wrote a row: it holds topics.
* In clock c + 1 both sides are read, and the difference of their counts is pushed. It depends on
  nothing else, so it is the same whoever computes it.

Counts lag behind topics by one batch of each rank, which is why a rank has at least two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.corpus import Corpus
from resilient_ps.errors import BadInput, RolledBack
from resilient_ps.models.api import DenseTable, Progress, Table, TableOpener, TableReader, Worker
from resilient_ps.models.lda_rows import NUMBERS, TopicRows, Topics
from resilient_ps.models.lda_sampler import Counts, counted, log_gammas, resample, sampling_key
from resilient_ps.models.training import OnBatch
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import MAX_DIM

BATCHES_MAX = 1 << 16
_DOCUMENTS_AT_ONCE = 4096
_WORDS_AT_ONCE = 16384


class LDATables(NamedTuple):
    """What a model consists of, for those who read it.

    `words`: of each word how often it has each topic. `assignments`: see `lda_rows`.
    """

    words: TableReader
    assignments: TableReader


@dataclass(frozen=True, slots=True)
class LDAEvaluation:
    """`log_likelihood` is log p(words, topics), natural: the probability of both together.

    Per word, and as perplexity exp(-log likelihood per word), it compares models of one corpus that
    have the same number of topics and the same priors.
    """

    documents: int
    words: int
    topics: int
    log_likelihood: float

    @property
    def log_likelihood_per_word(self) -> float:
        """Negative; nearer to 0 is better."""
        return self.log_likelihood / self.words

    @property
    def perplexity(self) -> float:
        """exp(-log likelihood per word)."""
        return math.exp(-self.log_likelihood_per_word)


@dataclass(frozen=True)
class LDA:
    """`topics` (1 to 4,096) with symmetric Dirichlet priors: `alpha` of documents, `eta` of topics.

    Word counts are the sparse table `{table}/words` (a row of `topics` int64 for each word), totals
    of topics the dense table `{table}/topics`, and topics of words `{table}/assignments`. The same
    `seed` draws the same random numbers. Raises `BadInput` for settings out of range.
    """

    topics: int = 20
    alpha: float = 0.1
    eta: float = 0.01
    table: str = "lda"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.topics <= MAX_DIM:
            raise BadInput(f"topics={self.topics}: 1 to {MAX_DIM}")
        if not (self.alpha > 0 and self.eta > 0 and self.seed >= 0):
            raise BadInput(
                f"alpha={self.alpha}, eta={self.eta}, seed={self.seed}: priors are above 0, seeds "
                "at least 0"
            )

    @property
    def table_names(self) -> tuple[str, str]:
        """Of `LDATables`, in their order: `LDATables(*map(client.table, model.table_names))`."""
        return f"{self.table}/words", f"{self.table}/assignments"

    def open(self, opener: TableOpener) -> LDATables:
        """The tables, created if they do not exist."""
        return LDATables(*self.open_tables(opener))

    def open_tables(self, opener: TableOpener) -> tuple[Table, Table]:
        """The same, to be written to."""
        words, assignments = self.table_names
        return (
            opener.sparse_table(words, dim=self.topics, dtype="int64", optimiser=Sum()),
            opener.sparse_table(assignments, dim=NUMBERS, dtype="int64", optimiser=Sum()),
        )

    def train(
        self,
        worker: Worker,
        corpus: Corpus,
        *,
        epochs: int = 100,
        batches: int = 8,
        on_batch: OnBatch | None = None,
    ) -> LDATables:
        """Give all words topics at random, then draw them anew `epochs` times.

        The rank works on its part of the corpus, `batches` (2 to 65,536) clocks an epoch, and one
        clock more at the end. `on_batch` is told of words, not of rows. All ranks give the same
        arguments; a rank that is taken over goes on where it was. Raises `BadInput` where tables
        hold the topics of an earlier training.
        """
        visits = Visits(self, corpus, batches, epochs)
        program = LDAProgram(self, worker)
        samples = 0
        walk = worker.batches(cast(Any, visits), batch_size=1)
        for visit in cast(Iterator[Visit], walk):
            try:
                loss = program.one_clock(visit)
            except RolledBack:  # the next visit is one behind the checkpoint's cursor
                continue
            samples += len(visit)
            if on_batch is not None and len(visit):
                mean = loss / len(visit)
                on_batch(Progress(worker.rank, worker.clock, len(visit), samples, mean))
        return program.tables

    def check_unplaced(self, topics: Topics) -> None:
        """Before words get their first topics: raises `BadInput` where some have one."""
        if (topics >= 0).any():
            raise BadInput(
                f"table {self.table_names[1]!r} holds the topics of an earlier training: use "
                "another name for the tables"
            )

    # -- what was learnt

    def evaluate(self, tables: LDATables, corpus: Corpus) -> LDAEvaluation:
        """The log likelihood of a corpus that was trained on, and of the topics of its words."""
        total = _Summed(self.eta)
        for counts in _word_counts(tables, corpus):
            total.add(counts)
        likelihood = float(total.log_gammas)
        likelihood += self.topics * math.lgamma(self.eta * corpus.vocabulary_size)
        for count in total.of_topics:
            likelihood -= math.lgamma(self.eta * corpus.vocabulary_size + float(count))
        for counts in self._document_counts(tables, corpus):
            likelihood += float(log_gammas(counts.reshape(-1), self.alpha))
            for length in counts.sum(axis=1):
                likelihood += math.lgamma(self.alpha * self.topics)
                likelihood -= math.lgamma(self.alpha * self.topics + float(length))
        return LDAEvaluation(corpus.documents, len(corpus), self.topics, likelihood)

    def topic_words(self, tables: LDATables, corpus: Corpus) -> NDArray[np.float64]:
        """p(word | topic), float64 (topics, vocabulary)."""
        weights = np.concatenate(list(_word_counts(tables, corpus))).T + self.eta
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def document_topics(self, tables: LDATables, corpus: Corpus) -> NDArray[np.float64]:
        """p(topic | document), float64 (documents, topics)."""
        weights = np.concatenate(list(self._document_counts(tables, corpus))) + self.alpha
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def assigned(self, tables: LDATables, corpus: Corpus) -> Topics:
        """The topics of all words, int32 (words,), from 0; -1: it has none yet."""
        return np.concatenate([topics for _, topics in self._assigned(tables, corpus)])

    def _document_counts(self, tables: LDATables, corpus: Corpus) -> Iterator[Counts]:
        for (first, last), topics in self._assigned(tables, corpus):
            documents = _document_of_each_word(corpus, first, last)
            yield counted(documents, topics, (last - first, self.topics))

    def _assigned(
        self, tables: LDATables, corpus: Corpus
    ) -> Iterator[tuple[tuple[int, int], Topics]]:
        for first in range(0, corpus.documents, _DOCUMENTS_AT_ONCE):
            last = min(first + _DOCUMENTS_AT_ONCE, corpus.documents)
            rows = TopicRows(corpus, first, last)
            sides = [tables.assignments.pull(rows.keys(side)) for side in (0, 1)]
            yield (first, last), rows.newest(*sides)


class _Summed:
    """What the likelihood of words needs of their counts."""

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self.log_gammas = 0.0
        self.of_topics: Any = 0

    def add(self, counts: Counts) -> None:
        self.log_gammas += float(log_gammas(counts.reshape(-1), self._eta))
        self.of_topics = self.of_topics + counts.sum(axis=0)


def _word_counts(tables: LDATables, corpus: Corpus) -> Iterator[Counts]:
    """Of all words in their order, int64 (some, topics)."""
    for first in range(0, corpus.vocabulary_size, _WORDS_AT_ONCE):
        last = min(first + _WORDS_AT_ONCE, corpus.vocabulary_size)
        yield tables.words.pull(np.arange(first, last, dtype=np.uint64))


def _document_of_each_word(corpus: Corpus, first: int, last: int) -> NDArray[np.int32]:
    """Counted from `first`."""
    lengths = np.diff(corpus.offsets[first : last + 1])
    return np.repeat(np.arange(last - first, dtype=np.int32), lengths)


class Documents:
    """Documents `first` .. `last` - 1 of a corpus, as the sampler wants them.

    `distinct` are the keys of the different words in them, `codes` where each word is among these.
    """

    def __init__(self, corpus: Corpus, first: int, last: int) -> None:
        words = corpus.words[corpus.offsets[first] : corpus.offsets[last]]
        distinct, codes = np.unique(words, return_inverse=True)
        self.number = first
        self.distinct: NDArray[np.uint64] = distinct.astype(np.uint64)
        self.codes: NDArray[np.int32] = codes.astype(np.int32)
        self.documents = _document_of_each_word(corpus, first, last)
        self.count = last - first
        self.vocabulary_size = corpus.vocabulary_size
        self.rows = TopicRows(corpus, first, last)

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """What a rank does in a clock: draw the topics of `sampled`, count those of `settled`."""

    cursor: dict[str, Any]
    sampled: Documents | None
    epoch: int
    settled: Documents | None
    settled_epoch: int

    def __len__(self) -> int:
        return 0 if self.sampled is None else len(self.sampled)


class Visits:
    """The visits of each rank, as a data set for `Worker.batches`. In epoch 0 words get topics."""

    def __init__(self, model: LDA, corpus: Corpus, batches: int, epochs: int) -> None:
        if not 2 <= batches <= BATCHES_MAX or epochs < 1:
            raise BadInput(
                f"batches={batches}, epochs={epochs}: 2 to {BATCHES_MAX} batches, and at least one "
                "epoch"
            )
        self._corpus = corpus
        self._per_epoch = batches
        self._sampled = (epochs + 1) * batches
        self._identity: dict[str, Any] = {
            "kind": "lda",
            "words": len(corpus),
            "documents": corpus.documents,
            "batches": batches,
            "epochs": epochs,
            "seed": model.seed,
        }

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int]:
        """The same for all: see `batches`."""
        return [self._sampled + 1] * of

    def batches(
        self, rank: int, of: int, batch_size: int, epochs: int = 1, cursor: Any = None
    ) -> Iterator[Visit]:
        """Those of a rank, from behind `cursor` on; `batch_size` and `epochs` do not matter."""
        same = {**self._identity, "of": of}
        done = -1 if cursor is None else self._done(cursor, same)
        batches = [Documents(self._corpus, *part) for part in self.parts(rank, of)]
        for number in range(done + 1, self._sampled + 1):
            yield self.visit(batches, number, {**same, "visit": number})

    def parts(self, rank: int, of: int) -> list[tuple[int, int]]:
        """The documents (first, last + 1) of each of the rank's batches."""
        first = rank * self._per_epoch
        return self._corpus.parts(of * self._per_epoch)[first : first + self._per_epoch]

    def visit(self, batches: Sequence[Documents], number: int, cursor: dict[str, Any]) -> Visit:
        """Visit `number`, from 0, of a rank with these batches."""
        epoch, batch = divmod(number, self._per_epoch)
        before, settled = divmod(number - 1, self._per_epoch)
        return Visit(
            cursor,
            batches[batch] if number < self._sampled else None,
            epoch,
            batches[settled] if number else None,
            before,
        )

    def _done(self, cursor: dict[str, Any], same: dict[str, Any]) -> int:
        """The last visit that was ticked."""
        for name, expected in same.items():
            if cursor.get(name) != expected:
                raise BadInput(
                    f"this rank was trained with {name}={cursor.get(name)!r}, and now with "
                    f"{name}={expected!r}: go on with the same, or use another job and table"
                )
        return int(cursor["visit"])


class LDAProgram:
    """What a rank does in a clock: see the module. It keeps nothing from one to the next."""

    def __init__(self, model: LDA, worker: TableOpener) -> None:
        self._model = model
        self._words, self._assignments = model.open_tables(worker)
        self.tables = LDATables(self._words, self._assignments)
        self._topics: DenseTable = worker.dense_table(
            f"{model.table}/topics", shape=(model.topics,), dtype="int64", optimiser=Sum()
        )

    def one_clock(self, visit: Visit) -> float:
        """The loss, summed over the words."""
        if visit.settled is not None:
            self._settle(visit.settled, visit.settled_epoch)
        return 0.0 if visit.sampled is None else self._sample(visit.sampled, visit.epoch)

    def _settle(self, batch: Documents, epoch: int) -> None:
        """Count the topics that were drawn in the clock before, instead of those before them."""
        new, old = self._both_sides(batch, epoch)
        shape = (len(batch.distinct), self._model.topics)
        change = counted(batch.codes, batch.rows.read(new), shape)
        change -= counted(batch.codes, batch.rows.read(old), shape)
        moved = change.any(axis=1)
        if moved.any():
            self._words.push(batch.distinct[moved], change[moved])
        self._topics.push(change.sum(axis=0))

    def _sample(self, batch: Documents, epoch: int) -> float:
        model = self._model
        counts = self._words.pull_async(batch.distinct)
        replaced, present = self._both_sides(batch, epoch)
        topics = batch.rows.read(present)
        if epoch == 0:
            model.check_unplaced(topics)
        loss = resample(
            batch.codes,
            batch.documents,
            topics,
            counts.result(),
            self._topics.pull(),
            counted(batch.documents, topics, (batch.count, model.topics)),
            model.alpha,
            model.eta,
            model.eta * batch.vocabulary_size,
            sampling_key(model.seed, epoch, batch.number),
        )
        drawn = batch.rows.write(topics, epoch + 1)
        self._assignments.push(batch.rows.keys(epoch % 2), drawn - replaced)
        return float(loss)

    def _both_sides(self, batch: Documents, epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows to write to in this epoch, and those with the topics of the epoch before."""
        sides = [batch.rows.keys(side) for side in (epoch % 2, 1 - epoch % 2)]
        rows = self._assignments.pull(np.concatenate(sides))
        return rows[: len(batch.rows)], rows[len(batch.rows) :]

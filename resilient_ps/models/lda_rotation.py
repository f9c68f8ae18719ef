"""LDA by rotation: blocks of the vocabulary go round between parts of the documents.

The schedule is that of `schedules.Rotation`: a task draws the topics of the words of one block in
one part of the documents. No two tasks that run at the same time count the same word, so nothing
lags but the totals of topics, and the order of tasks that share anything is fixed. As in "Model-
parallel inference for big topic models" (Zheng et al., 2014) and LightLDA, that totals lag a little
is what it costs.

**The result is that of the serial order, byte for byte.** Counts of words and topics of a part are
held by one task at a time. Totals are not: each lane keeps its own contribution, and the last ones
of each lane are kept apart, one for each of the last `parts` steps. Lane p at step t reads that of
lane q as of step t - (q - p) mod `parts`: the step that its block was handed on by, which is done
when the task begins; and what lane q makes meanwhile does not replace it before lane p is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.corpus import Corpus
from resilient_ps.errors import BadInput
from resilient_ps.models.api import Progress, TableOpener, Tasks
from resilient_ps.models.lda import LDA, Documents, LDAEvaluation, LDATables
from resilient_ps.models.lda_sampler import Counts, counted, resample, sampling_key
from resilient_ps.schedules import Rotation, RotationPlace
from resilient_ps.tables.optimisers import Sum

PARTS_MAX = 1024


@dataclass(frozen=True)
class RotatingLDA:
    """`model` trained over `parts` (1 to 1,024) parts of the documents, as many tasks at a time.

    The tables of words and topics are those of `LDA`; totals are the sparse table `{table}/lanes`.
    The number of parts is part of the result, the number of processes is not.
    """

    model: LDA = field(default_factory=LDA)
    parts: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= PARTS_MAX:
            raise BadInput(f"parts={self.parts}: 1 to {PARTS_MAX}")

    @property
    def table_names(self) -> tuple[str, str]:
        """Of `LDATables`, in their order."""
        return self.model.table_names

    def schedule(self, *, epochs: int = 100, name: str = "lda") -> Rotation:
        """The tasks: in a first round words get topics at random, then come `epochs` rounds."""
        return Rotation(self.parts, epochs + 1, name)

    def train(
        self,
        tasks: Tasks,
        corpus: Corpus,
        *,
        epochs: int = 100,
        on_task: Callable[[Progress], None] | None = None,
    ) -> LDATables:
        """Take tasks until none is left: `client.tasks(rotating.schedule(epochs=...).graph)`.

        Any number of processes do the same, with the same arguments. `on_task` is told of words,
        not of rows. Raises `BadInput` where tables hold the topics of an earlier training.
        """
        schedule = self.schedule(epochs=epochs)
        program = RotatingProgram(self, tasks, corpus)
        samples = 0

        def work(task: Any) -> None:
            nonlocal samples
            place = schedule.place(task.rank, task.step)
            words, loss = program.work(place, task.step)
            samples += words
            if on_task is not None:
                on_task(Progress(task.rank, task.step, words, samples, loss / max(words, 1)))

        tasks.run(work)
        return program.tables

    def evaluate(self, tables: LDATables, corpus: Corpus) -> LDAEvaluation:
        """As `LDA.evaluate`."""
        return self.model.evaluate(tables, corpus)


class RotatingProgram:
    """What a task does. Nothing is kept between tasks but what the corpus alone determines."""

    def __init__(self, rotating: RotatingLDA, opener: TableOpener, corpus: Corpus) -> None:
        self._model = rotating.model
        self._parts = rotating.parts
        self._corpus = corpus
        self._ranges = corpus.parts(rotating.parts)
        self._block_of = _blocks(corpus, rotating.parts)
        self._held: dict[int, Documents] = {}
        self._words, self._assignments = rotating.model.open_tables(opener)
        self._lanes = opener.sparse_table(
            f"{rotating.model.table}/lanes",
            dim=rotating.model.topics,
            dtype="int64",
            optimiser=Sum(),
        )
        self.tables = LDATables(self._words, self._assignments)

    def work(self, place: RotationPlace, step: int) -> tuple[int, float]:
        """Draw the topics of the words of a block in a part; their number, and their loss."""
        documents = self._part(place.part)
        chosen = self._block_of[documents.distinct.astype(np.int64)] == place.block
        words = documents.distinct[chosen]
        here = np.flatnonzero(chosen[documents.codes])
        codes = (np.cumsum(chosen) - 1).astype(np.int32)[documents.codes[here]]
        counts = self._words.pull_async(words)
        held = self._assignments.pull(documents.rows.keys(0))
        topics = documents.rows.read(held)
        before = topics[here]
        if place.epoch == 0:
            self._model.check_unplaced(before)
        totals, replaced = self._totals(place.part, step)
        after, loss = self._resample(documents, here, codes, topics, counts.result(), totals, place)
        shape = (len(words), self._model.topics)
        change = counted(codes, after, shape) - counted(codes, before, shape)
        topics[here] = after
        self._push_topics(documents, topics, held, place.epoch + 1)
        moved = change.any(axis=1)
        if moved.any():
            self._words.push(words[moved], change[moved])
        self._push_totals(place.part, step, change.sum(axis=0), replaced)
        return len(here), loss

    def _part(self, part: int) -> Documents:
        if part not in self._held:
            self._held[part] = Documents(self._corpus, *self._ranges[part])
        return self._held[part]

    def _resample(
        self,
        documents: Documents,
        here: NDArray[np.int64],
        codes: NDArray[np.int32],
        topics: NDArray[np.int32],
        counts: Counts,
        totals: Counts,
        place: RotationPlace,
    ) -> tuple[NDArray[np.int32], float]:
        model = self._model
        after = topics[here]
        loss = resample(
            codes,
            documents.documents[here],
            after,
            counts,
            totals,
            counted(documents.documents, topics, (documents.count, model.topics)),
            model.alpha,
            model.eta,
            model.eta * self._corpus.vocabulary_size,
            sampling_key(model.seed, place.epoch, place.part, place.block),
        )
        return after, float(loss)

    def _push_topics(
        self, documents: Documents, topics: NDArray[np.int32], held: Counts, stamp: int
    ) -> None:
        change = documents.rows.write(topics, stamp) - held
        moved = change.any(axis=1)
        if moved.any():
            self._assignments.push(documents.rows.keys(0)[moved], change[moved])

    # -- totals

    def _totals(self, lane: int, step: int) -> tuple[Counts, tuple[Counts, Counts]]:
        """Those that the task counts with; and of its own lane the last, and what it replaces."""
        parts = self._parts
        lanes = np.arange(parts)
        behind = (lanes - lane) % parts
        behind[lane] = 1
        steps = step - behind
        keys = np.append(lanes * parts + steps % parts, lane * parts + step % parts)
        rows = self._lanes.pull(keys.astype(np.uint64))
        rows[:-1][steps < 1] = 0
        return rows[:-1].sum(axis=0), (rows[lane], rows[-1])

    def _push_totals(
        self, lane: int, step: int, change: Counts, replaced: tuple[Counts, Counts]
    ) -> None:
        last, present = replaced
        key = np.array([lane * self._parts + step % self._parts], np.uint64)
        self._lanes.push(key, (last + change - present)[None, :])


def _blocks(corpus: Corpus, blocks: int) -> NDArray[np.int64]:
    """The block of each word: frequent words are dealt first, so that all have as much to do."""
    frequency = np.bincount(corpus.words, minlength=corpus.vocabulary_size)
    block_of = np.empty(corpus.vocabulary_size, np.int64)
    block_of[np.argsort(-frequency, kind="stable")] = np.arange(corpus.vocabulary_size) % blocks
    return block_of

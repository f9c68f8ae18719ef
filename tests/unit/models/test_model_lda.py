"""LDA: its sampler, its counts when processes die, and its quality beside the package `lda`."""

from __future__ import annotations

import numpy as np
import pytest
from summing import OneRank, SummingTables, TasksInOrder, some_order

from resilient_ps.data.corpus import Corpus, reuters
from resilient_ps.errors import BadInput
from resilient_ps.models.lda import LDA, LDAProgram, LDATables, Visits
from resilient_ps.models.lda_rotation import RotatingLDA
from resilient_ps.models.lda_rows import WORDS_PER_ROW, TopicRows
from resilient_ps.models.lda_sampler import counted, resample, sampling_key

TOPICS, EPOCHS = 20, 25
BAND = 0.01


def planted(documents=40, vocabulary=30, topics=3, seed=0):
    """Documents of words from a third of the vocabulary each; one has none, one has many."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 60, documents)
    lengths[3], lengths[7] = 0, 4 * WORDS_PER_ROW + 1
    words = [
        rng.integers(0, vocabulary // topics, n) + vocabulary // topics * (d % topics)
        for d, n in enumerate(lengths)
    ]
    return Corpus(np.concatenate(words), np.r_[0, np.cumsum(lengths)], vocabulary_size=vocabulary)


def look(tables, model, corpus):
    """(topics of all words, what the tables say of each word, what follows from the topics)."""
    found = LDATables(*(tables.tables[name] for name in model.table_names))
    topics = model.assigned(found, corpus)
    held = found.words.pull(np.arange(corpus.vocabulary_size, dtype=np.uint64))
    due = counted(corpus.words, topics, (corpus.vocabulary_size, model.topics))
    return topics, held, due


def check_counts(tables, model, corpus):
    topics, held, due = look(tables, model, corpus)
    assert (topics >= 0).all()
    assert np.array_equal(held, due)
    assert np.array_equal(tables.tables[f"{model.table}/topics"].pull(), due.sum(axis=0))


# -- rows


def test_rows_give_back_the_topics_that_they_were_written_with():
    corpus = planted()
    rows = TopicRows(corpus, 2, 9)
    words = corpus.offsets[9] - corpus.offsets[2]
    topics = np.random.default_rng(1).integers(-1, 4096, words).astype(np.int32)
    assert np.array_equal(rows.read(rows.write(topics, 5)), topics)
    later = np.where(topics < 0, 7, -1).astype(np.int32)
    assert np.array_equal(rows.newest(rows.write(topics, 5), rows.write(later, 4)), topics)
    assert np.array_equal(rows.newest(rows.write(topics, 5), rows.write(later, 6)), later)


def test_a_difference_of_rows_changes_no_topic_of_a_neighbour():
    rows = TopicRows(planted(), 7, 8)
    first = np.full(4 * WORDS_PER_ROW + 1, 4095, np.int32)
    second = np.arange(len(first), dtype=np.int32) % 2 - 1
    held, new = rows.write(first, 1), rows.write(second, 2)
    assert np.array_equal(held + (new - held), new)


def test_each_document_has_rows_of_its_own():
    corpus = planted()
    whole = TopicRows(corpus, 0, corpus.documents).keys(0)
    parts = [TopicRows(corpus, *part).keys(0) for part in corpus.parts(7)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(np.unique(np.r_[whole, TopicRows(corpus, 0, corpus.documents).keys(1)])) == 2 * len(
        whole
    )


# -- the sampler


def test_words_are_drawn_with_the_probabilities_of_collapsed_gibbs_sampling():
    """One word with fixed counts, drawn with many keys: Griffiths and Steyvers' formula."""
    others = np.array([[4, 0, 1]]), np.array([9, 2, 5]), np.array([[1, 3, 0]])
    alpha, eta, vocabulary = 0.5, 0.1, 7
    share = (others[0][0] + eta) / (others[1] + eta * vocabulary) * (others[2][0] + alpha)
    due, drawn, draws = share / share.sum(), np.zeros(3), 8_000
    for key in range(draws):
        topics = np.array([1], np.int32)
        of_word, of_all, of_document = (each.astype(np.int64) for each in others)
        of_word[0, 1] += 1
        of_all[1] += 1
        of_document[0, 1] += 1
        zero = np.zeros(1, np.int32)
        loss = resample(
            *(zero, zero, topics, of_word, of_all, of_document),
            *(alpha, eta, eta * vocabulary, sampling_key(key)),
        )
        drawn[topics[0]] += 1
    assert loss == pytest.approx(-np.log(share.sum() / (4 + 3 * alpha)))
    assert drawn / draws == pytest.approx(due, abs=4 * np.sqrt(0.25 / draws))


def test_words_without_a_topic_get_each_with_the_same_probability():
    words = np.zeros(9_000, np.int32)
    topics = np.full(len(words), -1, np.int32)
    counts = [np.zeros((1, 3), np.int64), np.zeros(3, np.int64), np.zeros((1, 3), np.int64)]
    resample(words, words, topics, *counts, 0.1, 0.1, 1.0, sampling_key(1))
    assert np.bincount(topics) == pytest.approx([3000] * 3, abs=300)
    assert all(np.array_equal(each.reshape(-1), np.bincount(topics)) for each in counts)


def test_the_log_likelihood_is_that_of_the_package_lda():
    reference = pytest.importorskip("lda._lda", reason="pip install lda: it is the reference")
    corpus, rank = planted(), OneRank()
    model = LDA(topics=3, alpha=0.3, eta=0.2)
    tables = model.train(rank, corpus, epochs=3, batches=2)
    topics, held, _ = look(rank, model, corpus)
    lengths = np.diff(corpus.offsets).astype(np.intc)
    of_documents = counted(
        np.repeat(np.arange(corpus.documents), lengths), topics, (corpus.documents, 3)
    )
    due = reference._loglikelihood(
        np.asfortranarray(held.T.astype(np.intc)),
        np.ascontiguousarray(of_documents.astype(np.intc)),
        held.sum(axis=0).astype(np.intc),
        lengths,
        0.3,
        0.2,
    )
    found = model.evaluate(tables, corpus)
    assert found.log_likelihood == pytest.approx(due, rel=1e-12)
    assert (found.documents, found.words, found.topics) == (40, len(corpus), 3)
    assert found.perplexity == pytest.approx(np.exp(-due / len(corpus)))


# -- what is learnt


def test_planted_topics_are_found():
    corpus, rank = planted(), OneRank()
    model = LDA(topics=3, seed=4)
    tables = model.train(rank, corpus, epochs=60, batches=2)
    of_words = model.topic_words(tables, corpus)
    assert of_words.sum(axis=1) == pytest.approx(np.ones(3))
    thirds = of_words.reshape(3, 3, 10).sum(axis=2)
    assert (thirds.max(axis=1) > 0.98).all()
    assert sorted(thirds.argmax(axis=1)) == [0, 1, 2]
    documents = model.document_topics(tables, corpus)
    assert documents.shape == (40, 3)
    assert documents[3] == pytest.approx(np.ones(3) / 3), "it has no words"


def reference_per_word(corpus, epochs):
    lda = pytest.importorskip("lda", reason="pip install lda: it is the reference")
    document = np.repeat(np.arange(corpus.documents), np.diff(corpus.offsets))
    counts = counted(document, corpus.words, (corpus.documents, corpus.vocabulary_size))
    fitted = lda.LDA(n_topics=TOPICS, n_iter=epochs, random_state=1).fit(counts)
    return fitted.loglikelihood() / len(corpus)


def test_reuters_is_learnt_as_well_as_by_the_package_lda():
    pytest.importorskip("lda", reason="pip install lda: it is the reference")
    corpus, model, rank = reuters(), LDA(topics=TOPICS, seed=1), OneRank()
    due = reference_per_word(corpus, EPOCHS)
    tables = model.train(rank, corpus, epochs=EPOCHS, batches=4)
    check_counts(rank, model, corpus)
    assert model.evaluate(tables, corpus).log_likelihood_per_word == pytest.approx(due, rel=BAND)
    rotating = RotatingLDA(model, parts=4)
    tasks = TasksInOrder(rotating.schedule(epochs=EPOCHS).graph.serial_order())
    tables = rotating.train(tasks, corpus, epochs=EPOCHS)
    assert rotating.evaluate(tables, corpus).log_likelihood_per_word == pytest.approx(due, rel=BAND)


# -- when processes die


class PushesAtOnce(LDAProgram):
    """What this model must not do: counts are pushed in the clock whose draws depend on others."""

    def one_clock(self, visit):
        if visit.sampled is None:
            return 0.0
        loss = self._sample(visit.sampled, visit.epoch)
        self._settle(visit.sampled, visit.epoch)
        return loss


def train_with_kills(program_of, corpus, seed, epochs=6, shards=3):
    """Two ranks by turns. In every third clock or so a process is killed: see `summing`."""
    rng = np.random.default_rng(seed)
    model, tables = LDA(topics=3, seed=seed), SummingTables(shards)
    program = program_of(model, tables)
    left = [Visits(model, corpus, 2, epochs).batches(rank, 2, 1) for rank in range(2)]
    while left:
        rank = int(rng.integers(len(left)))
        visit = next(left[rank], None)
        if visit is None:
            del left[rank]
            continue
        if rng.random() < 0.7:
            tables.pushed.begin()
            program.one_clock(visit)
            continue
        reached = rng.integers(0, 4, shards)
        tables.pushed.begin(reached=reached)
        program.one_clock(visit)
        meddle(tables, model, +1)  # others push before the clock is run again
        tables.pushed.begin(held=reached)
        program.one_clock(visit)
        meddle(tables, model, -1)
    return tables, model


def meddle(tables, model, sign):
    """Counts as another rank may have left them, and take back."""
    tables.pushed.begin()
    word = np.zeros(1, np.uint64)
    tables.tables[model.table_names[0]].push(word, sign * np.array([[50, 0, 0]]))


@pytest.mark.parametrize("seed", range(8))
def test_counts_agree_with_topics_however_often_processes_are_killed(seed):
    corpus = planted(seed=seed)
    check_counts(*train_with_kills(LDAProgram, corpus, seed), corpus)


def test_counts_that_are_pushed_at_once_disagree_with_topics_after_a_kill():
    corpus = planted()
    tables, model = train_with_kills(PushesAtOnce, corpus, seed=0)
    _, held, due = look(tables, model, corpus)
    assert not np.array_equal(held, due)


# -- rotation


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_rotation_ends_with_the_bytes_of_the_serial_order_in_every_order(parts):
    corpus = planted()
    rotating = RotatingLDA(LDA(topics=4, seed=2), parts)
    graph = rotating.schedule(epochs=5).graph
    orders = [graph.serial_order()]
    orders += [some_order(graph, np.random.default_rng(seed)) for seed in range(3)]
    ends = []
    for order in orders:
        tasks = TasksInOrder(order)
        rotating.train(tasks, corpus, epochs=5)
        topics, held, due = look(tasks, rotating.model, corpus)
        assert np.array_equal(held, due)
        assert (topics >= 0).all()
        ends.append(topics.tobytes())
        lanes = tasks.tables["lda/lanes"].pull(np.arange(parts * parts, dtype=np.uint64))
        last = lanes.reshape(parts, parts, 4)[:, graph.steps % parts]
        assert np.array_equal(last.sum(axis=0), due.sum(axis=0))
    assert len(set(ends)) == 1


def test_progress_counts_each_word_in_each_epoch():
    corpus, told = planted(), []
    rotating = RotatingLDA(LDA(topics=3), 3)
    tasks = TasksInOrder(rotating.schedule(epochs=2).graph.serial_order())
    rotating.train(tasks, corpus, epochs=2, on_task=told.append)
    assert told[-1].samples == 3 * len(corpus) == sum(each.rows for each in told)
    told.clear()
    LDA(topics=3, table="b").train(OneRank(), corpus, epochs=2, batches=5, on_batch=told.append)
    assert told[-1].samples == 3 * len(corpus)
    assert told[0].loss == pytest.approx(np.log(30)), "the words have no topics before"
    assert 0 < told[-1].loss < np.log(30)


# -- wrong calls


def test_a_second_training_into_the_same_tables_is_refused():
    corpus, rank = planted(), OneRank()
    LDA(topics=3).train(rank, corpus, epochs=2, batches=2)
    rank.cursor = None
    with pytest.raises(BadInput, match="use another name for the tables"):
        LDA(topics=3).train(rank, corpus, epochs=2, batches=2)
    rotating = RotatingLDA(LDA(topics=3), 2)
    tasks = TasksInOrder(rotating.schedule(epochs=1).graph.serial_order())
    tasks.tables = rank.tables
    with pytest.raises(BadInput, match="use another name for the tables"):
        rotating.train(tasks, corpus, epochs=1)


@pytest.mark.parametrize("other", [{"epochs": 3}, {"batches": 3}])
def test_a_rank_goes_on_with_the_arguments_that_it_began_with(other):
    corpus, rank = planted(), OneRank()
    LDA(topics=3).train(rank, corpus, epochs=2, batches=2)
    (name,) = other
    with pytest.raises(BadInput, match=f"was trained with {name}=2, and now with {name}=3"):
        LDA(topics=3).train(rank, corpus, **{"epochs": 2, "batches": 2, **other})


@pytest.mark.parametrize(
    "wrong", [{"topics": 0}, {"topics": 5000}, {"alpha": 0.0}, {"eta": -1.0}, {"seed": -1}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        LDA(**wrong)


def test_a_rank_needs_two_batches_and_a_rotation_a_part():
    with pytest.raises(BadInput, match="2 to"):
        LDA().train(OneRank(), planted(), batches=1)
    with pytest.raises(BadInput, match="parts=0"):
        RotatingLDA(parts=0)

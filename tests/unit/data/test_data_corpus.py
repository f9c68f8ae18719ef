"""Corpora: the format of LDA-C, parts of equal size, and what is refused."""

from __future__ import annotations

import gzip
from importlib.util import find_spec

import numpy as np
import pytest

from resilient_ps.data import corpus as module
from resilient_ps.data.corpus import Corpus, open_corpus, reuters
from resilient_ps.errors import BadInput, NotFound

TEXT = "2 0:1 3:2\n0\n1 1:4\n"


def written(tmp_path, text, name="some.ldac"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_documents_are_read_word_by_word(tmp_path):
    found = open_corpus(written(tmp_path, TEXT))
    assert found.words.tolist() == [0, 3, 3, 1, 1, 1, 1]
    assert found.offsets.tolist() == [0, 3, 3, 7]
    assert (len(found), found.documents, found.vocabulary_size) == (7, 3, 4)
    assert found.name(3) == "3"


def test_words_have_the_names_of_the_vocabulary_also_in_compressed_files(tmp_path):
    names = tmp_path / "words.gz"
    names.write_bytes(gzip.compress(b"sea\nland\nsky\nrain\n"))
    packed = tmp_path / "some.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    found = open_corpus(packed, names)
    assert [found.name(word) for word in range(4)] == ["sea", "land", "sky", "rain"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 0:1\n2 0:1\n", "line 2: it says 2 different words, and has 1"),
        ("1 0:x\n", "line 1: a document is written as"),
        ("1 0\n", "line 1: a document is written as"),
        ("1 -1:2\n", "line 1: it says"),
        ("1 1:99999999\n", "line 1: more than"),
        ("0\n0\n", "at least one word"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, text, why):
    with pytest.raises(BadInput, match=why):
        open_corpus(written(tmp_path, text))


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    with pytest.raises(BadInput, match="word 3 in a vocabulary of 2"):
        open_corpus(written(tmp_path, TEXT), written(tmp_path, "a\nb\n", "names"))


def test_parts_are_whole_documents_and_have_about_as_many_words():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 50, 500)
    corpus = Corpus(np.zeros(lengths.sum(), int), np.r_[0, np.cumsum(lengths)])
    for of in (1, 3, 8, 700):
        parts = corpus.parts(of)
        assert [first for first, _ in parts[1:]] == [last for _, last in parts[:-1]]
        assert (len(parts), parts[0][0], parts[-1][1]) == (of, 0, 500)
        words = [corpus.offsets[last] - corpus.offsets[first] for first, last in parts]
        assert max(words) <= len(corpus) / of + 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": [], "offsets": [0, 0]},
        {"words": [-1], "offsets": [0, 1]},
        {"words": [0.5], "offsets": [0, 1]},
        {"words": [0, 1], "offsets": [0, 1]},
        {"words": [0, 1], "offsets": [0, 2, 1, 2]},
        {"words": [5], "offsets": [0, 1], "vocabulary_size": 5},
        {"words": [0], "offsets": [0, 1], "vocabulary": ("a", "b"), "vocabulary_size": 1},
    ],
)
def test_what_does_not_fit_together_is_refused(wrong):
    with pytest.raises(BadInput):
        Corpus(**wrong)


@pytest.mark.skipif(find_spec("lda") is None, reason="pip install lda")
def test_the_corpus_of_reuters_is_complete():
    found = reuters()
    assert (found.documents, len(found), found.vocabulary_size) == (395, 84_010, 4_258)
    counts = np.bincount(found.words)
    assert found.name(int(counts.argmax())) == "church"


def test_without_the_package_lda_the_remedy_is_told(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(NotFound, match="pip install lda"):
        reuters()

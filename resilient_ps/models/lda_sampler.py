"""The inner loops of LDA: Gibbs sampling word by word, and sums of log-gammas.

Random numbers are a function of (key, position of the word), not of a generator's state: the same
call gives the same bytes wherever, and however often, it is made.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.hashing import mix64
from resilient_ps.tables.compiled import kernel
from resilient_ps.tables.filling import mix

Counts = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def sampling_key(*numbers: int) -> np.uint64:
    """The key of a pass over words: numbers of which no two passes have the same."""
    key = 0
    for number in numbers:
        key = mix64(key * int(_GOLDEN) + number + 1)
    return np.uint64(key & _MASK)


@kernel
def resample(
    words: Any,
    documents: Any,
    topics: Any,
    word_counts: Any,
    topic_counts: Any,
    document_counts: Any,
    alpha: Any,
    eta: Any,
    eta_sum: Any,
    key: Any,
) -> Any:
    """Draw the topics of all words anew, one after the other, in place; with the counts.

    `words`, `documents` and `topics` are int32 (n,): rows of `word_counts` (., K) and of
    `document_counts` (., K), and topics from 0; `topic_counts` is (K,), all counts int64. A word
    without a topic (-1) gets one at random. `eta_sum` is `eta` times the size of the vocabulary.
    Returns the sum over the words of -log p(word | all others).
    """
    topics_total = len(topic_counts)
    cumulated = np.empty(topics_total)
    inverse = 1.0 / (topic_counts + eta_sum)  # divisions are what sampling would wait for
    loss = 0.0
    placed = 0
    for i in range(len(words)):
        word, document, old = words[i], documents[i], topics[i]
        bits = mix(key + np.uint64(i + 1) * _GOLDEN)
        draw = np.float64(bits >> np.uint64(11)) * 2.0**-53
        if old < 0:
            new = np.int32(draw * topics_total)
        else:
            word_counts[word, old] -= 1
            topic_counts[old] -= 1
            inverse[old] = 1.0 / (topic_counts[old] + eta_sum)
            document_counts[document, old] -= 1
            total = 0.0
            length = 0
            for k in range(topics_total):
                share = (word_counts[word, k] + eta) * inverse[k]
                total += share * (document_counts[document, k] + alpha)
                length += document_counts[document, k]
                cumulated[k] = total
            loss -= math.log(total / (length + topics_total * alpha))
            placed += 1
            goal = draw * total
            new = np.int32(0)
            while new < topics_total - 1 and cumulated[new] <= goal:
                new += np.int32(1)
        topics[i] = new
        word_counts[word, new] += 1
        topic_counts[new] += 1
        inverse[new] = 1.0 / (topic_counts[new] + eta_sum)
        document_counts[document, new] += 1
    return loss + (len(words) - placed) * math.log(max(eta_sum / eta, 1.0))


@kernel
def log_gammas(counts: Any, prior: Any) -> Any:
    """The sum over `counts` (n,) of log gamma(prior + count) - log gamma(prior)."""
    total = 0.0
    for i in range(len(counts)):
        if counts[i] > 0:
            total += math.lgamma(prior + counts[i]) - math.lgamma(prior)
    return total


def counted(rows: NDArray[Any], topics: NDArray[Any], shape: tuple[int, int]) -> Counts:
    """How often each topic occurs in each row, int64 `shape`; words without one do not count."""
    has = topics >= 0
    flat = rows[has].astype(np.int64) * shape[1] + topics[has]
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)

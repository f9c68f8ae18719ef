"""When shards were away: read off what a probe notes, which pushes to each of them all the time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from resilient_ps.chaos.result import Outage

OUTAGE_LEAST_S = 0.25
"""A shorter time without an acknowledgement is none: machines have hiccups."""


class Span(NamedTuple):
    """From one moment to another, in seconds."""

    from_s: float
    to_s: float


class Notes(NamedTuple):
    """What the probe of a shard noted. `ticks`: while it ended a clock, it pushed nothing.

    A tick needs all shards, so a probe may be held up by another shard than its own.
    """

    acked_s: Sequence[float]
    ticks: Sequence[Span] = ()


def outages_of(
    notes: Mapping[int, Notes], from_s: float, to_s: float, least_s: float = OUTAGE_LEAST_S
) -> tuple[Outage, ...]:
    """By shard: the times longer than `least_s` without an acknowledgement between two moments.

    One that was spent waiting for a tick counts where no other shard was away meanwhile.
    """
    silent = {
        shard: [(span, _ticking(span, each.ticks)) for span in _silences(each, from_s, to_s)]
        for shard, each in sorted(notes.items())
    }
    pushing = {
        shard: [span for span, ticking in spans if not ticking and _lasts(span) > least_s]
        for shard, spans in silent.items()
    }
    found: list[Outage] = []
    for shard, spans in silent.items():
        others = [span for other, each in pushing.items() if other != shard for span in each]
        for span, ticking in spans:
            if _lasts(span) > least_s and not (ticking and _meets_any(span, others)):
                found.append(Outage(shard, round(span.from_s, 3), round(span.to_s, 3)))
    return tuple(sorted(found, key=lambda outage: (outage.from_s, outage.shard)))


def longest_silence(acked_s: Iterable[float], from_s: float, to_s: float) -> float:
    """The longest time between two acknowledgements, as far as it lies between two moments."""
    return max((_lasts(span) for span in _silences(Notes(list(acked_s)), from_s, to_s)), default=0)


def _silences(notes: Notes, from_s: float, to_s: float) -> list[Span]:
    inside = [from_s, *(at for at in notes.acked_s if from_s < at < to_s), to_s]
    return [Span(earlier, later) for earlier, later in itertools.pairwise(inside)]


def _lasts(span: Span) -> float:
    return span.to_s - span.from_s


def _ticking(span: Span, ticks: Iterable[Span]) -> bool:
    """Was most of it spent waiting for a tick?"""
    waited = sum(max(0.0, min(span.to_s, t.to_s) - max(span.from_s, t.from_s)) for t in ticks)
    return waited > _lasts(span) / 2


def _meets_any(span: Span, others: Iterable[Span]) -> bool:
    return any(span.from_s < other.to_s and other.from_s < span.to_s for other in others)

"""Requests taken apart for the shards, and the shards' answers put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from resilient_ps.machine import Send
from resilient_ps.messages import Answer, Keys, Part, Request, Status, Values
from resilient_ps.shard import Reply
from resilient_ps.waiting import Origin

ANSWER_TEXT_BYTES = 100_000  # answers with more than this travel in several messages
ANSWER_VALUE_BYTES = 32 << 20
_AWAY = frozenset({Status.NOT_OWNER, Status.ROLLED_BACK})
_NO_VALUES: Values = np.empty(0, np.float32)


def pieces_of(request: Request) -> Iterator[tuple[Part, Keys, Values]]:
    """The request's parts, each with its own keys and flat values."""
    keys = request.keys
    values = request.values[0] if request.values else _NO_VALUES
    first = start = 0
    for part in request.parts:
        end, stop = first + part.count, start + part.elements
        yield part, keys[first:end], values[start:stop]
        first, start = end, stop


def answers(replies: Sequence[Reply], until_ns: int) -> list[Send]:
    """One message per request where possible, split where texts are long.

    They end at `until_ns` (0: never), but for those that say that we are not the owner, or that
    the cluster was rolled back.
    """
    if len(replies) == 1:  # as mostly
        origin = replies[0].origin
        answer = _answer(origin.request, replies)
        return [Send(origin.peer, answer, _until(replies, until_ns))]
    grouped: dict[Origin, list[Reply]] = {}
    before, group = None, list[Reply]()
    for reply in replies:
        if reply.origin is not before:  # neighbours mostly share it
            before = reply.origin
            group = grouped.setdefault(before, [])
        group.append(reply)
    return [
        Send(origin.peer, _answer(origin.request, batch), _until(batch, until_ns))
        for origin, group in grouped.items()
        for batch in _batches(group)
    ]


def _batches(group: list[Reply]) -> Iterable[list[Reply]]:
    """Answers to one request, in messages that keep within the limits of a frame."""
    texts = sum([len(reply.answer.text) for reply in group])
    values = sum([reply.values.nbytes for reply in group if reply.values is not None])
    if texts <= ANSWER_TEXT_BYTES and values <= ANSWER_VALUE_BYTES:
        return [group]
    return [[reply] for reply in group]


def _answer(request: int, batch: Sequence[Reply]) -> Answer:
    parts = tuple([reply.answer for reply in batch])
    values = tuple([reply.values for reply in batch if reply.values is not None])
    return Answer(request, parts, values)


def _until(batch: Sequence[Reply], until_ns: int) -> int:
    """To send somebody away needs no lease."""
    for reply in batch:
        if reply.answer.status not in _AWAY:
            return until_ns
    return 0

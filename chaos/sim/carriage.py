"""How messages travel inside one thread: as copies that share no memory with their sender.

`carried` does what encoding and decoding would: values that are given in pieces arrive in one,
and arrays are the receiver's own. A world with `wire=True` sends real bytes instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import xxhash

from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    AppendPart,
    Command,
    Copy,
    Entry,
    Message,
    Request,
    Values,
)
from resilient_ps.wire import Place


def carried(message: Message) -> Message:
    """The message as its receiver gets it, but for the place of an answer's values."""
    carry = _CARRIED.get(type(message))
    return message if carry is None else carry(message)


def placed(answer: Answer, place: Place) -> Answer:
    """Put an answer's values, which it has, where the receiver wants them, if it says where."""
    views = place(answer.request, answer.parts)
    if views is None:
        return answer
    data = answer.values[0].data.cast("B")
    if sum([view.nbytes for view in views]) != len(data):
        raise AssertionError(f"an answer of {len(data)} bytes does not fit what was asked for")
    at = 0
    for view in views:
        view[:] = data[at : at + view.nbytes]
        at += view.nbytes
    return Answer(answer.request, answer.parts, placed=True)


def _own_answer(m: Answer) -> Answer:
    return Answer(m.request, m.parts, _joined(m.values)) if m.values else m


def _own_append(m: Append) -> Append:
    return Append(tuple([_part(part) if part.entries else part for part in m.parts]))


def _own_copy(m: Copy) -> Copy:
    if not (m.keys.size or m.values.size):
        return m
    return replace(m, keys=m.keys.copy(), values=m.values.copy())


def _joined(pieces: Sequence[Values]) -> tuple[Values, ...]:
    if len(pieces) == 1:
        return (pieces[0].flatten(),) if pieces[0].size else ()
    full = [piece.reshape(-1) for piece in pieces if piece.size]
    return (np.concatenate(full),) if full else ()


def _part(part: AppendPart) -> AppendPart:
    return AppendPart(*part[:-1], tuple([Entry(at, _own(command)) for at, command in part.entries]))


def _own_request(m: Request) -> Request:
    if not m.keys.size and not m.values:
        return m
    return Request(
        m.kind,
        m.request,
        m.parts,
        m.incarnation,
        m.worker,
        m.clock,
        m.n,
        m.table,
        m.wait_ns,
        m.rate,
        m.settled,
        m.text,
        m.keys.copy(),
        _joined(m.values),
    )


def _own(command: Command) -> Command:
    if not (command.keys.size or command.values.size):
        return command
    return Command(
        command.kind,
        command.worker,
        command.clock,
        command.n,
        command.prev,
        command.table,
        command.rate,
        command.settled,
        command.text,
        command.keys.copy(),
        command.values.copy(),
    )


_CARRIED: dict[type, Callable[[Any], Message]] = {
    Request: _own_request,
    Answer: _own_answer,
    Append: _own_append,
    Copy: _own_copy,
}


# -- traces

Numbers: TypeAlias = tuple[int, ...]


def described(message: Message) -> Numbers:
    """What a trace says of a message: enough that runs which differ soon have other traces."""
    describe = _DESCRIBED.get(type(message))
    return (digest(repr(message).encode()),) if describe is None else describe(message)


def digest(content: Any) -> int:
    """63 bits: so it is a number like others."""
    return xxhash.xxh3_64_intdigest(content) >> 1


def _of_request(m: Request) -> Numbers:
    keys = digest(m.keys.data) if m.keys.size else 0
    return m.kind, m.request, m.worker.rank, m.clock, m.n, keys, _sum(m.values)


def _of_answer(m: Answer) -> Numbers:
    first = m.parts[0]
    at = first.at
    return m.request, len(m.parts), first.shard, first.status, at[0][1], at[1], _sum(m.values)


def _of_append(m: Append) -> Numbers:
    shard, epoch, _, _, commit, entries = m.parts[0]
    return len(m.parts), shard, epoch[1], commit, len(entries)


def _of_appended(m: Appended) -> Numbers:
    shard, epoch, _, held, lsn = m.parts[0]
    return len(m.parts), shard, epoch[1], held, lsn


def _of_copy(m: Copy) -> Numbers:
    return m.shard, m.number, m.lsn, _sum((m.keys, m.values))


_DESCRIBED: dict[type, Callable[[Any], Numbers]] = {
    Request: _of_request,
    Answer: _of_answer,
    Append: _of_append,
    Appended: _of_appended,
    Copy: _of_copy,
}


def _sum(arrays: Sequence[Values]) -> int:
    total = 0
    for array in arrays:
        if array.size:
            total ^= digest(array.data)
    return total

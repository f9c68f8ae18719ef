"""Frames between the replicas of shards: entries of logs, their acknowledgement, state copies.

Keys and values of all entries of a frame stand one behind the other, and the entries' texts at the
end of its meta; an entry says how many of them are its own. What is decoded are slices of the
frame's arrays, so they live as long as any of its entries does. Values arrive flat.

Lengths, counts, kinds and dtypes are checked here. Whether epochs and lsns make sense is for the
replica to say.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.framing import (
    APPEND_KIND,
    APPENDED_KIND,
    COPY_KIND,
    DTYPE_CODES,
    DTYPES,
    TEXT_CODE,
    Head,
    WireError,
    dtype_code,
    pack_frame,
)
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.messages import (
    NO_KEYS,
    NO_VALUES,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Command,
    Copied,
    Copy,
    Entry,
    Held,
    Keys,
    Kind,
    Values,
)

_APPEND = struct.Struct("<II")  # parts, entries
_PART = struct.Struct("<IQQQQQQQI")  # shard, epoch, attempt, prev, commit, entries
_ENTRY = struct.Struct("<BBBQQQIIQQIIIdIIQ")
_APPENDED = struct.Struct("<I")
_APPENDED_PART = struct.Struct("<IQQQBQ")
_COPY = struct.Struct("<IQQQQQBIQ")
APPEND_BYTES, APPEND_PART_BYTES, ENTRY_BYTES = _APPEND.size, _PART.size, _ENTRY.size
LONG_TEXT_BYTES = 64 * 1024  # of a `Copy` without arrays: it travels in their place

_COMMANDS = {int(kind): kind for kind in Kind if kind is not Kind.PULL}
_HELD = {int(held): held for held in Held}
_COPIED = {int(what): what for what in Copied}
_EMPTY: tuple[Values, ...] = (NO_VALUES, *(np.empty(0, dtype) for dtype in DTYPE_CODES))
FORMATS = tuple(each.format for each in (_APPEND, _PART, _ENTRY, _APPENDED, _APPENDED_PART))
COMMANDS = tuple(_COMMANDS.values())
EMPTY = _EMPTY
_new = tuple.__new__  # a named tuple's own constructor is slower, and there is one per entry


def append_size(entry: Entry) -> tuple[int, int]:
    """What `entry` adds to an `Append`: (bytes of meta, bytes of keys and values).

    The meta of an `Append` is `APPEND_BYTES`, `APPEND_PART_BYTES` per part, and these.
    """
    command = entry.command
    return ENTRY_BYTES + len(command.text), command.keys.nbytes + command.values.nbytes


def encode_append(message: Append) -> list[Any]:
    """See `frames.encode`. Raises `BadInput` for values of several dtypes."""
    entries = [entry for part in message.parts for entry in part.entries]
    meta = [_APPEND.pack(len(message.parts), len(entries))]
    for shard, epoch, attempt, (prev, lsn), commit, own in message.parts:
        meta.append(_PART.pack(shard, *epoch, attempt, *prev, lsn, commit, len(own)))
    meta += [_pack_entry(entry) for entry in entries]
    meta += [entry.command.text for entry in entries]
    keys = [entry.command.keys for entry in entries]
    values = [entry.command.values for entry in entries if entry.command.values.size]
    code = dtype_code(values) if values else 0
    return pack_frame(APPEND_KIND, 0, b"".join(meta), keys, values, code)


def _pack_entry(entry: Entry) -> bytes:
    ((incarnation, counter), lsn), command = entry
    worker, values = command.worker, command.values
    return _ENTRY.pack(
        command.kind,
        command.settled,
        DTYPE_CODES.get(values.dtype) or dtype_code((values,)),
        incarnation,
        counter,
        lsn,
        worker.job,
        worker.rank,
        worker.incarnation,
        command.clock,
        command.n,
        command.prev,
        command.table,
        command.rate,
        len(command.text),
        command.keys.size,
        values.size,
    )


def decode_append(head: Head, meta: bytes, keys: Keys, values: Values | None) -> Append:
    """See `frames.decode`."""
    parts_n, entries_n = _APPEND.unpack_from(meta)
    entries_at = _APPEND.size + parts_n * _PART.size
    texts_at = entries_at + entries_n * _ENTRY.size
    if texts_at > len(meta):
        raise WireError(f"{parts_n} parts of {entries_n} entries do not fit into {len(meta)} bytes")
    entries = _unpack_entries(head, meta, (entries_at, texts_at), keys, values)
    parts: list[AppendPart] = []
    done = 0
    for shard, incarnation, counter, attempt, *prev, lsn, commit, count in _PART.iter_unpack(
        memoryview(meta)[_APPEND.size : entries_at]
    ):
        epoch, at = Epoch(incarnation, counter), Position(Epoch(*prev), lsn)
        own = tuple(entries[done : done + count])
        parts.append(AppendPart(shard, epoch, attempt, at, commit, own))
        done += count
    if done != entries_n:
        raise WireError(f"the parts' {done} entries do not add up to the frame's {entries_n}")
    return Append(tuple(parts))


def _unpack_entries(
    head: Head, meta: bytes, where: tuple[int, int], keys: Keys, values: Values | None
) -> list[Entry]:
    entries: list[Entry] = []
    epoch = NO_EPOCH
    keys_at = values_at = 0
    start, text_at = where
    for (
        code, settled, dtype, incarnation, counter, lsn, job, rank, worker, clock, n, prev, table,
        rate, text_n, keys_n, values_n,
    ) in _ENTRY.iter_unpack(memoryview(meta)[start:text_at]):  # fmt: skip
        kind = _COMMANDS.get(code)
        if kind is None:
            raise WireError(f"an entry of kind {code} is unknown")
        if (incarnation, counter) != epoch:
            epoch = _new(Epoch, (incarnation, counter))
        text = meta[text_at : text_at + text_n] if text_n else b""
        own_keys = keys[keys_at : keys_at + keys_n] if keys_n else NO_KEYS
        own_values = _own_values(head, dtype, values_at, values_n, values)
        text_at, keys_at, values_at = text_at + text_n, keys_at + keys_n, values_at + values_n
        who = _new(WorkerId, (job, rank, worker))
        command = Command(
            kind, who, clock, n, prev, table, rate, settled != 0, text, own_keys, own_values
        )
        entries.append(_new(Entry, (_new(Position, (epoch, lsn)), command)))
    if text_at != len(meta):
        raise WireError(f"{len(entries)} entries and their texts take {text_at} of {len(meta)}")
    if (keys_at, values_at) != (head.keys, head.elements):
        raise WireError(
            f"the entries' {keys_at} keys and {values_at} values do not add up to the frame's "
            f"{head.keys} and {head.elements}"
        )
    return entries


def _own_values(head: Head, code: int, at: int, count: int, values: Values | None) -> Values:
    """An entry's values; those of an entry without any keep their dtype, as its sender had it."""
    if not 0 < code < len(_EMPTY):
        raise WireError(f"dtype code {code} of an entry is none of the permitted dtypes")
    if not count:
        return _EMPTY[code]
    if values is None or DTYPES[code] != head.dtype:
        raise WireError(f"{count} values of dtype code {code} are not in this frame")
    return values[at : at + count]


def encode_appended(message: Appended) -> list[Any]:
    """See `frames.encode`."""
    meta = [_APPENDED.pack(len(message.parts))]
    for shard, epoch, attempt, held, lsn in message.parts:
        meta.append(_APPENDED_PART.pack(shard, *epoch, attempt, held, lsn))
    return pack_frame(APPENDED_KIND, 0, b"".join(meta), (), (), 0)


def decode_appended(meta: bytes) -> Appended:
    """See `frames.decode`."""
    (parts_n,) = _APPENDED.unpack_from(meta)
    if _APPENDED.size + parts_n * _APPENDED_PART.size != len(meta):
        raise WireError(f"{parts_n} parts are not {len(meta)} bytes")
    parts: list[AppendedPart] = []
    for shard, incarnation, counter, attempt, code, lsn in _APPENDED_PART.iter_unpack(
        memoryview(meta)[_APPENDED.size :]
    ):
        held = _HELD.get(code)
        if held is None:
            raise WireError(f"answer {code} of a replica is unknown")
        epoch = Epoch(incarnation, counter)
        parts.append(AppendedPart(shard, epoch, attempt, held, lsn))
    return Appended(tuple(parts))


def encode_copy(message: Copy) -> list[Any]:
    """See `frames.encode`. Raises `BadInput` for a long text beside keys or values."""
    meta = _COPY.pack(
        message.shard,
        *message.epoch,
        message.attempt,
        message.lsn,
        message.number,
        message.what,
        message.table,
        message.revision,
    )
    if len(message.text) <= LONG_TEXT_BYTES:
        code = dtype_code((message.values,))
        keys, values = (message.keys,), (message.values,)
        return pack_frame(COPY_KIND, 0, meta + message.text, keys, values, code)
    if message.keys.size or message.values.size:
        raise BadInput(
            f"a piece of a copy has {len(message.text)} bytes of text and arrays: at most "
            f"{LONG_TEXT_BYTES} can travel together"
        )
    text = np.frombuffer(message.text, np.uint8)
    return pack_frame(COPY_KIND, 0, meta, (), (text,), TEXT_CODE)


def decode_copy(head: Head, meta: bytes, keys: Keys, values: Values | None) -> Copy:
    """See `frames.decode`."""
    (shard, incarnation, counter, attempt, lsn, number, code, table,
     revision) = _COPY.unpack_from(meta)  # fmt: skip
    what = _COPIED.get(code)
    if what is None:
        raise WireError(f"a piece of a copy that holds {code} is unknown")
    text = meta[_COPY.size :]
    if head.dtype == DTYPES[TEXT_CODE]:
        if text or head.keys or values is None:
            raise WireError("a piece of a copy has its text in place of arrays, and both")
        text, values = values.tobytes(), NO_VALUES
    elif values is None:
        values = NO_VALUES if head.dtype is None else _EMPTY[DTYPE_CODES[head.dtype]]
    epoch = Epoch(incarnation, counter)
    return Copy(shard, epoch, attempt, lsn, number, what, table, revision, text, keys, values)

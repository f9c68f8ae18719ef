"""Frames between replicas: sizes known beforehand, arrays shared, lies in the meta refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_messages import appends, assert_same, copies, feed, frame

from resilient_ps import frames
from resilient_ps.errors import BadInput
from resilient_ps.frames import APPEND_BYTES, APPEND_PART_BYTES, append_size
from resilient_ps.framing import APPEND_KIND, APPENDED_KIND, COPY_KIND, HEAD, LOG_META_BYTES
from resilient_ps.ids import NOWHERE, Epoch, Position
from resilient_ps.log_frames import _ENTRY, LONG_TEXT_BYTES
from resilient_ps.messages import (
    Append,
    AppendPart,
    Command,
    Copied,
    Copy,
    Entry,
    Kind,
    Message,
    Part,
    Request,
)
from resilient_ps.wire import (
    HEAD_BYTES,
    MAGIC,
    VERSION,
    FrameLimits,
    FrameReader,
    WireError,
    encode,
)

EPOCH = Epoch(1, 2)


def append(*commands: Command) -> Append:
    entries = tuple(Entry(Position(EPOCH, lsn), one) for lsn, one in enumerate(commands, 1))
    return Append((AppendPart(0, EPOCH, 1, NOWHERE, 0, entries),))


def push(values: Any = (), keys: Any = (), text: bytes = b"") -> Command:
    return Command(Kind.PUSH, text=text, keys=np.array(keys, np.uint64), values=np.array(values))


def sent_raw(
    kind: int, meta: bytes, *, dtype: int = 0, keys: int = 0, values: bytes = b""
) -> bytes:
    head = HEAD.pack(MAGIC, VERSION, kind, dtype, 0, len(meta), keys, len(values), 0)
    return head + meta + bytes(8 * keys) + values


@given(appends())
@settings(deadline=None)
def test_the_size_of_an_append_is_the_sum_of_its_parts_and_entries(message: Append) -> None:
    sizes = [append_size(entry) for part in message.parts for entry in part.entries]
    meta = APPEND_BYTES + APPEND_PART_BYTES * len(message.parts) + sum(size[0] for size in sizes)
    first, *arrays = frames.encode(message)
    assert len(first) == HEAD_BYTES + meta
    assert sum(len(array) for array in arrays) == sum(size[1] for size in sizes)


def test_whatever_a_request_may_hold_fits_into_an_append_as_one_entry() -> None:
    limits = FrameLimits()
    plain = Request(Kind.TICK, 1, (Part(0),))
    room = limits.meta_bytes - (len(encode(plain)[0]) - HEAD_BYTES)
    fullest = Request(Kind.TICK, 1, (Part(0),), text=bytes(room))
    assert feed(FrameReader(), frame(fullest)) == [fullest]
    message = append(Command(Kind.TICK, text=fullest.text))
    assert len(encode(message)[0]) - HEAD_BYTES > limits.meta_bytes
    (got,) = feed(FrameReader(), frame(message))
    assert_same(got, message)
    more = append(Command(Kind.TICK, text=bytes(limits.meta_bytes + LOG_META_BYTES)))
    with pytest.raises(WireError, match="over the limit"):
        feed(FrameReader(), frame(more))


def test_encoding_an_append_copies_no_array() -> None:
    one, other = push([1.0, 2.0], [7]), push([3.0], [8, 9])
    _, *buffers = frames.encode(append(one, other))
    arrays = [one.keys, other.keys, one.values, other.values]
    assert len(buffers) == len(arrays)
    for buffer, array in zip(buffers, arrays, strict=True):
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


def test_received_entries_are_slices_of_one_array() -> None:
    (got,) = feed(FrameReader(), frame(append(push([1.0, 2.0], [7]), push([3.0], [8, 9]))))
    assert isinstance(got, Append)
    one, other = (entry.command for entry in got.parts[0].entries)
    assert one.keys.base is other.keys.base is not None
    assert one.values.base is other.values.base is not None


def test_entries_with_values_of_several_dtypes_cannot_travel_together() -> None:
    with pytest.raises(BadInput, match="float64, int64 cannot travel: convert all"):
        encode(append(push([1.0]), push([1])))
    with pytest.raises(BadInput, match="float16 cannot travel"):
        encode(append(push(np.zeros(0, np.float16))))


def test_an_entry_without_values_keeps_its_dtype_beside_entries_of_another() -> None:
    message = append(push(np.zeros(0, np.int64)), push([1.0]), push(np.zeros(0, np.float32)))
    (got,) = feed(FrameReader(), frame(message))
    assert_same(got, message)


def test_a_client_cannot_ask_for_an_entry_that_is_in_logs_only() -> None:
    with pytest.raises(WireError, match="frame kind 13 is unknown"):
        feed(FrameReader(), frame(Request(Kind.EPOCH, 1, (Part(0),))))


def entry_lie(**fields: int) -> bytes:
    """A well-formed frame with one entry of 2 keys and 3 float64 values, but for `fields`."""
    meta = bytearray(frames.encode(append(push([1.0, 2.0, 3.0], [1, 2])))[0][HEAD_BYTES:])
    at = APPEND_BYTES + APPEND_PART_BYTES
    values = _ENTRY.unpack_from(meta, at)
    names = {"kind": 0, "dtype": 2, "text": -3, "keys": -2, "values": -1}
    lie = list(values)
    for name, value in fields.items():
        lie[names[name]] = value
    _ENTRY.pack_into(meta, at, *lie)
    return sent_raw(APPEND_KIND, bytes(meta), dtype=2, keys=2, values=bytes(24))


def test_the_frame_that_the_lies_are_made_of_is_good() -> None:
    (got,) = feed(FrameReader(), entry_lie())
    assert isinstance(got, Append)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (entry_lie(kind=Kind.PULL), "an entry of kind 9 is unknown"),
        (entry_lie(kind=99), "an entry of kind 99 is unknown"),
        (entry_lie(dtype=0), "dtype code 0 of an entry"),
        (entry_lie(dtype=4), "dtype code 4 of an entry"),
        (entry_lie(dtype=1), "dtype code 1 are not in this frame"),
        (entry_lie(text=1), "their texts take"),
        (entry_lie(text=2**32 - 1), "their texts take"),
        (entry_lie(keys=1), "1 keys and 3 values do not add up"),
        (entry_lie(keys=2**32 - 1), "keys and 3 values do not add up"),
        (entry_lie(values=2), "2 keys and 2 values do not add up"),
        (entry_lie(values=2**64 - 1), "do not add up"),
        (sent_raw(APPEND_KIND, struct.pack("<II", 2**32 - 1, 0)), "do not fit into 8 bytes"),
        (sent_raw(APPEND_KIND, struct.pack("<II", 0, 2**32 - 1)), "do not fit into 8 bytes"),
        (sent_raw(APPEND_KIND, struct.pack("<II", 0, 0) + b"x"), "their texts take"),
        (sent_raw(APPEND_KIND, b"abc"), "malformed"),
        (sent_raw(APPENDED_KIND, struct.pack("<I", 2)), "2 parts are not 4 bytes"),
        (sent_raw(APPENDED_KIND, struct.pack("<IIQQQBQ", 1, *[0] * 4, 9, 0)), "answer 9 of"),
        (sent_raw(COPY_KIND, struct.pack("<IQQQQQBIQ", *[0] * 6, 9, 0, 0)), "holds 9 is unknown"),
        (sent_raw(COPY_KIND, b"abc"), "malformed"),
        (sent_raw(COPY_KIND, bytes(57), dtype=4), "in place of arrays"),
        (sent_raw(COPY_KIND, bytes(58), dtype=4, values=b"x"), "in place of arrays"),
        (sent_raw(COPY_KIND, bytes(57), dtype=4, keys=1, values=b"x"), "in place of arrays"),
        (sent_raw(APPEND_KIND, bytes(8), dtype=4, values=b"x"), "dtype code 4 is none"),
    ],
)
def test_lies_about_what_a_frame_holds_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        feed(FrameReader(), data)


@given(
    st.one_of(appends(), copies()),
    st.lists(st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=8)), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_an_overwritten_meta_gives_an_error_or_a_message(
    message: Message, writes: list[tuple[int, bytes]]
) -> None:
    """Heads stay whole, so that what is written reaches the parts and the entries."""
    data = bytearray(frame(message))
    end = HEAD_BYTES + int.from_bytes(data[8:12], "little")
    for where, what in writes:
        at = HEAD_BYTES + where % (end - HEAD_BYTES)
        data[at : min(at + len(what), end)] = what[: end - at]
    with contextlib.suppress(WireError):
        (got,) = feed(FrameReader(), bytes(data))
        assert type(got) is type(message)
        assert len(frame(got)) == len(data)


def test_a_long_text_of_a_copy_travels_in_place_of_arrays() -> None:
    text = bytes(range(256)) * 4000
    head = Copy(3, EPOCH, 1, 9, 0, Copied.HEAD, text=text)
    (got,) = feed(FrameReader(), frame(head))
    assert_same(got, head)
    with pytest.raises(BadInput, match=f"at most {LONG_TEXT_BYTES} can travel together"):
        encode(Copy(3, EPOCH, 1, 9, 0, Copied.HEAD, text=text, keys=np.zeros(1, np.uint64)))


@pytest.mark.parametrize("text", [b"", b"x" * LONG_TEXT_BYTES])
def test_a_short_text_of_a_copy_travels_beside_arrays(text: bytes) -> None:
    keys, values = np.arange(3, dtype=np.uint64), np.arange(6, dtype=np.float32)
    piece = Copy(3, EPOCH, 1, 9, 7, Copied.ROWS, 2, 0, text, keys, values)
    _, key_buffer, value_buffer = encode(piece)
    assert np.shares_memory(np.frombuffer(value_buffer, np.float32), values)
    assert np.shares_memory(np.frombuffer(key_buffer, np.uint64), keys)
    (got,) = feed(FrameReader(), frame(piece))
    assert_same(got, piece)

"""The native codec against the Python one: the same bytes, the same messages, the same refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_messages import APPENDED, answers, appends, assert_same, requests

from resilient_ps import frames, quick_frames, wire
from resilient_ps.engine import native
from resilient_ps.framing import HEAD
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    AppendPart,
    Command,
    Entry,
    Kind,
    Part,
    PartAnswer,
    Request,
    Status,
)
from resilient_ps.wire import FrameReader, WireError

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)


appended = st.builds(Appended, st.lists(APPENDED, max_size=4).map(tuple))


def joined(buffers: list[Any] | None) -> bytes:
    assert buffers is not None
    return b"".join(bytes(buffer) for buffer in buffers)


def slow_reader() -> FrameReader:
    reader = FrameReader()
    reader._quick = False
    return reader


def outcome(reader: FrameReader, data: bytes, most: Iterable[int] = ()) -> list[Any] | str:
    """What a reader makes of the data, in pieces of at most so many bytes."""
    messages: list[Any] = []
    pieces = iter(most)
    try:
        while data:
            buffer = reader.get_buffer()
            count = min(len(data), len(buffer), next(pieces, 1 << 30))
            buffer[:count] = data[:count]
            messages += reader.received(count)
            data = data[count:]
    except WireError as error:
        return str(error)
    return messages


def test_the_native_codec_knows_the_present_frames() -> None:
    """When this fails, fields were changed: native/codec.cpp and quick_frames.py must follow."""
    assert quick_frames.is_known()
    assert quick_frames.IN_USE


@given(requests() | answers())
@settings(deadline=None)
def test_both_write_the_same_bytes(message: Request | Answer) -> None:
    quick = (
        quick_frames.encode_request(message)
        if isinstance(message, Request)
        else quick_frames.encode_answer(message)
    )
    assert joined(quick) == joined(frames.encode(message))


@given(appends() | appended)
@settings(deadline=None)
def test_both_write_and_read_the_same_frames_of_logs(message: Append | Appended) -> None:
    slow = joined(frames.encode(message))
    quick = (
        quick_frames.encode_append(message)
        if isinstance(message, Append)
        else quick_frames.encode_appended(message)
    )
    assert joined(quick) == slow
    data = np.frombuffer(slow, np.uint8)
    scratch = np.concatenate([np.zeros(5, np.uint8), data, np.ones(9, np.uint8)]).data
    limit = 1 << 20
    taken = quick_frames.take_log(scratch, 5, 5 + data.size, limit, limit)
    assert taken is not None
    assert taken[1] == 5 + data.size
    assert_same(taken[0], message)
    for short in (0, 31, data.size - 1):
        assert quick_frames.take_log(scratch, 5, 5 + short, limit, limit) is None


@given(appends() | appended, st.integers(0, 400), st.integers(0, 255))
@settings(deadline=None)
def test_damaged_frames_of_logs_are_read_or_refused_as_the_slow_way_does(
    message: Append | Appended, place: int, value: int
) -> None:
    data = bytearray(joined(frames.encode(message)))
    data[place % len(data)] = value
    quick, slow = outcome(FrameReader(), bytes(data)), outcome(slow_reader(), bytes(data))
    if isinstance(quick, str) or isinstance(slow, str):
        assert quick == slow
    else:
        assert len(quick) == len(slow)
        for ours, theirs in zip(quick, slow, strict=True):
            assert joined(frames.encode(ours)) == joined(frames.encode(theirs))


def test_much_and_mixed_is_left() -> None:
    at = Position(Epoch(1, 1), 1)
    small = Command(Kind.PUSH, values=np.ones(2, np.float32))
    large = Command(Kind.PUSH, values=np.ones(20_000, np.float32))
    other = Command(Kind.PUSH, values=np.ones(2, np.float64))
    half = Command(Kind.PUSH, values=np.ones(2, np.float16))
    for commands in ([large], [small, other], [half], [small] * 257):
        part = AppendPart(0, Epoch(1, 1), 1, at, 0, tuple(Entry(at, one) for one in commands))
        assert quick_frames.encode_append(Append((part,))) is None


@given(requests() | answers())
@settings(deadline=None)
def test_both_read_the_same_message(message: Request | Answer) -> None:
    data = np.frombuffer(joined(frames.encode(message)), np.uint8)
    scratch = np.concatenate([np.zeros(5, np.uint8), data, np.ones(9, np.uint8)]).data
    limit = 1 << 20
    taken = quick_frames.take(scratch, 5, 5 + data.size, limit, limit, wire.place_nowhere)
    assert taken is not None
    assert taken[1] == 5 + data.size
    assert_same(taken[0], message)
    for short in (0, 31, data.size - 1):
        assert quick_frames.take(scratch, 5, 5 + short, limit, limit, wire.place_nowhere) is None


def test_a_spoilt_pull_that_is_there_as_a_whole_is_refused_at_once() -> None:
    """Nobody waits for more of it."""
    parts_at = HEAD.size + 57
    pull = Request(Kind.PULL, 1, (Part(0, count=1),), keys=np.ones(1, np.uint64))
    spoilt = bytearray(joined(frames.encode(pull)))
    assert spoilt[parts_at] == 1
    spoilt[parts_at] = 0
    refused = outcome(FrameReader(), bytes(spoilt))
    assert isinstance(refused, str)
    assert "malformed" in refused
    assert refused == outcome(slow_reader(), bytes(spoilt))


@given(requests() | answers(), st.data())
@settings(deadline=None, max_examples=100)
def test_both_judge_a_spoilt_frame_alike(message: Request | Answer, data: Any) -> None:
    spoilt = bytearray(joined(frames.encode(message)))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    quick, slow = outcome(FrameReader(), bytes(spoilt)), outcome(slow_reader(), bytes(spoilt))
    if isinstance(quick, str) or isinstance(slow, str):
        assert quick == slow
        return
    assert len(quick) == len(slow)
    for one, other in zip(quick, slow, strict=True):
        assert_same(one, other)


@given(st.lists(requests() | answers(), max_size=3), st.data())
@settings(deadline=None)
def test_both_read_the_same_messages_in_pieces(messages: list[Any], data: Any) -> None:
    stream = bytearray(b"".join(joined(frames.encode(message)) for message in messages))
    if stream and data.draw(st.integers(0, 3)) == 0:
        stream[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    most = data.draw(st.lists(st.integers(1, 200), max_size=40))
    quick = outcome(FrameReader(), bytes(stream), most)
    slow = outcome(slow_reader(), bytes(stream), most)
    if isinstance(quick, str) or isinstance(slow, str):
        assert quick == slow
        return
    assert len(quick) == len(slow)
    for one, other in zip(quick, slow, strict=True):
        assert_same(one, other)


def test_a_request_begins_when_its_meta_is_there() -> None:
    keys, values = np.arange(2, dtype=np.uint64), np.arange(6, dtype=np.float32)
    request = Request(Kind.PUSH, 4, (Part(0, count=2, elements=6),), keys=keys, values=(values,))
    whole = joined(frames.encode(request))
    arrays_at = len(whole) - keys.nbytes - values.nbytes
    scratch = np.frombuffer(whole, np.uint8).data
    assert quick_frames.begin(scratch, 0, arrays_at - 1, 9999, 9999) is None
    assert quick_frames.begin(scratch, 0, arrays_at, 9999, 39) is None  # over the limit
    begun = quick_frames.begin(scratch, 0, arrays_at, 9999, 9999)
    assert begun is not None
    message, at, nbytes, arrays = begun
    assert (at, nbytes) == (arrays_at, keys.nbytes + values.nbytes)
    for array, content in zip(arrays, (keys, values), strict=True):
        array[:] = content
    assert_same(message, request)


@pytest.mark.parametrize(
    "message",
    [
        Request(Kind.PUSH, -1, ()),
        Request(Kind.PUSH, 1 << 64, ()),
        Request(Kind.PUSH, 1, (Part(1 << 32),)),
        Request(Kind.PUSH, 1, (), text="text"),  # type: ignore[arg-type]
        Request(Kind.PUSH, 1, (), keys=np.zeros(2, np.int64)),  # type: ignore[arg-type]
        Request(Kind.PUSH, 1, (), values=(np.zeros(2, np.int8),)),
        Request(Kind.PUSH, 1, (), values=(np.zeros(2), np.zeros(2, np.float32))),
        Answer(1, (PartAnswer(0, 300),)),  # type: ignore[arg-type]
        Answer(1, (), (np.zeros(2, np.dtype(">f8")),)),
    ],
)
def test_what_it_cannot_write_it_leaves(message: Any) -> None:
    assert quick_frames.encode_request(message) is None
    assert quick_frames.encode_answer(message) is None


def test_large_arrays_are_referenced_and_small_ones_copied() -> None:
    for elements, buffers_n in ((1 << 10, 1), (1 << 20, 3)):
        keys, values = np.arange(4, dtype=np.uint64), np.zeros(elements)
        parts = (Part(0, count=4, elements=elements),)
        request = Request(Kind.PUSH, 1, parts, keys=keys, values=(values,))
        buffers = quick_frames.encode_request(request)
        assert buffers is not None
        assert len(buffers) == buffers_n
        assert joined(buffers) == joined(frames.encode(request))
    assert buffers is not None
    assert np.shares_memory(np.frombuffer(buffers[2], np.float64), values)


def test_a_place_that_does_not_fit_is_left_to_the_reader() -> None:
    answer = Answer(5, (PartAnswer(0, Status.OK, elements=3),), (np.zeros(3, np.float32),))
    data = joined(frames.encode(answer))
    scratch = np.frombuffer(data, np.uint8).data
    for views in ([memoryview(bytearray(8))], [memoryview(bytes(12))], [bytearray(12)], ()):
        assert quick_frames.take(scratch, 0, len(data), 999, 999, lambda *_, v=views: v) is None
    out = bytearray(b"x" * 12)
    taken = quick_frames.take(scratch, 0, len(data), 999, 999, lambda *_: [memoryview(out)])
    assert taken is not None
    assert taken[0].placed  # type: ignore[union-attr]
    assert out == bytes(12)

"""Frames: what goes in comes out, whatever the pieces; what is not ours is refused."""

from __future__ import annotations

import contextlib
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_messages import MESSAGES, U32, answers, assert_same, feed, frame

from resilient_ps.errors import BadInput
from resilient_ps.frames import _HELLO
from resilient_ps.framing import HEAD
from resilient_ps.messages import (
    Answer,
    Ask,
    Hello,
    Kind,
    Message,
    Part,
    PartAnswer,
    Refuse,
    Request,
    Status,
)
from resilient_ps.wire import (
    GREETING,
    HEAD_BYTES,
    MAGIC,
    PEEK_BYTES,
    SCRATCH_BYTES,
    VERSION,
    FrameLimits,
    FrameReader,
    Place,
    WireError,
    encode,
    place_nowhere,
)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.lists(st.integers(1, 300), min_size=1))
@settings(max_examples=80, deadline=None)
def test_messages_survive_any_chunking(sent: list[Message], chunks: list[int]) -> None:
    data = b"".join(frame(message) for message in sent)
    for got in (feed(FrameReader(), data, chunks), feed(FrameReader(), data)):
        assert len(got) == len(sent)
        for one, other in zip(got, sent, strict=True):
            assert_same(one, other)


@given(st.binary(max_size=400), st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_random_bytes_give_an_error_or_nothing(data: bytes, chunk: int) -> None:
    for start in (b"", MAGIC, MAGIC + bytes([VERSION])):
        with contextlib.suppress(WireError):
            feed(FrameReader(), start + data, [chunk])


@given(MESSAGES, st.lists(st.tuples(U32, st.integers(0, 7)), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_flipped_bits_give_an_error_or_a_message(
    message: Message, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(frame(message))
    for where, bit in flips:
        data[where % len(data)] ^= 1 << bit
    limits = FrameLimits(payload_bytes=1 << 20)
    with contextlib.suppress(WireError):
        got = feed(FrameReader(limits), bytes(data) + frame(Refuse("next")))
        assert all(isinstance(one, Message) for one in got)


@given(MESSAGES, U32)
@settings(max_examples=50, deadline=None)
def test_a_truncated_frame_is_no_message(message: Message, cut: int) -> None:
    data = frame(message)
    assert feed(FrameReader(), data[: cut % len(data)]) == []


@given(answers(), st.binary(min_size=1, max_size=80))
@settings(max_examples=50, deadline=None)
def test_an_answer_is_checked_before_a_place_sees_it(answer: Answer, junk: bytes) -> None:
    asked: list[int] = []
    reader = FrameReader(place=lambda request, parts: asked.append(request))
    good = encode(answer)
    meta = bytes(good[0])[HEAD_BYTES:] + junk
    fields = list(HEAD.unpack_from(good[0]))
    fields[5] = len(meta)
    with pytest.raises(WireError):
        feed(reader, HEAD.pack(*fields) + meta + b"".join(bytes(b) for b in good[1:]))
    assert asked == []


def head(
    kind: int = Kind.PUSH, dtype: int = 1, meta: int = 0, keys: int = 0, size: int = 0
) -> bytes:
    return HEAD.pack(MAGIC, VERSION, kind, dtype, 0, meta, keys, size, 7)


@pytest.mark.parametrize(
    "claim",
    [
        head(size=2**60),
        head(keys=2**32 - 1),
        head(keys=2**32 - 1, size=2**64 - 1),
        head(meta=2**32 - 1),
        head(meta=SCRATCH_BYTES),
        head(size=(64 << 20) + 4),
    ],
)
def test_a_head_that_claims_too_much_is_refused_before_anything_is_allocated(claim: bytes) -> None:
    reader = FrameReader()
    tracemalloc.start()
    with pytest.raises(WireError, match="over the limit"):
        feed(reader, claim)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024


def test_a_large_frame_within_the_limits_is_received() -> None:
    """The negative control of the test above: the limit, and not something else, refuses."""
    keys = np.arange(1 << 16, dtype=np.uint64)
    push = Request(Kind.PUSH, 1, (Part(0, count=len(keys), elements=0),), keys=keys)
    (got,) = feed(FrameReader(), frame(push))
    assert_same(got, push)
    with pytest.raises(WireError, match="over the limit"):
        feed(FrameReader(FrameLimits(payload_bytes=keys.nbytes - 1)), frame(push))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pickle.dumps({"a": np.arange(3)}), "not the resilient-ps protocol"),
        (b"GET / HTTP/1.0\r\n\r\n", "b'GET '.*check the address and the port"),
        (b"\x16\x03\x01\x02\x00", "not the resilient-ps protocol"),
        (b"SSH", "not the resilient-ps protocol"),
        (HEAD.pack(MAGIC, 9, 7, 0, 0, 0, 0, 0, 0), "frame version 9.*upgrade"),
        (head(dtype=200, size=8), "dtype code 200"),
        (head(dtype=0, size=8), "do not fit dtype code 0"),
        (head(dtype=1, size=7), "do not fit dtype code 1"),
        (head(kind=0), "frame kind 0 is unknown"),
        (head(kind=99, size=8), "frame kind 99 is unknown"),
        (head(kind=67, size=8), "frame kind 67 is unknown, or may not carry"),
        (head(kind=65, dtype=0, meta=28) + _HELLO.pack(1, 0, 0, 3, 2), "names of 3 and 2 bytes"),
        (
            head(kind=65, dtype=0, meta=29) + _HELLO.pack(1, 0, 0, 1, 0) + b"\xff",
            "malformed.*utf-8",
        ),
        (head(dtype=0, meta=3) + b"abc", "kind 7 is malformed"),
        (head(kind=64, dtype=0, meta=4, keys=1) + bytes(12), "an answer with 1 keys"),
    ],
)
def test_what_is_not_ours_is_refused_with_a_reason(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        feed(FrameReader(), data)


@pytest.mark.parametrize(
    "values",
    [
        (np.array([{}, []], dtype=object),),
        (np.zeros(2, np.float16),),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.zeros(2, ">f4"),),
    ],
)
def test_a_dtype_that_is_not_on_the_list_cannot_be_sent(values: Any) -> None:
    with pytest.raises(BadInput, match="cannot travel: convert"):
        encode(Request(Kind.PUSH, 1, (Part(0, elements=2),), values=values))


def test_parts_that_do_not_add_up_are_refused() -> None:
    keys, values = np.arange(3, dtype=np.uint64), np.zeros(6, np.float32)
    with pytest.raises(WireError, match="keys do not add up to"):
        feed(FrameReader(), frame(Request(Kind.PUSH, 1, (Part(0, count=2),), keys=keys)))
    with pytest.raises(WireError, match="values do not add up"):
        feed(FrameReader(), frame(Answer(1, (PartAnswer(0, Status.OK),), (values,))))


def test_encoding_copies_no_large_array() -> None:
    keys, values = np.arange(4, dtype=np.uint64), np.zeros(1 << 20, np.float32)
    parts = (Part(0, count=4, elements=values.size),)
    push = Request(Kind.PUSH, 1, parts, keys=keys, values=(values,))
    _, key_buffer, value_buffer = encode(push)
    assert np.shares_memory(np.frombuffer(key_buffer, np.uint64), keys)
    assert np.shares_memory(np.frombuffer(value_buffer, np.float32), values)


def test_a_large_array_is_received_in_its_own_memory() -> None:
    """What does not fit the first read goes through no buffer of the reader."""
    values = np.arange(1 << 20, dtype=np.float64)
    data = frame(Request(Kind.PUSH, 1, (Part(0, elements=len(values)),), values=(values,)))
    reader = FrameReader()
    reader.get_buffer()[:1000] = data[:1000]
    assert reader.received(1000) == []
    target = reader.get_buffer()
    assert target.nbytes == len(data) - 1000
    target[:] = data[1000:]
    (got,) = reader.received(target.nbytes)
    assert reader.get_buffer().nbytes == PEEK_BYTES  # so that the next one is, too
    assert isinstance(got, Request)
    assert np.shares_memory(got.values[0], np.frombuffer(target, np.uint8))
    np.testing.assert_array_equal(got.values[0], values)


@given(st.lists(st.integers(1, 300_000), max_size=6))
@settings(max_examples=40, deadline=None)
def test_all_arrays_of_a_frame_can_be_received_at_once(counts: list[int]) -> None:
    keys, values = np.arange(9_000, dtype=np.uint64), np.arange(70_000, dtype=np.float32)
    parts = (Part(0, count=keys.size, elements=values.size),)
    push = Request(Kind.PUSH, 1, parts, keys=keys, values=(values,))
    data, at = memoryview(frame(push)), PEEK_BYTES
    reader = FrameReader()
    reader.get_buffer()[:at] = data[:at]
    assert reader.received(at) == []
    for count in [*counts, len(data)]:
        views = reader.get_targets()
        assert sum(view.nbytes for view in views) == len(data) - at
        stop = min(at + count, len(data))
        fill(views, data[at:stop])
        got, at = reader.received(stop - at), stop
        if got:
            break
    assert at == len(data)
    (message,) = got
    assert_same(message, push)
    assert not reader.filling


def fill(views: list[memoryview], data: memoryview) -> None:
    """As `os.readv` does it: one view after the other."""
    for view in views:
        count = min(view.nbytes, data.nbytes)
        view[:count] = data[:count]
        data = data[count:]


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6), st.lists(st.integers(1, 999), min_size=1)
)
@settings(deadline=None)
def test_a_place_receives_the_values_in_several_pieces(sizes: list[int], chunks: list[int]) -> None:
    elements = sum(sizes)
    values = np.arange(elements, dtype=np.float32)
    parts = tuple(PartAnswer(i, Status.OK, elements=size) for i, size in enumerate(sizes))
    out = [np.full(size, -1, np.float32) for size in sizes]
    asked: list[tuple[int, int]] = []

    def place(request: int, got: tuple[PartAnswer, ...]) -> list[memoryview]:
        asked.append((request, len(got)))
        return [piece.data.cast("B") for piece in out if piece.size]

    (got,) = feed(FrameReader(place=place), frame(Answer(5, parts, (values,))), chunks)
    assert isinstance(got, Answer)
    assert got.values == ()
    assert got.placed is bool(elements)
    assert asked == ([(5, len(sizes))] if elements else [])
    assert np.concatenate(out).tobytes() == values.tobytes()


@pytest.mark.parametrize("offered", [0, 8, 16])
def test_an_answer_of_another_size_than_the_place_is_refused(offered: int) -> None:
    """A server that answers something else must not write past the caller's array."""
    answer = Answer(5, (PartAnswer(0, Status.OK, elements=3),), (np.zeros(3, np.float32),))
    reader = FrameReader(place=lambda request, parts: [memoryview(bytearray(offered))])
    with pytest.raises(WireError, match="12 bytes does not fit what was asked for"):
        feed(reader, frame(answer))


@pytest.mark.parametrize("place", [place_nowhere, lambda request, parts: None])
def test_without_a_place_the_values_get_an_array(place: Place) -> None:
    answer = Answer(5, (PartAnswer(0, Status.OK, elements=3),), (np.arange(3.0),))
    (got,) = feed(FrameReader(place=place), frame(answer))
    assert_same(got, answer)


def test_the_first_frame_is_held_to_the_limits_of_a_greeting() -> None:
    hello, ask = Hello(1, "c", "w"), Ask(1, "s" * GREETING.meta_bytes * 2)
    push = Request(Kind.PUSH, 1, (Part(0, elements=1),), values=(np.zeros(1),))
    for first in (ask, push):
        with pytest.raises(WireError, match="over the limit"):
            feed(FrameReader(greeting=GREETING), frame(first))
    data = frame(hello) + frame(ask) + frame(push)
    assert len(feed(FrameReader(greeting=GREETING), data)) == 3


def test_limits_that_the_receive_buffer_cannot_hold_are_refused() -> None:
    with pytest.raises(BadInput, match="must fit into"):
        FrameLimits(meta_bytes=SCRATCH_BYTES)


def test_frames_that_straddle_the_receive_buffer_are_received() -> None:
    """Many frames, read in the largest possible pieces: the buffer is compacted between them."""
    asks = [Ask(i, "x" * (997 + i)) for i in range(1000)]
    got = feed(FrameReader(), b"".join(frame(ask) for ask in asks))
    assert got == asks

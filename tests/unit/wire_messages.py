"""Messages of all kinds for tests of the wire, and how they are fed to a reader and compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Ask,
    Command,
    Copied,
    Copy,
    Entry,
    Held,
    Hello,
    Kind,
    Message,
    Part,
    PartAnswer,
    Refuse,
    Request,
    Status,
    Told,
    Welcome,
)
from resilient_ps.wire import FrameReader, encode

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64])
TEXT = st.binary(max_size=40)
NAME = st.text(max_size=20)
EPOCH = st.builds(Epoch, U64, U64)
POSITION = st.builds(Position, EPOCH, U64)
REQUEST_KINDS = [kind for kind in Kind if kind is not Kind.EPOCH]
COMMAND_KINDS = [kind for kind in Kind if kind is not Kind.PULL]
SHARES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5)


@st.composite
def requests(draw: Any) -> Request:
    shares = draw(SHARES)
    parts = tuple(
        Part(draw(U32), draw(POSITION), draw(U32), count, elements) for count, elements in shares
    )
    keys = np.arange(sum(count for count, _ in shares), dtype=np.uint64) * draw(U32)
    return Request(
        draw(st.sampled_from(REQUEST_KINDS)),
        draw(U64),
        parts,
        draw(U64),
        WorkerId(draw(U32), draw(U32), draw(U64)),
        draw(U64),
        draw(U32),
        draw(U32),
        draw(U64),
        draw(st.floats(allow_nan=False)),
        draw(st.booleans()),
        draw(TEXT),
        keys,
        draw(pieces(sum(elements for _, elements in shares))),
    )


@st.composite
def answers(draw: Any) -> Answer:
    elements = draw(st.lists(st.integers(0, 30), max_size=5))
    parts = tuple(
        PartAnswer(
            draw(U32),
            draw(st.sampled_from(Status)),
            draw(POSITION),
            draw(U64),
            draw(U32),
            n,
            draw(TEXT),
        )
        for n in elements
    )
    return Answer(draw(U64), parts, draw(pieces(sum(elements))))


@st.composite
def pieces(draw: Any, elements: int) -> tuple[np.ndarray[Any, Any], ...]:
    """`elements` values, cut into up to three pieces (some of them empty)."""
    if not elements:
        return ()
    values = np.arange(elements).astype(draw(DTYPES))
    cuts = sorted(draw(st.lists(st.integers(0, elements), max_size=2)))
    return tuple(np.split(values, cuts))


@st.composite
def appends(draw: Any) -> Append:
    """Entries with values of one dtype, and of any where they have none."""
    dtype = draw(DTYPES)
    shapes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=4)
    parts = []
    for shard in range(draw(st.integers(0, 3))):
        entries = tuple(
            Entry(draw(POSITION), draw(commands(keys, elements, dtype)))
            for keys, elements in draw(shapes)
        )
        parts.append(AppendPart(shard, draw(EPOCH), draw(U64), draw(POSITION), draw(U64), entries))
    return Append(tuple(parts))


@st.composite
def commands(draw: Any, keys: int, elements: int, dtype: Any) -> Command:
    return Command(
        draw(st.sampled_from(COMMAND_KINDS)),
        WorkerId(draw(U32), draw(U32), draw(U64)),
        draw(U64),
        draw(U32),
        draw(U32),
        draw(U32),
        draw(st.floats(allow_nan=False)),
        draw(st.booleans()),
        draw(TEXT),
        np.arange(keys, dtype=np.uint64) * draw(U32),
        (np.arange(elements) * draw(U32)).astype(dtype if elements else draw(DTYPES)),
    )


@st.composite
def copies(draw: Any) -> Copy:
    keys, elements = draw(st.integers(0, 9)), draw(st.integers(0, 40))
    text = draw(TEXT) if keys or elements else draw(TEXT) * draw(st.sampled_from([1, 2000]))
    return Copy(
        draw(U32),
        draw(EPOCH),
        draw(U64),
        draw(U64),
        draw(U64),
        draw(st.sampled_from(Copied)),
        draw(U32),
        draw(U64),
        text,
        np.arange(keys, dtype=np.uint64),
        np.arange(elements).astype(draw(DTYPES)),
    )


APPENDED = st.builds(AppendedPart, U32, EPOCH, U64, st.sampled_from(Held), U64)
MESSAGES = st.one_of(
    requests(),
    answers(),
    appends(),
    copies(),
    st.builds(Appended, st.lists(APPENDED, max_size=4).map(tuple)),
    st.builds(Hello, U32, NAME, NAME, NAME, U64, U64),
    st.builds(Welcome, NAME, U64, U64, U64),
    st.builds(Refuse, NAME),
    st.builds(Ask, U64, NAME),
    st.builds(Told, U64, NAME),
)


def frame(message: Message) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(message))


def feed(reader: FrameReader, data: bytes, chunks: list[int] | None = None) -> list[Message]:
    """Give `data` to the reader in the given chunk sizes (repeated), or as large as it takes."""
    messages: list[Message] = []
    at, turn = 0, 0
    while at < len(data):
        buffer = reader.get_buffer()
        assert buffer.nbytes > 0
        wanted = chunks[turn % len(chunks)] if chunks else len(data)
        count = min(buffer.nbytes, wanted, len(data) - at)
        buffer[:count] = data[at : at + count]
        messages += reader.received(count)
        at, turn = at + count, turn + 1
    return messages


def assert_same(got: Any, sent: Any) -> None:
    """Equal in all depths: arrays by dtype and bytes, pieces of `values` joined."""
    assert type(got) is type(sent)
    if isinstance(sent, np.ndarray):
        assert got.dtype == sent.dtype
        assert got.tobytes() == sent.tobytes()
    elif isinstance(sent, tuple):
        if any(isinstance(one, np.ndarray) for one in (*sent, *got)):
            assert len(got) <= 1
            got, sent = [(np.concatenate(one),) if one else (np.empty(0),) for one in (got, sent)]
        assert len(got) == len(sent)
        for one, other in zip(got, sent, strict=True):
            assert_same(one, other)
    elif hasattr(sent, "__slots__"):
        for name in sent.__slots__:
            assert_same(getattr(got, name), getattr(sent, name))
    else:
        assert got == sent or (got != got and sent != sent)  # or both are no number

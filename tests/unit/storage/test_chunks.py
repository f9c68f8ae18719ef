"""Chunks: decoded as encoded, byte for byte repeatable, small where that pays; fuzzed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from resilient_ps.errors import BadInput
from resilient_ps.storage import chunks
from resilient_ps.storage.chunks import Chunk, ObjectBody, decode, encode, xxh128_of
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.shard_index import ChunkKey

NO_KEYS = np.empty(0, np.uint64)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64])


def joined(chunk: Chunk) -> bytes:
    return b"".join(encode(chunk))


def rows_of(keys: Any, content: Any, kind: Any = "rows", at: int = 0) -> Chunk:
    keys = np.asarray(keys, np.uint64)
    columns = content.size // len(keys)
    return Chunk(3, kind, at, at + len(keys), columns, keys, content.reshape(-1))


def assert_same(one: Chunk, other: Chunk) -> None:
    for name in ("table", "kind", "at", "end", "columns"):
        assert getattr(one, name) == getattr(other, name)
    assert one.keys.dtype == other.keys.dtype == np.uint64
    assert one.content.dtype == other.content.dtype
    assert one.keys.tobytes() == other.keys.tobytes()
    assert one.content.tobytes() == other.content.tobytes()  # NaNs and signs of zeros too


@st.composite
def any_chunks(draw: Any) -> Chunk:
    dtype, rows, at = draw(DTYPES), draw(st.integers(1, 40)), draw(st.integers(0, 2**40))
    columns = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["rows", "delta", "elements"]))
    if kind == "elements":
        size = draw(st.integers(rows, rows * columns))
        content = draw(nps.arrays(dtype, size))
        return Chunk(
            draw(st.integers(1, 2**32 - 1)), kind, at, at + rows, columns, NO_KEYS, content
        )
    keys = draw(nps.arrays(np.uint64, rows))
    content = draw(nps.arrays(dtype, rows * columns))
    return Chunk(1, kind, at, at + rows, columns, keys, content)


@given(any_chunks())
def test_a_chunk_is_decoded_as_it_was_encoded(chunk: Chunk) -> None:
    assert_same(decode(joined(chunk), "n"), chunk)


@given(any_chunks(), st.integers(0, 7))
def test_keys_are_aligned_wherever_the_chunk_stands_in_an_object(chunk: Chunk, shift: int) -> None:
    held = bytes(shift) + joined(chunk)
    decoded = decode(memoryview(held)[shift:], "n")
    assert_same(decoded, chunk)
    assert decoded.keys.flags.aligned


@given(any_chunks())
def test_equal_content_gives_equal_bytes(chunk: Chunk) -> None:
    copy = Chunk(
        chunk.table, chunk.kind, chunk.at, chunk.end, chunk.columns,
        chunk.keys.copy(), np.concatenate([chunk.content, chunk.content])[: chunk.content.size],
    )  # fmt: skip
    assert joined(copy) == joined(chunk)


@given(any_chunks(), st.data())
def test_flipped_bits_end_in_an_error_or_in_a_chunk(chunk: Chunk, data: Any) -> None:
    raw = bytearray(joined(chunk))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(bytes(raw), "n")
        fault = "n: "
    except (Damaged, ForeignFormat) as error:
        fault = str(error)
    assert fault.startswith("n: ")


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_error(data: bytes) -> None:
    with pytest.raises((Damaged, ForeignFormat)):
        decode(data, "n")
    with pytest.raises((Damaged, ForeignFormat)):
        decode(chunks.MAGIC + data, "n")


@given(any_chunks())
def test_a_chunk_that_was_cut_off_is_refused(chunk: Chunk) -> None:
    raw = joined(chunk)
    for length in range(0, len(raw), max(1, len(raw) // 20)):
        with pytest.raises(Damaged):
            decode(raw[:length], "n")
    with pytest.raises(Damaged):
        decode(raw + b"\0", "n")


def _with_head(chunk: Chunk, **changes: int) -> bytes:
    names = ("magic", "version", "kind", "dtype", "table", "columns", "at", "end", "keys",
             "values", "keys_how", "how", "spare", "keys_bytes", "stored_bytes")  # fmt: skip
    raw = joined(chunk)
    head = dict(zip(names, chunks._HEAD.unpack(raw[: chunks.HEAD_BYTES]), strict=True))
    return chunks._HEAD.pack(*{**head, **changes}.values()) + raw[chunks.HEAD_BYTES :]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 3},
        {"dtype": 3},
        {"version": 0},
        {"spare": 1},
        {"table": 0},
        {"columns": 0},
        {"columns": 2**32 - 1},
        {"end": 0},
        {"end": 2**63},
        {"keys": 2**40},
        {"values": 2**50},
        {"keys_how": 9},
        {"how": 9},
        {"keys_bytes": 2**32 - 1},
        {"stored_bytes": 0},
    ],
)
def test_a_head_that_cannot_be_is_refused_before_memory_is_taken(changes: dict[str, int]) -> None:
    with pytest.raises(Damaged):
        decode(_with_head(rows_of([1, 2], np.ones(6)), **changes), "n")


def test_sizes_that_fit_together_but_are_too_large_are_refused() -> None:
    rows, columns = 2**20, 2**10
    head = _with_head(
        rows_of([1, 2], np.ones(6)),
        at=0,
        end=rows,
        keys=rows,
        columns=columns,
        values=rows * columns,
        how=1,
        keys_how=1,
    )
    with pytest.raises(Damaged, match="more than"):
        decode(head, "n")


def test_a_section_that_unpacks_to_another_length_is_refused() -> None:
    chunk = rows_of(np.arange(1000), np.zeros(5000))
    with pytest.raises(Damaged):
        decode(_with_head(chunk, columns=4, values=4000), "n")


def test_a_newer_chunk_is_refused_with_what_to_do() -> None:
    with pytest.raises(ForeignFormat, match=r"format 2\), this one reads up to 1: upgrade"):
        decode(_with_head(rows_of([1], np.ones(1)), version=2), "n")


@pytest.mark.parametrize(
    "chunk",
    [
        rows_of([1], np.ones(1, np.float16)),
        rows_of([1], np.array([None])),
        Chunk(1, "rows", 0, 1, 1, np.ones(1, np.int64), np.ones(1)),  # type: ignore[arg-type]
        Chunk(1, "rows", 0, 2, 1, np.ones(1, np.uint64), np.ones(1)),
        Chunk(1, "elements", 0, 2, 1, NO_KEYS, np.ones(1)),
        Chunk(1, "elements", 0, 2**22, 1, NO_KEYS, np.ones(2**22)),
    ],
)
def test_what_could_not_be_read_is_not_written(chunk: Chunk) -> None:
    with pytest.raises(BadInput):
        encode(chunk)


def _share(chunk: Chunk) -> float:
    return len(joined(chunk)) / chunks.raw_bytes_of(chunk)


def test_what_shrinks_is_stored_small_and_what_does_not_as_it_is() -> None:
    draw = np.random.default_rng(1)
    n, d = 20_000, 16
    keys = draw.permutation(n).astype(np.uint64)
    random_keys = draw.integers(0, 2**63, n).astype(np.uint64)
    full = draw.standard_normal(n * d).astype(np.float32)
    zeros = np.where(np.repeat(draw.random(n) < 0.7, d), np.float32(0), full)
    low = (full.view(np.uint32) & 0xFFFF0000).view(np.float32)
    counts = draw.poisson(30, n * d)
    assert _share(rows_of(random_keys, full)) < 1.001
    assert _share(rows_of(keys, zeros)) < 0.4
    assert _share(rows_of(keys, low)) < 0.5
    assert _share(rows_of(keys, counts)) < 0.2
    raw = joined(rows_of(random_keys, full))
    assert raw[chunks.HEAD_BYTES :] == random_keys.tobytes() + full.tobytes()


KEYS = [0x0123456789ABCDEF, 0xF1E2D3C4B5A69788]


def test_the_layout_of_a_chunk_is_what_it_has_always_been() -> None:
    raw = joined(rows_of(KEYS, np.array([1.5, -2.1], np.float32), "delta", at=5))
    head = struct.pack("<8sHBBIIQQQQBBHII", b"RPSCHUNK", 1, 1, 0, 3, 1, 5, 7, 2, 2, 0, 0, 0, 16, 8)
    assert raw == head + struct.pack("<QQff", *KEYS, 1.5, -2.1)


# -- several in one object


def body(chunks_: list[Chunk], known: dict[ChunkKey, str] | None = None) -> tuple[bytes, Any]:
    pieces, info = ObjectBody(tuple(chunks_), known or {}).encode()
    return b"".join(pieces), info


CHUNKS = [rows_of([i], np.full(3, float(i)), at=i) for i in range(4)]


def test_each_chunk_of_an_object_stands_where_it_was_said() -> None:
    raw, packed = body(CHUNKS)
    assert sum(each.nbytes for each in packed) == len(raw)
    for chunk, each in zip(CHUNKS, packed, strict=True):
        stored = raw[each.offset : each.offset + each.nbytes]
        assert xxh128_of([stored]) == each.xxh128
        assert each.key == (3, "rows", chunk.at, chunk.end)
        assert each.raw_bytes == 8 + 24
        assert_same(decode(stored, "n"), chunk)


def test_chunks_that_the_base_has_are_left_out() -> None:
    _, before = body(CHUNKS)
    known = {each.key: each.xxh128 for each in before}
    changed = [*CHUNKS[:2], rows_of([2], np.full(3, 9.0), at=2), CHUNKS[3]]
    raw, packed = body(changed, known)
    assert [each.offset for each in packed] == [-1, -1, 0, -1]
    assert_same(decode(raw, "n"), changed[2])


def test_equal_content_at_another_place_is_written() -> None:
    _, before = body(CHUNKS[:1])
    moved = Chunk(3, "rows", 1, 2, 3, CHUNKS[0].keys, CHUNKS[0].content)
    assert body([moved], {each.key: each.xxh128 for each in before})[1][0].offset == 0


def test_if_all_chunks_are_there_nothing_is_put() -> None:
    known = {each.key: each.xxh128 for each in body(CHUNKS)[1]}
    pieces, packed = ObjectBody(tuple(CHUNKS), known).encode()
    assert pieces == ()
    assert [each.offset for each in packed] == [-1] * 4

"""Chunks: a run of a table's rows or elements as bytes that say what they are, and back.

A chunk is a head of fixed size and two sections, keys and content, each stored in the way that
makes it small: as it is, compressed with LZ4, or with its bytes transposed first (all first bytes,
then all second ones, ...: "shuffled") and then compressed. Full-precision floats do not shrink
either way and are stored as they are; keys and counts shrink three to eight times when shuffled,
floats of low precision twice. A sample decides, so that the work is done once.

Equal content gives equal bytes (with one version of LZ4): a chunk that has not changed since the
last checkpoint is recognised by its digest. That is XXH3 with 128 bits, which costs nothing beside
the transfer; the SHA-256 of whole objects stand in the manifest. Reading checks every length before
memory is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import lz4.block
import numpy as np
import xxhash
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import Bytes, Encoded
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.requests import size_of
from resilient_ps.storage.shard_index import CHUNK_KINDS, NUMBER_MAX, ChunkKey, ChunkKind

CHUNK_BYTES = 4 << 20  # what a chunk holds, unless one row is longer
RAW_BYTES_MAX = 2 * CHUNK_BYTES
OBJECT_BYTES = 16 << 20  # what is put into one object, before compression
MAGIC = b"RPSCHUNK"
VERSION = 1

_HEAD = struct.Struct("<8sHBBIIQQQQBBHII")
HEAD_BYTES = _HEAD.size
_DTYPES = ("float32", "float64", "int64")
_AS_IT_IS, _LZ4, _SHUFFLED = 0, 1, 2
_SAMPLES, _SAMPLE_BYTES = 8, 8 << 10
_WORTH = 0.9  # compressed to more than this, a section is stored as it is
_WORTH_SHUFFLING = 0.8  # of what LZ4 alone makes of it: shuffled reading takes longer

Section: TypeAlias = tuple[int, Bytes]
_Array: TypeAlias = NDArray[Any]


class Piece(Protocol):
    """What an image gives: see `Chunk`, which is one."""

    @property
    def table(self) -> int: ...
    @property
    def kind(self) -> ChunkKind: ...
    @property
    def at(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def keys(self) -> NDArray[np.uint64]: ...
    @property
    def content(self) -> _Array: ...


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some rows or elements of a table; what `at` and `end` count, `ChunkPlace` says.

    `rows` and `delta`: `keys` (uint64, one per row) and `content`, row by row, `columns` values of
    each (values and optimiser state). `elements`: no keys; `content` is what `DenseShard.capture`
    gives, at most `columns` values for each element. `content` is flat: float32, float64 or int64.
    """

    table: int
    kind: ChunkKind
    at: int
    end: int
    columns: int
    keys: NDArray[np.uint64] = field(repr=False)
    content: _Array = field(repr=False)

    def parts(self) -> tuple[int, ChunkKind, int, int, int, NDArray[np.uint64], _Array]:
        """All fields."""
        return (
            self.table, self.kind, self.at, self.end, self.columns, self.keys, self.content,
        )  # fmt: skip


class Packed(NamedTuple):
    """A chunk that was encoded. `offset`: where it begins in its object; -1: it is not in it,
    because the base has the same one."""

    key: ChunkKey
    offset: int
    nbytes: int
    raw_bytes: int
    xxh128: str


@dataclass(frozen=True, slots=True, eq=False)
class ObjectBody:
    """Several chunks as one object; `Encoded.info` is a tuple of `Packed`, one for each.

    `known`: the digests of chunks that need not be written again. If none is left, the object has
    no pieces, and nothing is put.
    """

    pieces: tuple[Piece, ...]
    known: Mapping[ChunkKey, str]

    def encode(self) -> Encoded:
        """Compress and hash; a few milliseconds per MiB, without the interpreter lock."""
        parts: list[Bytes] = []
        packed: list[Packed] = []
        offset = 0
        for piece in self.pieces:
            stored = encode(piece)
            nbytes, xxh128 = size_of(stored), xxh128_of(stored)
            key = ChunkKey(piece.table, piece.kind, piece.at, piece.end)
            is_known = self.known.get(key) == xxh128
            packed.append(
                Packed(key, -1 if is_known else offset, nbytes, raw_bytes_of(piece), xxh128)
            )
            if not is_known:
                parts += stored
                offset += nbytes
        return Encoded(tuple(parts), tuple(packed))


def xxh128_of(parts: Iterable[Bytes]) -> str:
    """The digest of a chunk, in hexadecimal."""
    hashed = xxhash.xxh3_128()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def raw_bytes_of(piece: Piece) -> int:
    """Bytes of keys and content."""
    return int(piece.keys.nbytes + piece.content.nbytes)


def encode(piece: Piece) -> tuple[Bytes, ...]:
    """The chunk's bytes, in pieces that may share memory with its arrays. Raises BadInput."""
    _check_counts(piece)
    keys_how, keys = _pack(np.ascontiguousarray(piece.keys, "<u8"))
    content = piece.content.astype(piece.content.dtype.newbyteorder("<"), order="C", copy=False)
    content_how, stored = _pack(content)
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        CHUNK_KINDS.index(piece.kind),
        _DTYPES.index(piece.content.dtype.name),
        piece.table,
        piece.columns,
        piece.at,
        piece.end,
        piece.keys.size,
        piece.content.size,
        keys_how,
        content_how,
        0,
        len(keys),
        len(stored),
    )
    return head, keys, stored


def decode(data: Bytes, name: str) -> Chunk:
    """The chunk of these bytes; `name` is where they come from, for errors.

    Raises `Damaged`, and `ForeignFormat` for a newer version's. Arrays may share `data`'s memory,
    and `content` need not be aligned then: copying it would take longer than all else.
    """
    view = memoryview(data)
    if len(view) < HEAD_BYTES or view[:8] != MAGIC:
        raise Damaged(f"{name}: it is no chunk: it does not begin as chunks do")
    (_, version, kind, dtype, table, columns, at, end, keys, values, keys_how, how, spare,
     keys_bytes, stored_bytes) = _HEAD.unpack(view[:HEAD_BYTES])  # fmt: skip
    if version > VERSION:
        raise ForeignFormat(
            f"{name}: a chunk that was written by a newer version (format {version}), this one "
            f"reads up to {VERSION}: upgrade resilient-ps"
        )
    if kind >= len(CHUNK_KINDS) or dtype >= len(_DTYPES) or spare or version < 1:
        raise Damaged(f"{name}: a chunk of an unknown kind ({kind}) or dtype ({dtype})")
    if len(view) != HEAD_BYTES + keys_bytes + stored_bytes:
        raise Damaged(f"{name}: a chunk of {len(view)} bytes whose head says another length")
    shape = _Shape(CHUNK_KINDS[kind], table, columns, at, end, keys, values, _DTYPES[dtype])
    if fault := shape.fault():
        raise Damaged(f"{name}: a chunk {fault}")
    stored_keys, stored = view[HEAD_BYTES:][:keys_bytes], view[HEAD_BYTES + keys_bytes :]
    own_keys = _unpack(keys_how, stored_keys, keys, np.dtype("<u8"), name)
    return Chunk(
        table,
        CHUNK_KINDS[kind],
        at,
        end,
        columns,
        own_keys if own_keys.flags.aligned else own_keys.copy(),
        _unpack(how, stored, values, np.dtype(_DTYPES[dtype]).newbyteorder("<"), name),
    )


class _Shape(NamedTuple):
    """What the head of a chunk says."""

    kind: ChunkKind
    table: int
    columns: int
    at: int
    end: int
    keys: int
    values: int
    dtype: str

    def fault(self) -> str:
        """What cannot be about it; "" if nothing."""
        rows = self.end - self.at
        if not (1 <= self.table <= NUMBER_MAX and self.columns >= 1 and 0 <= self.at < self.end):
            return f"of table {self.table} from {self.at} to {self.end}, {self.columns} columns"
        is_sparse = self.kind != "elements"
        fits = self.values == rows * self.columns if is_sparse else self.values >= rows
        if self.keys != (rows if is_sparse else 0) or self.values > rows * self.columns or not fits:
            return f"of {rows} rows with {self.keys} keys and {self.values} values"
        raw_bytes = 8 * self.keys + np.dtype(self.dtype).itemsize * self.values
        return f"of {raw_bytes} bytes, more than {RAW_BYTES_MAX}" * (raw_bytes > RAW_BYTES_MAX)


def _check_counts(piece: Piece) -> None:
    keys, content = piece.keys, piece.content
    if keys.dtype != np.uint64 or content.dtype.name not in _DTYPES or keys.ndim + content.ndim > 2:
        raise BadInput(f"a chunk of {content.dtype} under keys of {keys.dtype}: not to be written")
    shape = _Shape(
        piece.kind,
        piece.table,
        piece.columns,
        piece.at,
        piece.end,
        keys.size,
        content.size,
        content.dtype.name,
    )
    if fault := shape.fault():
        raise BadInput(f"a chunk {fault}: not to be written")


# -- sections


def _pack(array: _Array) -> Section:
    """The shortest way to store it, as far as a sample tells."""
    raw = array.view(np.uint8)
    how = _choose(raw, array.itemsize)
    if how == _AS_IT_IS:
        return how, raw.data
    packed = _compress(_shuffled(raw, array.itemsize) if how == _SHUFFLED else raw)
    if len(packed) > _WORTH * raw.size:
        return _AS_IT_IS, raw.data
    return how, packed


def _choose(raw: NDArray[np.uint8], width: int) -> int:
    sample = raw
    if raw.size > _SAMPLES * _SAMPLE_BYTES:
        step = raw.size // _SAMPLES // _SAMPLE_BYTES * _SAMPLE_BYTES
        sample = np.concatenate([raw[i * step : i * step + _SAMPLE_BYTES] for i in range(_SAMPLES)])
    plain = len(_compress(sample))
    shuffled = len(_compress(_shuffled(sample, width)))
    if min(plain, shuffled) > _WORTH * sample.size or not raw.size:
        return _AS_IT_IS
    return _SHUFFLED if shuffled < _WORTH_SHUFFLING * plain else _LZ4


def _compress(raw: NDArray[np.uint8]) -> bytes:
    packed: bytes = lz4.block.compress(raw.data, store_size=False)
    return packed


def _shuffled(raw: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(raw.reshape(-1, width).T).reshape(-1)


def _unpack(how: int, stored: memoryview, count: int, dtype: np.dtype[Any], name: str) -> _Array:
    raw_bytes = count * dtype.itemsize
    if how == _AS_IT_IS:
        raw: Bytes = stored
    elif how in (_LZ4, _SHUFFLED):
        raw = _decompress(stored, raw_bytes, name)
    else:
        raise Damaged(f"{name}: a chunk that is packed in an unknown way ({how})")
    if len(raw) != raw_bytes:
        raise Damaged(f"{name}: {len(raw)} bytes in a chunk where {raw_bytes} should be")
    if how == _SHUFFLED:
        raw = np.ascontiguousarray(
            np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1).T
        ).data.cast("B")
    return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="), copy=False)


def _decompress(stored: memoryview, raw_bytes: int, name: str) -> bytearray:
    try:
        raw: bytearray = lz4.block.decompress(
            stored, uncompressed_size=raw_bytes, return_bytearray=True
        )
    except lz4.block.LZ4BlockError as error:
        raise Damaged(f"{name}: a chunk that LZ4 cannot read ({error})") from error
    return raw

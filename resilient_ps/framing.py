"""What every frame begins with, and its limits.

A frame is a fixed head of 32 bytes, `meta` (the small fields, packed), the keys (little-endian
uint64) and the values (little-endian, of one whitelisted dtype):

    magic "RPS1" | version | kind | dtype | 0 | meta bytes | keys | value bytes | request

Every length in the head is checked against `FrameLimits` before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.messages import Keys, Kind, Values

MAGIC = b"RPS1"
VERSION = 2
SCRATCH_BYTES = 256 * 1024
LOG_META_BYTES = 512
"""How much longer than a client's the meta of a frame between servers may be: an entry of a log
takes a little more than the request that it came in, and always has to fit."""

HEAD = struct.Struct("<4sBBBBIIQQ")
HEAD_BYTES = HEAD.size

_VALUE_DTYPES = tuple(np.dtype(code) for code in ("<f4", "<f8", "<i8"))
DTYPES: tuple[np.dtype[Any] | None, ...] = (None, *_VALUE_DTYPES, np.dtype("u1"))
DTYPE_CODES = {dtype: code for code, dtype in enumerate(_VALUE_DTYPES, start=1)}
TEXT_CODE = 4  # in place of values: a text that is too long for the meta

# Frame kinds: those of requests are their `Kind`, the others follow.
(ANSWER_KIND, HELLO_KIND, WELCOME_KIND, REFUSE_KIND, ASK_KIND, TOLD_KIND, APPEND_KIND,
 APPENDED_KIND, COPY_KIND) = range(64, 73)  # fmt: skip
REQUEST_KINDS = {int(kind): kind for kind in Kind if kind is not Kind.EPOCH}
_LOG_KINDS = frozenset([APPEND_KIND, COPY_KIND])
_BULK_KINDS = frozenset([*REQUEST_KINDS, ANSWER_KIND]) | _LOG_KINDS  # may carry keys or values
_KINDS = _BULK_KINDS | frozenset(range(ANSWER_KIND, COPY_KIND + 1))


class WireError(BadInput):
    """The bytes on a connection are not what this protocol speaks: close it."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frame that is accepted. A push or pull that is larger travels in pieces.

    Servers accept `LOG_META_BYTES` more of meta from one another.
    """

    meta_bytes: int = SCRATCH_BYTES - HEAD_BYTES - 1024
    payload_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        most = SCRATCH_BYTES - HEAD_BYTES - LOG_META_BYTES
        if not 0 < self.meta_bytes <= most:
            raise BadInput(
                f"meta_bytes={self.meta_bytes}: a frame's head and meta must fit into the "
                f"{SCRATCH_BYTES} bytes of the receive buffer: use 1 to {most}"
            )


GREETING = FrameLimits(meta_bytes=4096, payload_bytes=0)
"""What a connection may send as its first frame: nobody has said yet who it is."""


class Head(NamedTuple):
    """The fixed head of a frame, checked against the limits."""

    kind: int
    dtype: np.dtype[Any] | None
    meta_bytes: int
    keys: int
    value_bytes: int
    request: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values together."""
        return 8 * self.keys + self.value_bytes

    @property
    def elements(self) -> int:
        """How many values there are."""
        return self.value_bytes // self.dtype.itemsize if self.dtype is not None else 0


def decode_head(data: bytes | memoryview, limits: FrameLimits, at: int = 0) -> Head:
    """Check and unpack the head of the frame that begins at `data[at]`. Raises `WireError`."""
    magic, version, kind, code, _, meta_bytes, keys, value_bytes, request = HEAD.unpack_from(
        data, at
    )
    if magic != MAGIC:
        raise foreign(magic)
    if version != VERSION:
        raise WireError(f"frame version {version}, this side speaks {VERSION}: upgrade one of them")
    if code >= len(DTYPES) or (code == TEXT_CODE and kind != COPY_KIND):
        raise WireError(f"dtype code {code} is none of the permitted dtypes")
    payload_bytes = 8 * keys + value_bytes
    if kind not in (_BULK_KINDS if payload_bytes else _KINDS):
        raise WireError(f"frame kind {kind} is unknown, or may not carry keys or values")
    most = limits.meta_bytes + (LOG_META_BYTES if kind in _LOG_KINDS else 0)
    if meta_bytes > most or payload_bytes > limits.payload_bytes:
        raise WireError(
            f"a frame of {meta_bytes} + {payload_bytes} bytes is over the limit of "
            f"{most} + {limits.payload_bytes}"
        )
    dtype = DTYPES[code]
    if value_bytes and (dtype is None or value_bytes % dtype.itemsize):
        raise WireError(f"{value_bytes} bytes of values do not fit dtype code {code}")
    return tuple.__new__(Head, (kind, dtype, meta_bytes, keys, value_bytes, request))


def foreign(start: bytes) -> WireError:
    """The error for a peer whose first bytes are not ours."""
    return WireError(
        f"this is not the resilient-ps protocol (it begins with {start!r}): "
        "check the address and the port"
    )


def pack_frame(
    kind: int, request: int, meta: bytes, keys: Sequence[Keys], values: Sequence[Values], dtype: int
) -> list[Any]:
    """Buffers of a frame for a gathering write; empty arrays are left out. Copies no array."""
    keys_n = value_bytes = 0
    arrays = []
    for piece in keys:
        if piece.size:
            keys_n += piece.size
            arrays.append(piece.data.cast("B"))
    for piece in values:
        if piece.size:
            value_bytes += piece.nbytes
            arrays.append(piece.data.cast("B"))
    head = HEAD.pack(MAGIC, VERSION, kind, dtype, 0, len(meta), keys_n, value_bytes, request)
    return [head + meta, *arrays]


def dtype_code(values: Sequence[Values]) -> int:
    """The code of the one dtype that all of them have. Raises `BadInput`."""
    code = DTYPE_CODES.get(values[0].dtype)
    if code is None or any(piece.dtype != values[0].dtype for piece in values):
        names = sorted({str(piece.dtype) for piece in values})
        raise BadInput(
            f"values of dtype {', '.join(names)} cannot travel: convert all of them to one of "
            f"{', '.join(str(dtype) for dtype in DTYPE_CODES)}"
        )
    return code

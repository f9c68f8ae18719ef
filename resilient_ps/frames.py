"""Frames: messages as bytes, and the parts of a frame as a message again.

A frame is a fixed head of 32 bytes, `meta` (the small fields, packed), the keys (little-endian
uint64) and the values (little-endian, of one whitelisted dtype):

    magic "RPS1" | version | kind | dtype | 0 | meta bytes | keys | value bytes | request

Every length in the head is checked against `FrameLimits` before anything is allocated; every
length in the meta is checked against what is there. Nothing is ever unpickled or evaluated.
`encode` copies no array: it gives buffers for a gathering write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.messages import (
    NO_KEYS,
    Answer,
    Ask,
    Hello,
    Keys,
    Kind,
    Message,
    Part,
    PartAnswer,
    Refuse,
    Request,
    Status,
    Told,
    Values,
    Welcome,
)

MAGIC = b"RPS1"
VERSION = 1
SCRATCH_BYTES = 256 * 1024

_HEAD = struct.Struct("<4sBBBBIIQQ")
_REQUEST = struct.Struct("<QIIQQIIQdBII")
_PART = struct.Struct("<IQQQIIQ")
_ANSWER = struct.Struct("<I")
_PART_ANSWER = struct.Struct("<IBQQQQIQI")
_HELLO = struct.Struct("<II")
_WELCOME = struct.Struct("<QQ")
HEAD_BYTES = _HEAD.size

_DTYPES: tuple[np.dtype[Any] | None, ...] = (
    None,
    np.dtype("<f4"),
    np.dtype("<f8"),
    np.dtype("<i8"),
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES) if dtype is not None}

# Frame kinds: those of requests are their `Kind`, the others follow.
ANSWER_KIND, _HELLO_KIND, _WELCOME_KIND, _REFUSE_KIND, _ASK_KIND, _TOLD_KIND = range(64, 70)
_BULK_KINDS = frozenset([*Kind, ANSWER_KIND])  # may carry keys or values
_KINDS = _BULK_KINDS | frozenset(range(_HELLO_KIND, _TOLD_KIND + 1))
_KIND_OF = {int(kind): kind for kind in Kind}  # several times faster than `Kind(...)`
_STATUS_OF = {int(status): status for status in Status}
_new = tuple.__new__  # a named tuple's own constructor is slower, and there is one per part


class WireError(BadInput):
    """The bytes on a connection are not what this protocol speaks: close it."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frame that is accepted. A push or pull that is larger travels in pieces."""

    meta_bytes: int = SCRATCH_BYTES - HEAD_BYTES - 1024
    payload_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0 < self.meta_bytes <= SCRATCH_BYTES - HEAD_BYTES:
            raise BadInput(
                f"meta_bytes={self.meta_bytes}: a frame's head and meta must fit into the "
                f"{SCRATCH_BYTES} bytes of the receive buffer"
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


# ---------------------------------------------------------------------------------------- encode


def encode(message: Message) -> list[Any]:
    """Buffers of one frame, for a gathering write. Arrays are referenced, not copied."""
    if isinstance(message, Request):
        return _encode_request(message)
    if isinstance(message, Answer):
        return _encode_answer(message)
    kind, request, meta = _encode_small(message)
    return [_HEAD.pack(MAGIC, VERSION, kind, 0, 0, len(meta), 0, 0, request), meta]


def _encode_request(message: Request) -> list[Any]:
    worker = message.worker
    meta = [
        _REQUEST.pack(
            message.incarnation,
            worker.job,
            worker.rank,
            worker.incarnation,
            message.clock,
            message.n,
            message.table,
            message.wait_ns,
            message.rate,
            message.settled,
            len(message.parts),
            len(message.text),
        )
    ]
    pack = _PART.pack
    for shard, ((incarnation, counter), lsn), prev, count, elements in message.parts:
        meta.append(pack(shard, incarnation, counter, lsn, prev, count, elements))
    if message.text:
        meta.append(message.text)
    return _frame(message.kind, message.request, b"".join(meta), message.keys, message.values)


def _encode_answer(message: Answer) -> list[Any]:
    meta = [_ANSWER.pack(len(message.parts))]
    texts = []
    pack = _PART_ANSWER.pack
    for shard, status, ((incarnation, counter), lsn), value, count, elements, text in message.parts:
        head = pack(shard, status, incarnation, counter, lsn, value, count, elements, len(text))
        meta.append(head)
        if text:
            texts.append(text)
    return _frame(ANSWER_KIND, message.request, b"".join(meta + texts), NO_KEYS, message.values)


def _frame(
    kind: int, request: int, meta: bytes, keys: Keys, values: tuple[Values, ...]
) -> list[Any]:
    dtype = value_bytes = 0
    if values:
        dtype = _dtype_code(values)
        value_bytes = sum(piece.nbytes for piece in values)
    head = _HEAD.pack(MAGIC, VERSION, kind, dtype, 0, len(meta), len(keys), value_bytes, request)
    buffers: list[Any] = [head + meta]
    if len(keys):
        buffers.append(keys.data.cast("B"))
    if value_bytes:
        buffers.extend(piece.data.cast("B") for piece in values if piece.size)
    return buffers


def _dtype_code(values: tuple[Values, ...]) -> int:
    code = _DTYPE_CODES.get(values[0].dtype)
    if code is None or any(piece.dtype != values[0].dtype for piece in values):
        names = sorted({str(piece.dtype) for piece in values})
        raise BadInput(
            f"values of dtype {', '.join(names)} cannot travel: convert all of them to one of "
            f"{', '.join(str(dtype) for dtype in _DTYPE_CODES)}"
        )
    return code


def _encode_small(message: Hello | Welcome | Refuse | Ask | Told) -> tuple[int, int, bytes]:
    match message:
        case Hello():
            cluster = message.cluster.encode()
            head = _HELLO.pack(message.protocol, len(cluster))
            return _HELLO_KIND, 0, head + cluster + message.who.encode()
        case Welcome():
            head = _WELCOME.pack(message.process, message.incarnation)
            return _WELCOME_KIND, 0, head + message.server.encode()
        case Refuse():
            return _REFUSE_KIND, 0, message.why.encode()
        case Ask():
            return _ASK_KIND, message.request, message.what.encode()
        case Told():
            return _TOLD_KIND, message.request, message.body.encode()


# ---------------------------------------------------------------------------------------- decode


def decode_head(data: bytes | memoryview, limits: FrameLimits, at: int = 0) -> Head:
    """Check and unpack the head of the frame that begins at `data[at]`. Raises `WireError`."""
    magic, version, kind, code, _, meta_bytes, keys, value_bytes, request = _HEAD.unpack_from(
        data, at
    )
    if magic != MAGIC:
        raise foreign(magic)
    if version != VERSION:
        raise WireError(f"frame version {version}, this side speaks {VERSION}: upgrade one of them")
    if code >= len(_DTYPES):
        raise WireError(f"dtype code {code} is none of the permitted dtypes")
    payload_bytes = 8 * keys + value_bytes
    if kind not in (_BULK_KINDS if payload_bytes else _KINDS):
        raise WireError(f"frame kind {kind} is unknown, or may not carry keys or values")
    if meta_bytes > limits.meta_bytes or payload_bytes > limits.payload_bytes:
        raise WireError(
            f"a frame of {meta_bytes} + {payload_bytes} bytes is over the limit of "
            f"{limits.meta_bytes} + {limits.payload_bytes}"
        )
    dtype = _DTYPES[code]
    if value_bytes and (dtype is None or value_bytes % dtype.itemsize):
        raise WireError(f"{value_bytes} bytes of values do not fit dtype code {code}")
    return _new(Head, (kind, dtype, meta_bytes, keys, value_bytes, request))


def foreign(start: bytes) -> WireError:
    """The error for a peer whose first bytes are not ours."""
    return WireError(
        f"this is not the resilient-ps protocol (it begins with {start!r}): "
        "check the address and the port"
    )


def decode(head: Head, meta: bytes, keys: Keys, values: Values | None) -> Message:
    """The message of a frame whose parts have been received. Raises `WireError`.

    `values` is None where the bytes were received somewhere else (`FrameReader.place`).
    """
    try:
        if head.kind == ANSWER_KIND:
            return _decode_answer(head, meta, values)
        if head.kind >= 64:
            return _decode_small(head.kind, head.request, meta)
        return _decode_request(head, meta, keys, values)
    except (struct.error, ValueError) as error:
        raise WireError(f"a frame of kind {head.kind} is malformed: {error}") from error


def _decode_request(head: Head, meta: bytes, keys: Keys, values: Values | None) -> Request:
    (incarnation, job, rank, worker_incarnation, clock, n, table, wait_ns, rate, settled, parts_n,
     text_n) = _REQUEST.unpack_from(meta)  # fmt: skip
    end = _REQUEST.size + parts_n * _PART.size
    if end + text_n != len(meta):
        raise WireError(f"{parts_n} parts and {text_n} bytes of text are not {len(meta)} bytes")
    parts: list[Part] = []
    counts = elements_sum = 0
    epoch = NO_EPOCH
    for shard, incarnation_seen, counter, lsn, prev, count, elements in _PART.iter_unpack(
        memoryview(meta)[_REQUEST.size : end]
    ):
        if (incarnation_seen, counter) != epoch:
            epoch = _new(Epoch, (incarnation_seen, counter))
        position = _new(Position, (epoch, lsn))
        parts.append(_new(Part, (shard, position, prev, count, elements)))
        counts += count
        elements_sum += elements
    if counts != head.keys:
        raise WireError(f"the parts' {counts} keys do not add up to the frame's {head.keys}")
    _check_elements(elements_sum, head)
    return Request(
        _KIND_OF[head.kind],
        head.request,
        tuple(parts),
        incarnation,
        _new(WorkerId, (job, rank, worker_incarnation)),
        clock,
        n,
        table,
        wait_ns,
        rate,
        settled != 0,
        meta[end:],
        keys,
        () if values is None else (values,),
    )


def _decode_answer(head: Head, meta: bytes, values: Values | None) -> Answer:
    parts, elements = _unpack_answers(meta)
    _check_elements(elements, head)
    if values is None:
        return Answer(head.request, parts, placed=head.value_bytes > 0)
    return Answer(head.request, parts, (values,))


def _unpack_answers(meta: bytes) -> tuple[tuple[PartAnswer, ...], int]:
    """The parts, and how many values they have together."""
    (parts_n,) = _ANSWER.unpack_from(meta)
    at = _ANSWER.size + parts_n * _PART_ANSWER.size  # the texts stand behind all parts
    if at > len(meta):
        raise WireError(f"{parts_n} parts do not fit into {len(meta)} bytes")
    parts: list[PartAnswer] = []
    elements_sum, epoch = 0, NO_EPOCH
    for (
        shard,
        code,
        incarnation,
        counter,
        lsn,
        value,
        count,
        elements,
        text_n,
    ) in _PART_ANSWER.iter_unpack(memoryview(meta)[_ANSWER.size : at]):
        status = _STATUS_OF.get(code)
        if status is None:
            raise WireError(f"status {code} is unknown")
        if (incarnation, counter) != epoch:
            epoch = _new(Epoch, (incarnation, counter))
        text = meta[at : at + text_n] if text_n else b""
        at += text_n
        position = _new(Position, (epoch, lsn))
        parts.append(_new(PartAnswer, (shard, status, position, value, count, elements, text)))
        elements_sum += elements
    if at != len(meta):
        raise WireError(f"{parts_n} parts and their texts take {at} bytes of {len(meta)}")
    return tuple(parts), elements_sum


def _check_elements(elements: int, head: Head) -> None:
    """The parts' shares must add up to exactly what the frame holds."""
    expected = head.value_bytes // head.dtype.itemsize if head.dtype is not None else 0
    if elements != expected:
        raise WireError(f"the parts' {elements} values do not add up to the frame's {expected}")


def _decode_small(kind: int, request: int, meta: bytes) -> Message:
    if kind == _HELLO_KIND:
        protocol, cluster_n = _HELLO.unpack_from(meta)
        at = _HELLO.size + cluster_n
        if at > len(meta):
            raise WireError(f"a cluster name of {cluster_n} bytes is not in {len(meta)} bytes")
        return Hello(protocol, meta[_HELLO.size : at].decode(), meta[at:].decode())
    if kind == _WELCOME_KIND:
        process, incarnation = _WELCOME.unpack_from(meta)
        return Welcome(meta[_WELCOME.size :].decode(), process, incarnation)
    if kind == _REFUSE_KIND:
        return Refuse(meta.decode())
    if kind == _ASK_KIND:
        return Ask(request, meta.decode())
    if kind == _TOLD_KIND:
        return Told(request, meta.decode())
    raise WireError(f"frame kind {kind} is unknown")  # decode_head has seen to it

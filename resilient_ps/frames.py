"""Frames: messages as bytes, and the parts of a frame as a message again.

What all frames have in common stands in `resilient_ps.framing`; those between replicas in
`resilient_ps.log_frames`. Every length in the meta is checked against what is there. Nothing is
ever unpickled or evaluated. `encode` copies no array: it gives buffers for a gathering write.
"""

from __future__ import annotations

import struct
from typing import Any

from resilient_ps.framing import (
    ANSWER_KIND,
    APPEND_KIND,
    APPENDED_KIND,
    ASK_KIND,
    COPY_KIND,
    GREETING,
    HEAD_BYTES,
    HELLO_KIND,
    LOG_META_BYTES,
    MAGIC,
    REFUSE_KIND,
    REQUEST_KINDS,
    SCRATCH_BYTES,
    TOLD_KIND,
    VERSION,
    WELCOME_KIND,
    FrameLimits,
    Head,
    WireError,
    decode_head,
    dtype_code,
    foreign,
    pack_frame,
)
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.log_frames import (
    APPEND_BYTES,
    APPEND_PART_BYTES,
    append_size,
    decode_append,
    decode_appended,
    decode_copy,
    encode_append,
    encode_appended,
    encode_copy,
)
from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    Ask,
    Copy,
    Hello,
    Keys,
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

__all__ = [
    "ANSWER_KIND",
    "APPEND_BYTES",
    "APPEND_PART_BYTES",
    "GREETING",
    "HEAD_BYTES",
    "LOG_META_BYTES",
    "MAGIC",
    "SCRATCH_BYTES",
    "VERSION",
    "FrameLimits",
    "Head",
    "WireError",
    "append_size",
    "decode",
    "decode_head",
    "encode",
    "foreign",
]

_REQUEST = struct.Struct("<QIIQQIIQdBII")
_PART = struct.Struct("<IQQQIIQ")
_ANSWER = struct.Struct("<I")
_PART_ANSWER = struct.Struct("<IBQQQQIQI")
_HELLO = struct.Struct("<IQQII")
_WELCOME = struct.Struct("<QQQ")

FORMATS = tuple(layout.format for layout in (_REQUEST, _PART, _ANSWER, _PART_ANSWER))
"""What `quick_frames` has to know."""
_STATUS_OF = {int(status): status for status in Status}
_new = tuple.__new__  # a named tuple's own constructor is slower, and there is one per part


# ---------------------------------------------------------------------------------------- encode


def encode(message: Message) -> list[Any]:
    """Buffers of one frame, for a gathering write. Arrays are referenced, not copied."""
    if isinstance(message, Request):
        return _encode_request(message)
    if isinstance(message, Answer):
        return _encode_answer(message)
    if isinstance(message, Append):
        return encode_append(message)
    if isinstance(message, Appended):
        return encode_appended(message)
    if isinstance(message, Copy):
        return encode_copy(message)
    kind, request, meta = _encode_small(message)
    return pack_frame(kind, request, meta, (), (), 0)


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
    return _frame(message.kind, message.request, b"".join(meta), (message.keys,), message.values)


def _encode_answer(message: Answer) -> list[Any]:
    meta = [_ANSWER.pack(len(message.parts))]
    texts = []
    pack = _PART_ANSWER.pack
    for shard, status, ((incarnation, counter), lsn), value, count, elements, text in message.parts:
        head = pack(shard, status, incarnation, counter, lsn, value, count, elements, len(text))
        meta.append(head)
        if text:
            texts.append(text)
    return _frame(ANSWER_KIND, message.request, b"".join(meta + texts), (), message.values)


def _frame(
    kind: int, request: int, meta: bytes, keys: tuple[Keys, ...], values: tuple[Values, ...]
) -> list[Any]:
    return pack_frame(kind, request, meta, keys, values, dtype_code(values) if values else 0)


def _encode_small(message: Hello | Welcome | Refuse | Ask | Told) -> tuple[int, int, bytes]:
    match message:
        case Hello():
            cluster = message.cluster.encode()
            server = message.server.encode()
            head = _HELLO.pack(
                message.protocol, message.process, message.lease, len(cluster), len(server)
            )
            return HELLO_KIND, 0, head + cluster + server + message.who.encode()
        case Welcome():
            head = _WELCOME.pack(message.process, message.incarnation, message.lease)
            return WELCOME_KIND, 0, head + message.server.encode()
        case Refuse():
            return REFUSE_KIND, 0, message.why.encode()
        case Ask():
            return ASK_KIND, message.request, message.what.encode()
        case Told():
            return TOLD_KIND, message.request, message.body.encode()


# ---------------------------------------------------------------------------------------- decode


def decode(head: Head, meta: bytes, keys: Keys, values: Values | None) -> Message:
    """The message of a frame whose parts have been received. Raises `WireError`.

    `values` is None where the bytes were received somewhere else (`FrameReader.place`).
    """
    try:
        if head.kind == ANSWER_KIND:
            return _decode_answer(head, meta, values)
        if head.kind == APPEND_KIND:
            return decode_append(head, meta, keys, values)
        if head.kind == APPENDED_KIND:
            return decode_appended(meta)
        if head.kind == COPY_KIND:
            return decode_copy(head, meta, keys, values)
        if head.kind > ANSWER_KIND:
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
        REQUEST_KINDS[head.kind],
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
    if head.keys:
        raise WireError(f"an answer with {head.keys} keys: answers carry none")
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
    if elements != head.elements:
        raise WireError(
            f"the parts' {elements} values do not add up to the frame's {head.elements}"
        )


def _decode_small(kind: int, request: int, meta: bytes) -> Message:
    if kind == HELLO_KIND:
        return _decode_hello(meta)
    if kind == WELCOME_KIND:
        process, incarnation, lease = _WELCOME.unpack_from(meta)
        return Welcome(meta[_WELCOME.size :].decode(), process, incarnation, lease)
    if kind == REFUSE_KIND:
        return Refuse(meta.decode())
    if kind == ASK_KIND:
        return Ask(request, meta.decode())
    if kind == TOLD_KIND:
        return Told(request, meta.decode())
    raise WireError(f"frame kind {kind} is unknown")  # decode_head has seen to it


def _decode_hello(meta: bytes) -> Hello:
    protocol, process, lease, cluster_n, server_n = _HELLO.unpack_from(meta)
    server_at = _HELLO.size + cluster_n
    who_at = server_at + server_n
    if who_at > len(meta):
        raise WireError(f"names of {cluster_n} and {server_n} bytes are not in {len(meta)} bytes")
    return Hello(
        protocol,
        meta[_HELLO.size : server_at].decode(),
        meta[who_at:].decode(),
        meta[server_at:who_at].decode(),
        process,
        lease,
    )

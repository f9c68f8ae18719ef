"""The quick way of requests and answers between messages and bytes, by the native module.

It does what `frames` does, and leaves to it what is not common, by answering None. It knows the
layout of frames and the fields of messages by heart; where they are not what it knows, or there is
no native module, it leaves everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from resilient_ps import frames, framing
from resilient_ps.engine import native
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.messages import (
    NO_KEYS,
    Answer,
    Kind,
    Message,
    Part,
    PartAnswer,
    Request,
    Status,
)

Taken = tuple[Message, int]

_KNOWN_FORMATS = ("<4sBBBBIIQQ", "<QIIQQIIQdBII", "<IQQQIIQ", "<I", "<IBQQQQIQI")
_KNOWN_FIELDS = (
    "kind request parts incarnation worker clock n table wait_ns rate settled text keys values",
    "request parts values placed",
    "shard seen prev count elements",
    "shard status at value count elements text",
    "epoch lsn",
    "incarnation counter",
    "job rank incarnation",
)


def is_known() -> bool:
    """Are frames and messages what the native module knows?"""
    formats = (framing.HEAD.format, *frames.FORMATS) == _KNOWN_FORMATS
    slots = tuple(" ".join(kind.__slots__) for kind in (Request, Answer))
    tuples = (Part, PartAnswer, Position, Epoch, WorkerId)
    return formats and (*slots, *(" ".join(t._fields) for t in tuples)) == _KNOWN_FIELDS


def _set_up() -> bool:
    if native is None or not is_known():
        return False
    types = (Request, Answer, Part, PartAnswer, Position, Epoch, WorkerId)
    words: dict[str, Any] = {kind.__name__: kind for kind in types}
    words |= {
        "no_keys": NO_KEYS,
        "no_epoch": NO_EPOCH,
        "key_dtype": np.dtype(np.uint64),
        "dtypes": framing.DTYPES[: framing.TEXT_CODE],
        "make_array": np.empty,
        "kinds": tuple(kind for kind in Kind if kind in framing.REQUEST_KINDS),
        "statuses": tuple(Status),
        "magic": framing.MAGIC,
        "version": framing.VERSION,
        "answer_kind": framing.ANSWER_KIND,
    }
    return bool(native.set_up(words))


def _leave(*_: Any) -> None:
    """Left to the Python code."""


IN_USE = _set_up()

encode_request: Callable[[Request], list[Any] | None] = _leave
encode_answer: Callable[[Answer], list[Any] | None] = _leave
take: Callable[[memoryview, int, int, int, int, Any], Taken | None] = _leave
"""`take(scratch, lo, hi, meta limit, payload limit, place)`: the message of the frame that begins
at `lo`, and where it ends; None for what is left to `FrameReader`. For `place` see there."""

if IN_USE:
    encode_request, encode_answer, take = native.encode_request, native.encode_answer, native.take

__all__ = ["IN_USE", "encode_answer", "encode_request", "is_known", "take"]

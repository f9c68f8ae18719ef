"""The quick way of common messages between objects and bytes, by the native module.

It does what `frames` does, and leaves to it what is not common, by answering None. It knows the
layout of frames and the fields of messages by heart; where they are not what it knows, or there is
no native module, it leaves everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields as fields_of
from typing import Any, Literal

import numpy as np

from resilient_ps import frames, framing, log_frames
from resilient_ps.engine import native
from resilient_ps.ids import NO_EPOCH, Epoch, Position, WorkerId
from resilient_ps.messages import (
    NO_KEYS,
    Answer,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Command,
    Entry,
    Held,
    Kind,
    Message,
    Part,
    PartAnswer,
    Request,
    Status,
)

Taken = tuple[Message, int]
Begun = tuple[Message, int, int, tuple[Any, ...]]

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
_KNOWN_LOG_FORMATS = ("<II", "<IQQQQQQQI", "<BBBQQQIIQQIIIdIIQ", "<I", "<IQQQBQ")
_KNOWN_LOG_FIELDS = (
    "kind worker clock n prev table rate settled text keys values",
    "parts",
    "parts",
    "shard epoch attempt prev commit entries",
    "shard epoch attempt held lsn",
    "at command",
)


def is_known() -> bool:
    """Are frames and messages what the native module knows?"""
    formats = (framing.HEAD.format, *frames.FORMATS) == _KNOWN_FORMATS
    tuples = (Part, PartAnswer, Position, Epoch, WorkerId)
    fields = (_names(Request), _names(Answer), *(" ".join(t._fields) for t in tuples))
    return formats and fields == _KNOWN_FIELDS and _are_logs_known()


def _are_logs_known() -> bool:
    classes = tuple(_names(kind) for kind in (Command, Append, Appended))
    tuples = tuple(" ".join(kind._fields) for kind in (AppendPart, AppendedPart, Entry))
    return log_frames.FORMATS == _KNOWN_LOG_FORMATS and (*classes, *tuples) == _KNOWN_LOG_FIELDS


def _names(kind: Any) -> str:
    return " ".join(field.name for field in fields_of(kind))


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
        "pull_kind": int(Kind.PULL),
    }
    if not native.set_up(words):
        return False
    log_types = (Append, AppendPart, Appended, AppendedPart, Entry, Command)
    native.set_up_log(
        {kind.__name__: kind for kind in log_types}
        | {
            "commands": log_frames.COMMANDS,
            "helds": tuple(Held),
            "empty": log_frames.EMPTY,
            "append_kind": framing.APPEND_KIND,
            "appended_kind": framing.APPENDED_KIND,
        }
    )
    return True


def _leave(*_: Any) -> None:
    """Left to the Python code."""


IN_USE = _set_up()

encode_request: Callable[[Request], list[Any] | None] = _leave
encode_answer: Callable[[Answer], list[Any] | None] = _leave
encode_append: Callable[[Append], list[Any] | None] = _leave
encode_appended: Callable[[Appended], list[Any] | None] = _leave
take: Callable[[memoryview, int, int, int, int, Any], Taken | None] = _leave
"""`take(scratch, lo, hi, meta limit, payload limit, place)`: the message of the frame that begins
at `lo`, and where it ends; None for what is left to `FrameReader`. For `place` see there."""

begin: Callable[[memoryview, int, int, int, int], Begun | Literal[False] | None] = _leave
"""`begin(scratch, lo, hi, meta limit, payload limit)`: the request of the frame that begins at `lo`
and that has come as far as its arrays, where these begin, how many bytes they have together, and
the arrays themselves, still to be filled; None for what is left to `FrameReader`. False for a pull
that fits into the scratch and is not all there yet: it is received there, so that it can be
answered as it is."""

take_log: Callable[[memoryview, int, int, int, int], Taken | None] = _leave
"""`take_log(scratch, lo, hi, meta limit, payload limit)`: `take`, for logs."""

if IN_USE:
    encode_append, encode_appended = native.encode_append, native.encode_appended
    take_log = native.take_log
    encode_request, encode_answer = native.encode_request, native.encode_answer
    take, begin = native.take, native.begin

__all__ = [
    "IN_USE",
    "begin",
    "encode_answer",
    "encode_append",
    "encode_appended",
    "encode_request",
    "is_known",
    "take",
    "take_log",
]

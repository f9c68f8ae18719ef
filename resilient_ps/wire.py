"""The wire protocol: messages to bytes (`encode`), and a stream of bytes to messages.

`FrameReader` tells its caller where to receive the next bytes: small frames into one buffer that
is used again and again, the arrays of large ones straight into an array of their own, or where
`place` wants them. What a frame looks like stands in `resilient_ps.frames`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from resilient_ps import quick_frames
from resilient_ps.frames import (
    ANSWER_KIND,
    GREETING,
    HEAD_BYTES,
    MAGIC,
    SCRATCH_BYTES,
    VERSION,
    FrameLimits,
    Head,
    WireError,
    decode,
    decode_head,
    foreign,
)
from resilient_ps.frames import encode as encode_any
from resilient_ps.messages import (
    NO_KEYS,
    Answer,
    Append,
    Appended,
    Keys,
    Message,
    PartAnswer,
    Request,
    Values,
)

__all__ = [
    "GREETING",
    "HEAD_BYTES",
    "MAGIC",
    "PEEK_BYTES",
    "SCRATCH_BYTES",
    "VERSION",
    "FrameLimits",
    "FrameReader",
    "Head",
    "Place",
    "TakeWhole",
    "WireError",
    "decode",
    "decode_head",
    "encode",
    "place_nowhere",
]

PEEK_BYTES = 4096
"""What is received of the frame behind a large one, to learn where the rest should go. What goes
through the scratch is copied once more."""

Place = Callable[[int, "tuple[PartAnswer, ...]"], "list[memoryview] | None"]
"""Asked once per answer with values, with the request's number and the answer's parts: byte views
to receive the values in, of exactly their size together, or None for an array of their own."""


TakeWhole = Callable[[memoryview, int, int, int, int], bool]
"""`take(scratch, lo, hi, meta limit, payload limit)`: is `scratch[lo:hi]` the message that was
hoped for? Then it has been taken in."""

_Ready: TypeAlias = "Message | tuple[Head, bytes, Keys, Values | None] | None"


def place_nowhere(request: int, parts: tuple[PartAnswer, ...]) -> list[memoryview] | None:
    """The default `Place`: values go into an array of their own."""
    return None


def encode(message: Message) -> list[Any]:
    """Buffers of bytes for a gathering write. Small arrays are copied, large ones referenced."""
    buffers = None
    if isinstance(message, Request):
        buffers = quick_frames.encode_request(message)
    elif isinstance(message, Answer):
        buffers = quick_frames.encode_answer(message)
    elif isinstance(message, Append):
        buffers = quick_frames.encode_append(message)
    elif isinstance(message, Appended):
        buffers = quick_frames.encode_appended(message)
    return encode_any(message) if buffers is None else buffers


class FrameReader:
    """Bytes in, messages out, without I/O.

    `greeting`, if given, limits the first frame in place of `limits`.
    Invariants: `get_buffer` is never empty; `scratch[lo:hi]` is what has been received and not
    been used; while the arrays of a frame are being filled (`_targets`), the scratch is empty.
    """

    def __init__(
        self,
        limits: FrameLimits | None = None,
        place: Place = place_nowhere,
        greeting: FrameLimits | None = None,
    ) -> None:
        self._later = limits or FrameLimits()
        self._limits = greeting or self._later
        self._place = place
        self._quick = quick_frames.IN_USE
        # Not a bytearray: its zeros would be written, and a silent connection cost all of it.
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8).data
        self._lo = self._hi = 0
        self._window = self._scratch
        self._targets: list[memoryview] = []  # byte views still to be filled, last one first
        self._ready: _Ready = None  # what is whole once they all are
        self._done: list[Message] = []  # whole messages, to be given to the caller

    @property
    def filling(self) -> bool:
        """Is an array under way, so that exactly the whole buffer is still to come?"""
        return bool(self._targets)

    @property
    def left_bytes(self) -> int:
        """Of the array that is under way, what is still to come; 0: none is."""
        return self._targets[-1].nbytes if self._targets else 0

    @property
    def request(self) -> Request | None:
        """Of which arrays are under way."""
        ready = self._ready
        return ready if self._targets and isinstance(ready, Request) else None

    @property
    def limits(self) -> FrameLimits:
        """Those of the next frame."""
        return self._limits

    def empty_scratch(self) -> memoryview | None:
        """Where the next bytes may be received as well, if they are the first ones of a frame."""
        if self._targets or self._lo != self._hi:
            return None
        self._lo = self._hi = 0
        return self._scratch

    def get_targets(self) -> list[memoryview]:
        """Where all that is still to come of a frame with large arrays may be received at once."""
        return self._targets[::-1]

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be received."""
        if self._targets:
            return self._targets[-1]
        if self._lo == self._hi:
            self._lo = self._hi = 0
            return self._window
        if self._hi == SCRATCH_BYTES:
            self._compact()
        return self._scratch[self._hi :]

    def received(self, count: int) -> list[Message]:
        """`count` bytes have been put into the buffer: the messages that are now whole.

        Raises `WireError` for anything that is not this protocol; the reader is then of no more
        use, and the connection is to be closed.
        """
        if self._targets:
            while count:
                step = min(count, self._targets[-1].nbytes)
                self._advance(step)
                count -= step
        else:
            self._hi += count
            while self._lo < self._hi and self._take():
                pass
        messages, self._done = self._done, []  # whose arrays are to be free for the next frame
        return messages

    def received_whole(self, count: int, take: TakeWhole) -> bool:
        """As `received`, if `take` takes all there is for one whole message: the caller's then.

        False: nothing has happened.
        """
        if self._targets:
            return False
        limits, stop = self._limits, self._hi + count
        if not take(self._scratch, self._lo, stop, limits.meta_bytes, limits.payload_bytes):
            return False
        self._lo = self._hi = 0
        self._window = self._scratch
        return True

    def _take(self) -> bool:
        """Take the next frame out of the scratch; False if it does not hold all of it.

        If it holds at least head and meta, the arrays' own memory is what is received into next.
        """
        if self._quick and (done := self._take_quickly()) is not None:
            return done
        have = self._hi - self._lo
        if have < HEAD_BYTES:
            self._check_magic(have)
            return False
        head = decode_head(self._scratch, self._limits, self._lo)
        meta_at = self._lo + HEAD_BYTES
        arrays_at = meta_at + head.meta_bytes
        if arrays_at > self._hi:
            return False
        meta = bytes(self._scratch[meta_at:arrays_at])
        self._lo = arrays_at
        if not (head.keys or head.value_bytes):
            self._window = self._scratch
            self._finish(decode(head, meta, NO_KEYS, None))
            return True
        self._window = self._window_before(head.payload_bytes)
        if arrays_at + head.payload_bytes <= self._hi and head.kind != ANSWER_KIND:
            self._finish(decode(head, meta, *self._copy_arrays(head)))
            return True
        self._begin(head, meta)
        self._drain()
        return not self._targets

    def _take_quickly(self) -> bool | None:
        """The same for frames of a common kind; None leaves it to `_take`."""
        limits = self._limits
        where = self._scratch, self._lo, self._hi, limits.meta_bytes, limits.payload_bytes
        taken = quick_frames.take(*where, self._place)
        if taken is None:
            taken = quick_frames.take_log(*where)
        if taken is not None:
            message, self._lo = taken
            self._window = self._scratch
            self._finish(message)
            return True
        begun = quick_frames.begin(*where)
        if not begun:
            return begun
        message, self._lo, payload_bytes, arrays = begun
        self._window = self._window_before(payload_bytes)
        self._expect([array.data.cast("B") for array in arrays], message)
        self._drain()
        return not self._targets

    def _window_before(self, payload_bytes: int) -> memoryview:
        """What is received of the frame behind one with so large arrays."""
        return self._scratch[:PEEK_BYTES] if payload_bytes >= SCRATCH_BYTES else self._scratch

    def _copy_arrays(self, head: Head) -> tuple[Keys, Values | None]:
        """Copy arrays that are in the scratch as a whole: the quick way of small frames."""
        keys, values = NO_KEYS, None
        if head.keys:
            keys = np.frombuffer(self._scratch, np.uint64, head.keys, self._lo).copy()
            self._lo += keys.nbytes
        if head.dtype is not None and head.value_bytes:
            count = head.value_bytes // head.dtype.itemsize
            values = np.frombuffer(self._scratch, head.dtype, count, self._lo).copy()
            self._lo += values.nbytes
        return keys, values

    def _begin(self, head: Head, meta: bytes) -> None:
        """Provide memory for the arrays of a frame: `_targets`, the first one last."""
        if head.kind == ANSWER_KIND:
            self._begin_answer(head, meta)
            return
        keys = np.empty(head.keys, np.uint64) if head.keys else NO_KEYS
        values = _empty_values(head) if head.value_bytes else None
        arrays = [keys] if values is None else [keys, values]
        self._expect([array.data.cast("B") for array in arrays], (head, meta, keys, values))

    def _expect(self, views: list[memoryview], ready: _Ready) -> None:
        """Receive into these views of bytes; `ready` is whole with the last of them."""
        self._targets = [*reversed(views)]
        self._ready = ready
        self._skip_empty()

    def _begin_answer(self, head: Head, meta: bytes) -> None:
        answer = decode(head, meta, NO_KEYS, None)
        assert isinstance(answer, Answer)
        placed = self._place(head.request, answer.parts)
        if placed is None:
            values = _empty_values(head)
            answer.values, answer.placed = (values,), False
            placed = [values.data.cast("B")]
        elif sum([view.nbytes for view in placed]) != head.value_bytes:
            raise WireError(
                f"an answer of {head.value_bytes} bytes does not fit what was asked for"
            )
        self._expect(placed, answer)

    def _check_magic(self, have: int) -> None:
        """Refuse strangers as early as possible: theirs may be less than a head."""
        start = bytes(self._scratch[self._lo : self._lo + min(have, len(MAGIC))])
        if not MAGIC.startswith(start):
            raise foreign(start)

    def _drain(self) -> None:
        """Move what the scratch holds of this frame to where it belongs."""
        while self._targets and self._lo < self._hi:
            target = self._targets[-1]
            count = min(target.nbytes, self._hi - self._lo)
            target[:count] = self._scratch[self._lo : self._lo + count]
            self._lo += count
            self._advance(count)

    def _advance(self, count: int) -> None:
        target = self._targets[-1] = self._targets[-1][count:]
        if not target.nbytes:
            self._skip_empty()

    def _skip_empty(self) -> None:
        """Done with targets that have no room left, and after the last one with the frame."""
        while self._targets and not self._targets[-1].nbytes:
            self._targets.pop()
        if not self._targets:
            ready, self._ready = self._ready, None
            assert ready is not None
            self._finish(decode(*ready) if isinstance(ready, tuple) else ready)

    def _finish(self, message: Message) -> None:
        self._limits = self._later
        self._done.append(message)

    def _compact(self) -> None:
        have = self._hi - self._lo
        self._scratch[:have] = bytes(self._scratch[self._lo : self._hi])
        self._lo, self._hi = 0, have


def _empty_values(head: Head) -> Values:
    assert head.dtype is not None  # decode_head has seen to it
    return np.empty(head.value_bytes // head.dtype.itemsize, head.dtype)

"""Parts for other servers, packed into messages that the wire can carry, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from resilient_ps.frames import APPEND_BYTES, APPEND_PART_BYTES, FrameLimits, append_size
from resilient_ps.messages import Append, AppendPart, Copy, Entry

LIMITS = FrameLimits()
FEW_PARTS = 64  # whose entries' heads fit in any case


class _Parcel:
    """An `Append` that is being filled. An entry that is alone in it always fits."""

    def __init__(self) -> None:
        self._parts: list[AppendPart] = []
        self._entries: list[Entry] = []  # of the last part
        self._shards: set[int] = set()
        self._meta_bytes = APPEND_BYTES
        self._payload_bytes = 0
        self._dtype: np.dtype[np.generic] | None = None
        self._filled = False

    def begin(self, part: AppendPart) -> bool:
        """Make room for a further part. False: it does not fit."""
        if part.shard in self._shards or not self._room(APPEND_PART_BYTES, 0):
            return False
        self._end_part()
        self._shards.add(part.shard)
        self._meta_bytes += APPEND_PART_BYTES
        self._parts.append(part)
        return True

    def add(self, entry: Entry) -> bool:
        """An entry of the last part. False: it does not fit."""
        meta_bytes, payload_bytes = append_size(entry)
        values = entry.command.values
        other = values.size and self._dtype is not None and values.dtype != self._dtype
        if self._filled and (other or not self._room(meta_bytes, payload_bytes)):
            return False
        self._filled = True
        if values.size:
            self._dtype = values.dtype
        self._meta_bytes += meta_bytes
        self._payload_bytes += payload_bytes
        self._entries.append(entry)
        return True

    def _room(self, meta_bytes: int, payload_bytes: int) -> bool:
        return (
            self._meta_bytes + meta_bytes <= LIMITS.meta_bytes
            and self._payload_bytes + payload_bytes <= LIMITS.payload_bytes
        )

    def _end_part(self) -> None:
        if self._parts:
            self._parts[-1] = self._parts[-1]._replace(entries=tuple(self._entries))
        self._entries = []

    def close(self) -> Append:
        """The message."""
        self._end_part()
        return Append(tuple(self._parts))


def pack(parts: Sequence[AppendPart | Copy]) -> list[Append | Copy]:
    """What one server is to get, in order. A part may be split over several messages."""
    if len(parts) == 1 and isinstance(parts[0], AppendPart) and len(parts[0].entries) <= 1:
        return [Append((parts[0],))]  # it fits, and most are so
    together = _together(parts)
    return list(_packed(parts)) if together is None else [together]


def _together(parts: Sequence[AppendPart | Copy]) -> Append | None:
    """One message, if it is plain that all fit: a few small entries, as most requests make."""
    if len(parts) > FEW_PARTS:
        return None
    appends: dict[int, AppendPart] = {}
    dtypes: set[np.dtype[np.generic]] = set()
    payload_bytes = 0
    for part in parts:
        if not isinstance(part, AppendPart) or len(part.entries) != 1:
            return None
        command = part.entries[0].command
        if command.text:
            return None
        appends[part.shard] = part
        dtypes.add(command.values.dtype)
        payload_bytes += command.keys.nbytes + command.values.nbytes
    if len(appends) < len(parts) or len(dtypes) != 1 or payload_bytes > LIMITS.payload_bytes:
        return None
    return Append(tuple(appends.values()))


def _packed(parts: Iterable[AppendPart | Copy]) -> Iterator[Append | Copy]:
    parcel: _Parcel | None = None
    for part in parts:
        if isinstance(part, Copy):
            if parcel is not None:
                yield parcel.close()
                parcel = None
            yield part
            continue
        if parcel is None or not parcel.begin(part):
            if parcel is not None:
                yield parcel.close()
            parcel = _Parcel()
            parcel.begin(part)
        for place, entry in enumerate(part.entries):
            if not parcel.add(entry):
                yield parcel.close()
                parcel = _Parcel()
                prev = part.entries[place - 1].at if place else part.prev
                parcel.begin(part._replace(prev=prev))
                parcel.add(entry)
    if parcel is not None:
        yield parcel.close()

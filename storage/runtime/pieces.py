"""An object in pieces, read like a file: nothing is joined, and slowness has an end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import Bytes, StoreUnavailable
from resilient_ps.storage.requests import size_of

BLOCK_BYTES = 1 << 20


def views_of(pieces: Sequence[Bytes]) -> list[memoryview]:
    """Of bytes; empty pieces are left out."""
    views = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
    return [view.toreadonly() for view in views]


def cut(views: Sequence[memoryview], part_bytes: int) -> list[list[memoryview]]:
    """Parts of that size, but the last, without copying."""
    parts: list[list[memoryview]] = [[]]
    room = part_bytes
    for whole in views:
        view = whole
        while view.nbytes:
            if not room:
                parts.append([])
                room = part_bytes
            parts[-1].append(view[:room])
            view = view[room:]
            room -= parts[-1][-1].nbytes
    return parts


class PieceReader:
    """What the HTTP client sends: it reads it block by block, and again for a digest.

    The client asks for 16 KiB at a time, and gets `BLOCK_BYTES`: else the threads that send would
    take the interpreter lock thousands of times a second, at the expense of the server's loop.
    A block has its own time to be sent. `deadline_s` (monotonic) is for all of them: a peer that
    takes a byte now and then does not hold a thread for ever.
    """

    def __init__(self, pieces: Sequence[memoryview], deadline_s: float, sha256: str = "") -> None:
        self.sha256 = sha256  # of all pieces; "": not known
        self._pieces = pieces
        self._size = size_of(pieces)
        self._deadline_s = deadline_s
        self._at = 0  # in the whole
        self._piece = 0
        self._offset = 0  # in the piece

    def __len__(self) -> int:
        return self._size

    def read(self, most: int = -1) -> bytes | memoryview:
        """A block of one piece, of `most` bytes or more; nothing at the end."""
        if self._piece == len(self._pieces):
            return b""
        if time.monotonic() > self._deadline_s:
            raise StoreUnavailable("the store takes too long to receive it")
        if most < 0:
            rest = b"".join([self._pieces[self._piece][self._offset :], *self._pieces_behind()])
            self.seek(0, os.SEEK_END)
            return rest
        piece = self._pieces[self._piece]
        block = piece[self._offset : self._offset + max(most, BLOCK_BYTES)]
        self._offset += block.nbytes
        self._at += block.nbytes
        if self._offset == piece.nbytes:
            self._piece, self._offset = self._piece + 1, 0
        return block

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Anywhere: the client measures so, and begins again."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if not 0 <= start + offset <= self._size:
            raise BadInput(f"seek to {start + offset} of {self._size} bytes")
        self._at = self._offset = start + offset
        self._piece = 0
        while self._piece < len(self._pieces):
            nbytes = self._pieces[self._piece].nbytes
            if self._offset < nbytes:
                break
            self._offset -= nbytes
            self._piece += 1
        return self._at

    def _pieces_behind(self) -> Sequence[memoryview]:
        return self._pieces[self._piece + 1 :]

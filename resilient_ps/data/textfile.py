"""Text files line by line: plain, gzip or zip (told by their first bytes), with bounded lines.

Both kinds of file are walked from a *position*: a byte offset in a plain file, a count of lines in
a compressed one, which has to be read from its beginning. Nothing is held but the current line.
"""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, cast

from resilient_ps.data.shards import ByteRange, LineStride, byte_range
from resilient_ps.errors import BadInput, NotFound

MAX_LINE_BYTES = 16 << 20
_COUNT_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; `text` is None when it is longer than `MAX_LINE_BYTES`."""

    position: int
    next_position: int
    text: bytes | None


def check_file(path: str | Path) -> Path:
    """The path of a readable, non-empty file; `NotFound` or `BadInput` otherwise."""
    found = Path(path)
    if found.is_dir():
        raise BadInput(f"{found} is a directory: name one file")
    if not found.exists():
        raise NotFound(f"{found} does not exist: check the path of the data file")
    try:
        with found.open("rb") as file:
            if not file.read(1):
                raise BadInput(f"{found} is empty: a data file with at least one row is needed")
    except OSError as error:
        raise BadInput(f"{found} cannot be read: {error.strerror or error}") from error
    return found


def magic_of(path: Path) -> bytes:
    """The first four bytes of a file."""
    with path.open("rb") as file:
        return file.read(4)


def open_text(path: str | Path) -> PlainText | CompressedText:
    """The lines of a file, decompressed where its first bytes say gzip or zip."""
    found = check_file(path)
    magic = magic_of(found)
    if magic[:2] == _GZIP_MAGIC:
        return CompressedText(found, "gzip")
    if magic in _ZIP_MAGICS:
        return CompressedText(found, "zip")
    return PlainText(found)


class PlainText:
    """A plain file; positions are byte offsets."""

    kind = "bytes"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = os.stat(path).st_size

    def walk(self, position: int = 0) -> Iterator[Line]:
        """The lines from the byte offset `position`, which is the start of a line."""
        with self.path.open("rb") as file:
            file.seek(position)
            yield from _lines(file, position)

    def shard(self, data_start: int, rank: int, of: int) -> ByteRange:
        """The bytes that belong to `rank`; the lines that begin there are its own."""
        return byte_range(data_start, self.size_bytes, rank, of)

    def first_line_from(self, start: int, data_start: int) -> int:
        """The offset of the first line that begins at or after `start`."""
        if start <= data_start:
            return data_start
        with self.path.open("rb") as file:
            file.seek(start - 1)
            while piece := file.readline(MAX_LINE_BYTES):
                if piece.endswith(b"\n"):
                    break
            return file.tell()

    def line_number(self, position: int) -> int:
        """The number, from 1, of the line at `position`: reads the file up to there."""
        number, left = 1, position
        with self.path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(left, _COUNT_CHUNK_BYTES))):
                number += chunk.count(b"\n")
                left -= len(chunk)
        return number


class CompressedText:
    """A gzip file, or a zip archive of one file; positions are numbers of lines before."""

    kind = "lines"

    def __init__(self, path: Path, compression: str) -> None:
        self.path = path
        self.size_bytes = os.stat(path).st_size
        self._compression = compression

    def walk(self, position: int = 0) -> Iterator[Line]:
        """The lines from number `position` (from 0) on; those before are read and dropped."""
        with _as_bad_input(self.path), self._open() as file:
            for number, line in enumerate(_lines(file, 0)):
                if number >= position:
                    yield Line(number, number + 1, line.text)

    def shard(self, data_start: int, rank: int, of: int) -> LineStride:
        """Every `of`-th line; each rank reads the whole file, since it cannot be entered midway."""
        return LineStride(rank, of)

    def line_number(self, position: int) -> int:
        """The number, from 1, of the line at `position`."""
        return position + 1

    def _open(self) -> IO[bytes]:
        if self._compression == "gzip":
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        return _open_zip(self.path)


def _open_zip(path: Path) -> IO[bytes]:
    # The archive object may go: an open member keeps the underlying file alive
    archive = zipfile.ZipFile(path)
    names = [i for i in archive.infolist() if not i.is_dir() and "__MACOSX" not in i.filename]
    if len(names) != 1:
        found = ", ".join(i.filename for i in names[:5]) or "nothing"
        raise BadInput(f"{path}: a zip archive must hold exactly one file, this one has {found}")
    return archive.open(names[0])


@contextmanager
def _as_bad_input(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        raise BadInput(f"{path} is truncated or damaged ({error}): fetch it again") from error
    except (RuntimeError, NotImplementedError) as error:
        # zipfile raises these for encrypted members and for exotic compression methods
        raise BadInput(f"{path} cannot be unpacked ({error}): unpack it first") from error


def _lines(file: IO[bytes] | BufferedIOBase, position: int) -> Iterator[Line]:
    at, first = position, position == 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        after = at + len(text)
        kept: bytes | None = text
        while not text.endswith(b"\n") and len(text) > MAX_LINE_BYTES:
            kept = None
            text = file.readline(MAX_LINE_BYTES + 1)
            after += len(text)
        if kept is not None:
            kept = kept.rstrip(b"\r\n")
            if first and kept.startswith(_BYTE_ORDER_MARK):
                kept = kept[len(_BYTE_ORDER_MARK) :]
        yield Line(at, after, kept)
        at, first = after, False

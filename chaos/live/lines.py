"""Files of JSON lines that other processes append to, read as they grow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient_ps.errors import BadInput

READ_MOST = 1 << 26
"""Bytes at a time: what is left is read the next time."""


class GrowingFile:
    """Reading goes on where it ended. A line that is torn counts as not written (yet)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> Iterator[list[Any]]:
        """The lines that are new. Raises `BadInput` for a file of another kind."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(READ_MOST)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{self.path}: {line[:80]!r} is no line of JSON") from error
            if not isinstance(found, list) or not found:
                raise BadInput(f"{self.path}: {line[:80]!r} is no array")
            yield found

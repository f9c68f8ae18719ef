"""What a process writes to its log from some moment on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_S = 0.05
READ_MOST_BYTES = 16 * 1024 * 1024


class LogTail:
    """What comes to a log after this was made."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._from = 0
        with contextlib.suppress(OSError):
            self._from = log.stat().st_size

    def text(self) -> str:
        """All of it so far; of very much, the beginning."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._from)
                return file.read(READ_MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def events(self) -> Iterator[dict[str, Any]]:
        """Lines that are JSON; what was torn or is something else is left out."""
        for line in self.text().splitlines():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found

    def wait_for(self, words: str, deadline_s: float) -> bool:
        """Does a line with these words come in time?"""
        until_s = time.monotonic() + deadline_s
        while words not in self.text():
            if time.monotonic() > until_s:
                return False
            time.sleep(POLL_S)
        return True

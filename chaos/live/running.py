"""One process of this machine, told apart from all that may have its number later.

The kernel gives numbers of processes that are over to new ones. So a number alone is never
signalled: a process is known by its number and by when it began, and is held by a descriptor.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from resilient_ps.errors import NotFound

_STATE, _BEGAN = 0, 19  # of /proc/<pid>/stat, counted behind the name
_ENDED = ("Z", "X")
COMMAND_CHARS_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Running:
    """`began`: ticks since the machine was started; `command`: its words."""

    pid: int
    began: int
    command: tuple[str, ...]

    @classmethod
    def look(cls, pid: int) -> Self | None:
        """The process that has this number now; None where there is none, or it is over."""
        fields = _stat(pid)
        if fields is None or fields[_STATE] in _ENDED:
            return None
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()[:COMMAND_CHARS_MAX]
        except OSError:
            return None
        words = tuple(word.decode(errors="replace") for word in raw.split(b"\0")[:-1])
        return cls(pid, int(fields[_BEGAN]), words)

    @property
    def is_there(self) -> bool:
        """Does it run (or stand) still?"""
        fields = _stat(self.pid)
        return (
            fields is not None
            and fields[_STATE] not in _ENDED
            and int(fields[_BEGAN]) == self.began
        )

    @property
    def is_paused(self) -> bool:
        """Does it stand, by SIGSTOP?"""
        fields = _stat(self.pid)
        return self.is_there and fields is not None and fields[_STATE] in ("T", "t")

    def signal(self, number: signal.Signals) -> None:
        """Raises `NotFound` when it is over; a process that has its number now gets nothing."""
        descriptor = -1
        try:
            descriptor = os.pidfd_open(self.pid)
            if not self.is_there:
                raise ProcessLookupError  # the descriptor is of another one
            signal.pidfd_send_signal(descriptor, number)
        except (ProcessLookupError, PermissionError) as error:
            why = "is over" if isinstance(error, ProcessLookupError) else "is another user's"
            raise NotFound(f"process {self.pid} {why}: nothing was signalled") from error
        finally:
            with suppress(OSError):
                os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    """What /proc says behind the name, which may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
